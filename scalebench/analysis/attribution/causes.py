"""Usual causes of each part of the lost efficiency, reported only if figures of the run support them.

A cause is a rule: its part, the facts that it needs, its condition, and three texts that are filled in with facts.
docs/explain/attribution.md lists conditions and remedies.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.attribution.components import estimate_step_s
from scalebench.analysis.attribution.lost_efficiency import Attribution, Part
from scalebench.analysis.attribution.reference_runs import ReferenceRuns, samples_per_device
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.verdicts import decide_ratio
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate
from scalebench.core.units import format_bytes, format_seconds

Facts = dict[str, Any]  # by name, with the unit at its end; None was not measured
MIN_SHARE = 0.02  # points of efficiency; smaller parts need no cause
SHARED_COLUMNS = ("model", "dataset", "hardware", "scaling", "precision", "feed")
USAGE_COLUMNS = ("gpu_util_mean", "gpu_power_w_mean", "speedup_self")
MIN_UTILIZATION_RISE, MAX_POWER_RATIO = 0.15, 1.05  # power of one device
# Flags of a run in which the machine may have changed between the timed blocks and the probes.
FLAG_MEANINGS = {
    "drifts": "the level of the blocks changes while they are measured",
    "busy_machine": "other programs computed on the machine",
    "swapping": "the machine swapped",
    "throttled": "clocks were held back",
    "hot_at_start": "a GPU was hot from the start",
}


@dataclass(frozen=True)
class Cause:
    """The usual reason for a large part, a remedy, and the figures that support it in this run."""

    part: str  # of components.LOSS_PARTS
    cause: str
    remedy: str
    evidence: str

    def sentence(self) -> str:
        """Return `transfer: all gradients travel in one message (...). Try ...`."""
        return f"{self.part}: {self.cause} ({self.evidence}). {self.remedy}."


@dataclass(frozen=True)
class AttributedRun:
    """An attribution, one of its repeats, and the runs that it is measured against."""

    attribution: Attribution
    result: Result
    references: ReferenceRuns
    rows: Sequence[Mapping[str, Any]] = ()  # of the frame or the pooled frame, this run's too; None for null
    configurations: Configurations = field(default_factory=Configurations)  # ratios between pooled rows

    def significant(self, name: str) -> Part | None:
        """Return the part that includes `name` if it is large and surely above zero; for drift also a large gain.

        A part without limits has no cause: one repeat does not say that another process would lose the same.
        """
        part = self.attribution.part(name)
        if part is None or abs(part.share.value) < MIN_SHARE:
            return None
        return part if part.share.low > 0 or (name == "drift" and part.share.high < 0) else None

    @property
    def flags(self) -> list[str]:
        """The flags of the record and those that were added when it was loaded."""
        row = self.row()
        return list(dict.fromkeys([*self.result.flags, *((row or {}).get("flags") or "").split()]))

    def row(self) -> Mapping[str, Any] | None:
        """Return this run's row of the frame, if there is one."""
        return next((row for row in self.rows if row["run_id"] == self.attribution.run_id), None)

    def similar_rows(self, *columns: str) -> list[Mapping[str, Any]]:
        """Return other good rows that agree with this run's in these columns; an empty list if it has no row."""
        run = self.row()
        if run is None:
            return []
        others = [row for row in self.rows if row["run_id"] != run["run_id"] and row["status"] == "ok"]
        return [row for row in others if all(row.get(name) == run.get(name) for name in columns)]


@dataclass(frozen=True)
class Rule:
    """When a part has a usual cause: the facts that must be known, a condition, and texts with facts in braces."""

    part: str
    needs: str
    when: Callable[[Facts], bool]
    cause: str
    remedy: str
    evidence: str


def find_causes(run: AttributedRun) -> list[Cause]:
    """Return the causes that the figures of `run` support. None is proven by them."""
    causes = []
    for part, collect in FACTS_OF_PART.items():
        if run.significant(part) is None:
            continue
        facts = collect(run)
        texts = {name: format_fact(name, value) for name, value in facts.items()}
        for rule in RULES:
            is_known = rule.part == part and all(facts[name] is not None for name in rule.needs.split())
            if is_known and rule.when(facts):
                cause, remedy, evidence = (t.format_map(texts) for t in (rule.cause, rule.remedy, rule.evidence))
                causes.append(Cause(part, cause, remedy, evidence))
    return causes


def format_fact(name: str, value: Any) -> str:
    """Write a fact with the unit at the end of its name."""
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_share"):
        return f"{100 * value:z.0f} %"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s"):
        return format_seconds(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def collect_batch_facts(run: AttributedRun) -> Facts:
    """The constant part of t(b) = t0 + c b from two batches on one bare device: t0 is the cost of launching."""
    facts: Facts = dict.fromkeys(("constant_share", "full_sample_s", "local_sample_s"))
    full, local = run.references.bare_full, run.references.bare_local
    if full is None or local is None:
        return facts
    large, small = full.scale.samples_per_step, samples_per_device(run.result)
    large_s, small_s = estimate_step_s(full, large), estimate_step_s(local, small)
    if large_s is not None and small_s is not None and small < large:
        constant_s = (small_s.value - small / large * large_s.value) / (1 - small / large)
        facts |= {"small": round(small), "large": large, "small_s": small_s.value, "large_s": large_s.value}
        facts["constant_share"] = constant_s / small_s.value
    full_s, local_s = _computing_s(full), _computing_s(local)
    if full_s is not None and local_s is not None:
        facts["full_sample_s"] = full_s / full.scale.samples_per_step
        facts["local_sample_s"] = local_s / local.scale.samples_per_step
    return facts


def collect_overhead_facts(run: AttributedRun) -> Facts:
    """The overhead on one device, which does not grow with the batch."""
    part, result = run.significant("overhead"), run.result
    assert part is not None
    work = f"{result.scale.strategy} does its work"
    lightning = "pytorch_lightning" in (result.spec.get("strategy", {}).get("requires") or ())
    gpu = step_breakdown.gpu_cells(result, throughput.Measurement(result).step_s)
    host_limits = (gpu["host_wait_share"] or 0.0) >= throughput.MIN_HOST_WAIT_SHARE
    compute = format_fact("gpu_compute_share", gpu["gpu_compute_share"] or 0.0)
    kernels = f"; a step starts {gpu['gpu_kernels_per_step'] or 0:.0f} kernels, and the GPU computes {compute} of it"
    return {
        "names": part.names,
        "points": part.share.value,
        "work": "Lightning's Trainer runs its loop and its hooks" if lightning else work,
        "limit": ", and the host is the limit: the GPU waits for all that it does" if host_limits else "",
        "fewer_hooks": "fewer callbacks, loggers and progress bars, or " if lightning else "",
        "kernels": kernels if host_limits else "",
        "overhead_s": part.step_s.value,
        "samples": samples_per_device(result),
        "ideal_s": run.attribution.ideal_s,
    }  # fmt: skip


def collect_contention_facts(run: AttributedRun) -> Facts:
    """Threads, cores and clocks, and what forward and backward take in company and alone."""
    result, alone = run.result, run.references.self_local
    machine, nodes, gpus = result.machine, result.scale.nodes, result.scale.gpus
    threads = [rank.threads for rank in result.ranks if rank.threads is not None]
    quota = machine.cpu_quota if machine.cpu_quota is not None and machine.cpu_quota < machine.cpus else None
    is_flagged = "oversubscribed" in run.flags
    many = f"{sum(threads)} threads of {len(threads)} processes" if len(threads) == gpus else f"{gpus} devices"
    clock = result.monitor.sm_clock_mhz_mean
    alone_clock = None if alone is None else alone.monitor.sm_clock_mhz_mean
    clocks = []
    if clock is not None and alone_clock is not None:
        clocks.append(f"{clock:.0f} MHz here, {alone_clock:.0f} MHz on one device")
    if reasons := result.monitor.throttle_reasons:
        clocks.append(f"throttle reasons: {' '.join(reasons)}")
    return {
        "has_alone": alone is not None,
        "is_oversubscribed": bool(threads)
        and (is_flagged or sum(threads) > nodes * (machine.cpus if quota is None else quota)),
        "device": result.scale.device,
        "flagged": ", flagged oversubscribed" if is_flagged else "",
        "many": many,
        "quota": quota,
        "node_cores": machine.cpus,
        "cores": machine.cpus * nodes,
        "together_s": _computing_s(result),
        "alone_s": None if alone is None else _computing_s(alone),
        "is_slower_clock": clock is not None and alone_clock is not None and clock < 0.98 * alone_clock,
        "is_throttled": "throttled" in run.flags,
        "clocks": "; ".join(clocks) or "flagged throttled",
        "cpu_share": result.monitor.cpu_util_mean,
    }


def collect_data_facts(run: AttributedRun) -> Facts:
    """Return what loading takes in each step, beside other ranks and alone, and how batches are fed."""
    from scalebench.workloads import datasets  # slow to import, for one word

    workload, read_bytes = run.result.workload, run.result.monitor.disk_read_bytes_per_s
    together, one_device = step_breakdown.figure(run.result, "data_s"), run.references.self_local
    alone = None if one_device is None else step_breakdown.figure(one_device, "data_s")
    is_lazy, reason = workload.prefetch == "none", None
    if workload.feed == "disk":
        reason = "disk"
    elif datasets.decodes_in_training(workload.dataset):
        reason = "decoding"
    elif together is not None and alone is not None and _takes_surely_longer(together, alone, 1.5):
        reason = "company"
    elif is_lazy:
        reason = "no prefetch"
    return {
        "together_s": together and together.value,
        "beside": "" if alone is None else f", {format_seconds(alone.value)} on one device",
        "read": "" if read_bytes is None else f", {format_bytes(read_bytes)}/s read from disk",
        "reason": reason,
        "lazy": ", nothing is prefetched" if is_lazy else "",
        "queue": ", or dataset.prefetch=queue, which draws batches during the steps" if is_lazy else "",
    }  # fmt: skip


def _takes_surely_longer(estimate: Estimate, other: Estimate, times: float) -> bool:
    return other.value > 0 and combine({"one": 1.0, "other": -times}, {"one": estimate, "other": other}).low > 0


def collect_imbalance_facts(run: AttributedRun) -> Facts:
    """Return the device that is slowest most often in steps without synchronization, and the clocks of all devices."""
    probes, monitor = [rank.probes for rank in run.result.ranks if rank.probes is not None], run.result.monitor
    series: list[Sequence[float]] = [device for probe in probes for device in probe.local_step_s]
    facts: Facts = {"slowest_share": None}
    if len(probes) == len(run.result.ranks) and all(series) and len(series) > 1:
        slowest_of_steps = [max(range(len(step)), key=step.__getitem__) for step in zip(*series, strict=False)]
        slowest, means = statistics.mode(slowest_of_steps), [statistics.fmean(device) for device in series]
        facts = {"slowest": slowest, "slowest_s": means[slowest], "median_s": statistics.median(means)}
        facts["slowest_share"] = slowest_of_steps.count(slowest) / len(slowest_of_steps)
    flags = [flag for flag in ("unequal_clocks", "throttled") if flag in run.flags]
    devices = [(device, f" of node {device.node}" if device.node else "") for device in monitor.devices]
    clocks = {f"GPU {device.index}{of}": device.sm_clock_mhz_mean for device, of in devices if device.sm_clock_mhz_mean}
    ends = [choose(clocks.items(), key=lambda item: item[1] or 0) for choose in (min, max)] if clocks else []
    others = monitor.cpu_cores_others_mean
    return facts | {
        "others": "" if others is None else f"; other programs use {others:.2g} cores",
        "flags": " and ".join(flags) or None,
        "clocks": "".join(f", {name} at {clock:.0f} MHz" for name, clock in ends),
    }


def collect_drift_facts(run: AttributedRun) -> Facts:
    """Return what changed between the timed blocks and the probes, by the flags of the run."""
    monitor, flags = run.result.monitor, [flag for flag in FLAG_MEANINGS if flag in run.flags]
    evidence = [f"flagged {', '.join(flags)}"]
    if "busy_machine" in flags and monitor.cpu_cores_others_mean is not None:
        evidence.append(f"{monitor.cpu_cores_others_mean:.2g} cores in use by others")
    if "swapping" in flags and monitor.swap_in_bytes is not None and monitor.swap_out_bytes is not None:
        evidence.append(f"{format_bytes(monitor.swap_in_bytes + monitor.swap_out_bytes)} swapped")
    meanings = ", ".join(FLAG_MEANINGS[flag] for flag in flags)
    return {"meanings": meanings or None, "evidence": ", ".join(evidence)}


def collect_transfer_facts(run: AttributedRun) -> Facts:
    """Messages, their time within a step and in isolation, and the links that they take."""
    result, sizes = run.result, run.result.sync.message_bytes
    facts: Facts = {
        "exposed": step_breakdown.figure(result, "sync_exposed_s"),
        "isolated": step_breakdown.figure(result, "sync_isolated_s"),
        "wait": step_breakdown.figure(result, "imbalance_s"),
        "backward": step_breakdown.figure(result, "backward_s"),
    }
    options = result.spec.get("strategy", {}).get("options") or {}
    name = next((name for name in ("bucket_cap_mb", "fusion_threshold_mb") if name in options), None)
    option = "" if name is None else f"strategy.options.{name}, now {options[name]:g})"
    facts |= {
        "messages": len(sizes) or None,
        "sum_bytes": sum(sizes),
        "mean_bytes": sum(sizes) / len(sizes) if sizes else None,
        "lower": option and f" (lower {option}",
        "noun": "message" if len(sizes) == 1 else "messages",
        "fewer": "Try a" if len(sizes) == 1 else f"Try fewer, larger messages{option and ' (raise ' + option}, or a",
        "compress": "strategy.options.compression=fp16, " if options.get("compression") == "none" else "",
        "backward_s": facts["backward"] and facts["backward"].value,
        "rival": None,
        "usage": _compare_usage(run),
    }
    if facts["exposed"] and facts["isolated"]:
        isolated_s = facts["isolated"].value
        facts |= {"isolated_s": isolated_s, "each_s": isolated_s / (len(sizes) or 1)}
        facts["transfer_s"] = facts["exposed"].value - (facts["wait"].value if facts["wait"] else 0.0)
        if isolated_s > 0:
            facts["ring_bytes"] = 2 * (result.scale.gpus - 1) / result.scale.gpus * sum(sizes) / isolated_s
    return facts | _find_faster_reduction(run)


def _find_faster_reduction(run: AttributedRun) -> Facts:
    """Find the fastest strategy that reduces on the CPU and surely is faster than NCCL here, where GPUs have no direct
    link."""
    machine, row = run.result.machine, run.row()
    links = {link for device in machine.topology or [] for link in device if link != "X"}
    reads = [access for device in (machine.peer_access or {}).get("read") or [] for access in device]
    is_direct = any(link.startswith("NV") for link in links) or (reads and all(each in ("OK", "X") for each in reads))
    if row is None or "nccl" not in (run.result.scale.backend_used or "").lower() or not links or is_direct:
        return {}
    rivals = [
        other
        for other in run.similar_rows(*SHARED_COLUMNS, "framework", "gpus", "global_batch")
        if other["throughput_samples_per_s"]
        and decide_ratio(other, row, run.configurations.estimate_ratio).low > 1
        and _reduces_on_cpu(other)
    ]
    if not rivals:
        return {}
    best = max(rivals, key=lambda other: float(other["throughput_samples_per_s"]))
    peers = "" if machine.peer_access is None else ", no peer access between all"
    return {
        "rival": best["strategy"],
        "rates": f"{float(best['throughput_samples_per_s']):,.0f} samples/s, this "
        f"{float(row['throughput_samples_per_s']):,.0f}",
        "links": f"no NVLink (GPUs connected by {', '.join(sorted(links))}){peers}",
    }


def _reduces_on_cpu(row: Mapping[str, Any]) -> bool:
    if row.get("backend_used") == "gloo":
        return True
    result = read_result(Path(row["path"]) / RESULT_FILE)
    return bool(result.spec.get("strategy", {}).get("reduces_on") == "cpu")


def _compare_usage(run: AttributedRun) -> str | None:
    """Compare usage with that of fewer devices; None unless utilization rises while power and speedup do not."""
    row = run.row()
    similar = run.similar_rows(*SHARED_COLUMNS, "strategy", "options")
    for before in sorted(similar, key=lambda other: -int(other["gpus"])):
        if row is None or before["gpus"] >= row["gpus"]:
            continue
        values = [either.get(name) for either in (row, before) for name in USAGE_COLUMNS]
        if any(value is None for value in values):
            continue
        util, watts, speedup, util0, watts0, speedup0 = (float(value or 0) for value in values)
        each, each0 = watts / row["gpus"], watts0 / before["gpus"]
        scales = speedup / row["gpus"] > speedup0 / before["gpus"]
        if util < util0 + MIN_UTILIZATION_RISE or each > MAX_POWER_RATIO * each0 or scales:
            continue
        share = row.get("collective_kernel_share")
        kernels = "" if share is None else f"; collective operations are {100 * share:z.0f} % of kernel time"
        return (
            f"from {before['gpus']} to {row['gpus']} devices utilization goes from {100 * util0:z.0f} % to "
            f"{100 * util:z.0f} %, power per device from {each0:.0f} to {each:.0f} W, speedup from {speedup0:.2f} to "
            f"{speedup:.2f}{kernels}"
        )
    return None


def _computing_s(result: Result) -> float | None:
    """Return the seconds of forward and backward of one step."""
    forward, backward = step_breakdown.figure(result, "forward_s"), step_breakdown.figure(result, "backward_s")
    return None if forward is None or backward is None else forward.value + backward.value


FACTS_OF_PART: dict[str, Callable[[AttributedRun], Facts]] = {
    "batch": collect_batch_facts,
    "overhead": collect_overhead_facts,
    "contention": collect_contention_facts,
    "data": collect_data_facts,
    "imbalance": collect_imbalance_facts,
    "drift": collect_drift_facts,
    "transfer": collect_transfer_facts,
}

LAUNCHING = 0.5  # of a small step that does not depend on its batch: from here on launching dominates
ALWAYS_SLOWEST = 0.8  # of the steps in which one device is the slowest

RULES = (
    # Source: thesis (P. Orlob, "Parallelization of GPUs based on Horovod"): the epoch shortens sharply up to a batch of
    # 700 and levels off there; at 75 the GPUs are hardly used.
    Rule("batch", "constant_share", lambda f: f["constant_share"] >= LAUNCHING,
         "a step takes nearly as long with a small batch as with a large one: launching it costs more than computing",
         "Try a larger train.global_batch with the learning rate scaled to it, or train.compile=true, which starts "
         "fewer kernels; fewer devices lose less",
         "on one bare device {small} samples take {small_s}, {large} take {large_s}: {constant_share} of the smaller "
         "step does not depend on its batch"),
    # Source: thesis, as above ("bigger matrices, efficiently parallelized on GPUs").
    Rule("batch", "local_sample_s",
         lambda f: (f["constant_share"] or 0.0) < LAUNCHING and f["local_sample_s"] >= 1.05 * f["full_sample_s"],
         "a device computes a sample more slowly in a small batch, which fills it less",
         "Try a larger train.global_batch with the learning rate scaled to it, or weak scaling",
         "forward and backward take {local_sample_s} per sample with the local batch, {full_sample_s} with the full "
         "one"),
    # Source: thesis (Horovod costs 17 % on one GPU); Lightning's Trainer took about 20 % of the materials CNN at a
    # batch of 75 where this program was written.
    Rule("overhead", "", lambda f: len(f["names"]) == 1 and f["points"] >= 0.1,
         "{work} at each step, however small its batch{limit}",
         "Try {fewer_hooks}a larger train.batch_per_device: the overhead does not grow with the batch",
         "{overhead_s} in a step of {samples} samples on one device, which takes {ideal_s} without it{kernels}"),
    # Source: PyTorch's and Horovod's guides (threads x processes no more than cores); the flag is that of placement.
    Rule("contention", "quota", lambda f: f["is_oversubscribed"],
         "a quota, as that of a container, gives them the time of {quota} CPUs, however many cores there are",
         "Try fewer devices, or a higher limit of CPU time (docker --cpus, limits.cpu of a pod)",
         "{many} with the time of {quota} CPUs on each node of {node_cores} cores{flagged}"),
    Rule("contention", "", lambda f: f["is_oversubscribed"] and f["quota"] is None,
         "there are more threads or devices than cores, so that they take turns on them",
         "Try fewer devices on a node, or a smaller hardware.cpus_per_device", "{many} on {cores} cores{flagged}"),
    # Source: McCalpin 1995, "Memory bandwidth and machine balance in current high performance computers" (STREAM).
    Rule("contention", "together_s alone_s",
         lambda f: f["device"] == "cpu" and not f["is_oversubscribed"] and f["together_s"] >= 1.05 * f["alone_s"],
         "workers on one machine share its memory's bandwidth, its caches and the heat of its processors",
         "Try fewer workers on a machine, more machines, or hardware.bind=numa if it is not set",
         "forward and backward take {together_s} here, {alone_s} on one device alone"),
    # Source: keras-multi-gpu's measurements (memory clocks 5 % lower, up to 15 % less throughput).
    Rule("contention", "", lambda f: f["has_alone"] and (f["is_slower_clock"] or f["is_throttled"]),
         "devices run at lower clocks together than one does alone: a limit of power or of heat",
         "Look at power limit and cooling (scalebench doctor); measure.cool_down_s pauses before each run", "{clocks}"),
    # Source: Mohan et al. 2021, "Analyzing and mitigating data stalls in DNN training" (hosts with too few cores).
    Rule("contention", "cpu_share", lambda f: f["device"] == "cuda" and f["cpu_share"] >= 0.9,
         "the cores that start the GPUs' work are busy themselves",
         "Try more cores a device (hardware.cpus_per_device) or a feed that costs none (dataset.feed=device)",
         "{cpu_share} of the cores of the run are in use"),
    # Source: tf.data's guide ("Better performance with the tf.data API": prefetching overlaps loading with training);
    # Murray et al. 2021, "tf.data: a machine learning data processing framework".
    Rule("data", "together_s", lambda f: f["reason"] == "disk", "devices share the disk that each batch is read from",
         "Try dataset.feed=host, or device where it fits{queue}", "{together_s} a step{beside}{read}{lazy}"),
    Rule("data", "together_s", lambda f: f["reason"] == "decoding",
         "pictures are decoded more slowly than the devices train",
         "Try more cores a device (hardware.cpus_per_device) with as many dataset.workers, or dataset=imagenet",
         "{together_s} a step{beside}"),
    Rule("data", "together_s", lambda f: f["reason"] == "company",
         "several devices load more slowly than one: they share the cores that do it",
         "Try dataset.feed=device{queue}", "{together_s} a step{beside}{lazy}"),
    Rule("data", "together_s", lambda f: f["reason"] == "no prefetch", "each batch is drawn while its device waits",
         "Try dataset.feed=device{queue}", "{together_s} a step{beside}{lazy}"),
    # Source: keras-multi-gpu's measurements (three of six like GPUs slower, at lower memory clocks).
    Rule("imbalance", "slowest_share", lambda f: f["slowest_share"] >= ALWAYS_SLOWEST,
         "one device is slower than the others, which wait for it at each step",
         "Compare the devices one by one (sweep=each_device), and leave a slow one out (hardware.device_ids)",
         "device {slowest} is the slowest in {slowest_share} of the steps: {slowest_s} by itself, the median device "
         "{median_s}"),
    # Source: Petrini, Kerbyson and Pakin 2003, "The case of the missing supercomputer performance"; Hoefler, Schneider
    # and Lumsdaine 2010, "Characterizing the influence of system noise on large-scale applications by simulation": the
    # slowest of many takes longer than their mean at each step.
    Rule("imbalance", "slowest_share", lambda f: f["slowest_share"] < ALWAYS_SLOWEST,
         "each time another device is the slowest: interruptions or uneven work rather than a slow device",
         "Look at what else runs there; a larger batch synchronizes less often, and evens out",
         "no device is the slowest in more than {slowest_share} of the steps{others}"),
    # Source: keras-multi-gpu's measurements (memory clocks of 1683 and 1772 MHz, 15 % less throughput).
    Rule("imbalance", "flags", lambda f: True, "devices run at different clocks",
         "Set the same application clocks on all, and look at power limits and cooling (scalebench doctor)",
         "flagged {flags}{clocks}"),
    # Source: Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation" (a machine's
    # state differs between measurements); flags of docs/reference/results.md.
    Rule("drift", "meanings", lambda f: True, "the probes came after the timed blocks, and meanwhile {meanings}",
         "Measure on a quiet machine, with measure.repeats=3 and measure.cool_down_s", "{evidence}"),
    # Source: Li et al. 2020, "PyTorch Distributed: experiences on accelerating data parallel training" (buckets are
    # synchronized while the rest of the backward pass runs).
    Rule("transfer", "exposed isolated messages",
         lambda f: f["messages"] == 1 and f["transfer_s"] >= 0.8 * f["isolated_s"],
         "all gradients travel in one message when the backward pass is over, so that nothing overlaps",
         "Try smaller messages{lower}", "1 message of {sum_bytes}, {transfer_s} exposed, {isolated_s} in isolation"),
    # Source: Rashidi et al. 2021, "Enabling compute-communication overlap in distributed deep learning training
    # platforms" (both compete for cores and memory bandwidth).
    Rule("transfer", "exposed isolated wait",
         lambda f: combine({"exposed": 1.0, "wait": -1.0, "isolated": -1.0}, f).low > 0,
         "gradient synchronization costs more within training than in isolation: both want the same cores or the same "
         "memory",
         "Try fewer threads (hardware.cpus_per_device), or a backend that does not use the cores of the model",
         "{transfer_s} of the step without the imbalance, {isolated_s} in isolation"),
    # Source: Li et al. 2020, as above (only the backward pass hides synchronization); thesis (fewer of them an epoch
    # with larger batches).
    Rule("transfer", "exposed isolated backward", lambda f: combine({"isolated": 1.0, "backward": -1.0}, f).low > 0,
         "gradient synchronization takes longer than the backward pass that it could overlap with",
         "Try a larger train.batch_per_device: the pass grows with it, the messages do not, and an epoch has fewer",
         "{isolated_s} in isolation, a backward pass of {backward_s}"),
    # Source: Hockney 1994, "The communication challenge for MPP" (t = latency + bytes / bandwidth); Sergeev and Del
    # Balso 2018, "Horovod: fast and easy distributed deep learning in TensorFlow" (tensor fusion).
    Rule("transfer", "exposed isolated messages", lambda f: f["mean_bytes"] <= 256e3,
         "messages are so small that their latency takes longer than their bytes",
         "{fewer} larger train.batch_per_device, with fewer synchronizations an epoch",
         "{messages} {noun} of {mean_bytes}, {each_s} each in isolation"),
    # Source: Hockney 1994, as above; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    # workstations" (a ring moves 2 (N - 1) / N of the bytes over each link).
    Rule("transfer", "exposed isolated messages", lambda f: f["mean_bytes"] >= 1e6 and f["isolated_s"] > 0,
         "large messages saturate the links between devices",
         "Try {compress}a larger train.batch_per_device, or a faster link between them (sweep=placement, "
         "sweep=transport)",
         "{sum_bytes} in {messages} take {isolated_s} in isolation, {ring_bytes}/s on each link of a ring"),
    # Source: parallel-strategies-benchmark-tensorflow2 (P. Schubert): four and eight 2080 Ti, NCCL slower than
    # ReductionToOneDevice on the CPU; its author suspected the missing NVLink.
    Rule("transfer", "rival", lambda f: True,
         "NCCL has no direct link between these GPUs and goes through host memory, where the CPU could reduce at once",
         "Try strategy={rival}; sweep=transport measures each way between the GPUs", "{rival} {rates}; {links}"),
    # Source: thesis (with NCCL utilisation jumps when a second node is used, without a trace in power or speedup).
    Rule("transfer", "usage", lambda f: True,
         "the backend waits for other devices within a kernel, which utilization counts as work",
         "Do not read utilization here but imbalance and exposed synchronization; compare another backend", "{usage}"),
)  # fmt: skip
