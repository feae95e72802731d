"""Usual causes of each part of the lost efficiency, reported only if the facts of a run support them (rules.py)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.attribution import lost_efficiency as losses
from scalebench.analysis.attribution.lost_efficiency import Attribution, Part, ReferenceRuns
from scalebench.analysis.attribution.rules import RULES, Facts
from scalebench.analysis.columns import RATE
from scalebench.analysis.prediction.step_model import ring_bytes
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.verdicts import decide_ratio, read_doubt
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.units import format_bytes, format_seconds

MIN_SHARE = 0.02  # points of efficiency; smaller parts need no cause
SHARED_COLUMNS = ("model", "dataset", "hardware", "scaling", "precision", "feed")
USAGE_COLUMNS = ("gpu_util_mean", "gpu_power_w_mean", "speedup_self")
MIN_UTILIZATION_RISE, MAX_POWER_RATIO = 0.15, 1.05  # power of one device
# Flags of a run in which the machine may have changed between the timed blocks and the probes.
DRIFT_FLAGS = ("drifts", "busy_machine", "swapping", "throttled", "hot_at_start")


@dataclass(frozen=True)
class Cause:
    """The usual reason for a large part, a remedy, and the figures that support it in this run."""

    part: str  # of components.LOSS_PARTS
    cause: str
    remedy: str
    evidence: str

    def sentence(self) -> str:
        """Return `communication: all gradients travel in one message (...). Try ...`."""
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
        """Return the part that includes `name` if it is large and surely above zero; for drift also a large gain. A
        part without limits has no cause: one repeat does not say that another process would lose the same."""
        part = self.attribution.part(name)
        if part is None or abs(part.share.value) < MIN_SHARE:
            return None
        return part if part.share.low > 0 or (name == "drift" and part.share.high < 0) else None

    @property
    def flags(self) -> list[str]:
        """The flags of the record and those that were added when it was loaded."""
        return list(dict.fromkeys([*self.result.flags, *((self.row or {}).get("flags") or "").split()]))

    @cached_property
    def row(self) -> Mapping[str, Any] | None:
        """This run's row of the frame, if there is one."""
        return next((row for row in self.rows if row["run_id"] == self.attribution.run_id), None)

    def similar_rows(self, *columns: str) -> list[Mapping[str, Any]]:
        """Return other good rows that agree with this run's in these columns; an empty list if it has no row."""
        own = self.row
        return [] if own is None else [
            row for row in self.rows if row["run_id"] != own["run_id"] and row["status"] == "ok"
            and all(row.get(name) == own.get(name) for name in columns)
        ]  # fmt: skip


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
    facts: Facts = dict.fromkeys(("constant_share", "local_sample_s"))
    full, local = run.references.bare_full, run.references.bare_local
    if full is None or local is None:
        return facts
    large, small = full.scale.samples_per_step, losses.samples_per_device(run.result)
    large_s, small_s = losses.estimate_step_s(full, large), losses.estimate_step_s(local, small)
    if large_s is not None and small_s is not None and small < large:
        constant_s = (small_s.value - small / large * large_s.value) / (1 - small / large)
        facts |= {"small": round(small), "large": large, "small_s": small_s.value, "large_s": large_s.value,
                  "constant_share": constant_s / small_s.value}  # fmt: skip
    if (full_s := _computing_s(full)) is not None and (local_s := _computing_s(local)) is not None:
        facts |= {"full_sample_s": full_s / large, "local_sample_s": local_s / local.scale.samples_per_step}
    return facts


def collect_overhead_facts(run: AttributedRun) -> Facts:
    """The overhead on one device, which does not grow with the batch."""
    part, result = run.significant("wrapper"), run.result
    assert part is not None
    lightning = "pytorch_lightning" in (result.spec.get("strategy", {}).get("requires") or ())
    gpu = step_breakdown.gpu_cells(result, throughput.Measurement(result).step_s)
    host_limits = (gpu["host_wait_share"] or 0.0) >= throughput.MIN_HOST_WAIT_SHARE
    compute = format_fact("gpu_compute_share", gpu["gpu_compute_share"] or 0.0)
    kernels = f"; a step starts {gpu['gpu_kernels_per_step'] or 0:.0f} kernels, and the GPU computes {compute} of it"
    return {
        "names": part.names, "points": part.share.value, "overhead_s": part.step_s.value,
        "samples": losses.samples_per_device(result), "ideal_s": run.attribution.ideal_s,
        "work": "Lightning's Trainer runs its loop and its hooks" if lightning
                else f"{result.scale.strategy} does its work",
        "limit": ", and the host is the limit: the GPU waits for all that it does" if host_limits else "",
        "fewer_hooks": "fewer callbacks, loggers and progress bars, or " if lightning else "",
        "kernels": kernels if host_limits else "",
    }  # fmt: skip


def collect_contention_facts(run: AttributedRun) -> Facts:
    """Threads, cores and clocks, and what forward and backward take in company and alone."""
    result, alone = run.result, run.references.self_local
    machine, nodes, gpus = result.machine, result.scale.nodes, result.scale.gpus
    threads = [rank.threads for rank in result.ranks if rank.threads is not None]
    quota = None if machine.cpu_quota is None or machine.cpu_quota >= machine.cpus else machine.cpu_quota
    cores = nodes * (machine.cpus if quota is None else quota)
    is_flagged = "oversubscribed" in run.flags
    many = f"{sum(threads)} threads of {len(threads)} processes" if len(threads) == gpus else f"{gpus} devices"
    clock, alone_clock = (None if each is None else each.monitor.sm_clock_mhz_mean for each in (result, alone))
    both = None if clock is None or alone_clock is None else (clock, alone_clock)
    clocks = [] if both is None else ["{:.0f} MHz here, {:.0f} MHz on one device".format(*both)]
    reasons = result.monitor.throttle_reasons
    clocks += [f"throttle reasons: {' '.join(reasons)}"] if reasons else []
    return {
        "has_alone": alone is not None, "device": result.scale.device, "cpu_share": result.monitor.cpu_util_mean,
        "is_oversubscribed": bool(threads) and (is_flagged or sum(threads) > cores),
        "flagged": ", flagged oversubscribed" if is_flagged else "",
        "many": many, "quota": quota, "node_cores": machine.cpus, "cores": machine.cpus * nodes,
        "together_s": _computing_s(result), "alone_s": None if alone is None else _computing_s(alone),
        "is_slower_clock": both is not None and both[0] < 0.98 * both[1],
        "is_throttled": "throttled" in run.flags, "clocks": "; ".join(clocks) or "flagged throttled",
    }  # fmt: skip


def collect_data_facts(run: AttributedRun) -> Facts:
    """Return what loading takes in each step, beside other ranks and alone, and how batches are fed."""
    from scalebench.workloads import datasets  # slow to import, for one word

    workload, read_bytes = run.result.workload, run.result.monitor.disk_read_bytes_per_s
    together, one_device = step_breakdown.figure(run.result, "data_s"), run.references.self_local
    alone = None if one_device is None else step_breakdown.figure(one_device, "data_s")
    is_lazy, is_slower = workload.prefetch == "none", False
    if together is not None and alone is not None and alone.value > 0:
        is_slower = combine({"together": 1.0, "alone": -1.5}, {"together": together, "alone": alone}).low > 0
    reasons = {"decoding": datasets.decodes_in_training(workload.dataset),
               "company": is_slower, "no prefetch": is_lazy}  # fmt: skip
    return {
        "together_s": together and together.value,
        "beside": "" if alone is None else f", {format_seconds(alone.value)} on one device",
        "read": "" if read_bytes is None else f", {format_bytes(read_bytes)}/s read from disk",
        "reason": next((reason for reason, holds in reasons.items() if holds), None),
        "lazy": ", nothing is prefetched" if is_lazy else "",
        "queue": ", or dataset.prefetch=queue, which draws batches during the steps" if is_lazy else "",
    }  # fmt: skip


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
    monitor, flags = run.result.monitor, [flag for flag in DRIFT_FLAGS if flag in run.flags]
    evidence = [f"flagged {', '.join(flags)}"]
    if "busy_machine" in flags and monitor.cpu_cores_others_mean is not None:
        evidence.append(f"{monitor.cpu_cores_others_mean:.2g} cores in use by others")
    if "swapping" in flags and monitor.swap_in_bytes is not None and monitor.swap_out_bytes is not None:
        evidence.append(f"{format_bytes(monitor.swap_in_bytes + monitor.swap_out_bytes)} swapped")
    meanings = ", ".join(read_doubt(flag) for flag in flags)
    return {"meanings": meanings or None, "evidence": ", ".join(evidence)}


def collect_transfer_facts(run: AttributedRun) -> Facts:
    """Messages, their time within a step and in isolation, and the links that they take."""
    result, sizes = run.result, run.result.sync.message_bytes
    columns = {"exposed": "sync_exposed_s", "isolated": "sync_isolated_s", "wait": "imbalance_s",
               "backward": "backward_s"}  # fmt: skip
    facts: Facts = {name: step_breakdown.figure(result, column) for name, column in columns.items()}
    options = result.spec.get("strategy", {}).get("options") or {}
    name = next((name for name in ("bucket_cap_mb", "fusion_threshold_mb") if name in options), None)
    option = "" if name is None else f"strategy.options.{name}, now {options[name]:g})"
    facts |= {
        "messages": len(sizes) or None, "noun": "message" if len(sizes) == 1 else "messages",
        "sum_bytes": sum(sizes), "mean_bytes": sum(sizes) / len(sizes) if sizes else None,
        "lower": option and f" (lower {option}",
        "fewer": "Try a" if len(sizes) == 1 else f"Try fewer, larger messages{option and ' (raise ' + option}, or a",
        "compress": "strategy.options.compression=fp16, " if options.get("compression") == "none" else "",
        "backward_s": facts["backward"] and facts["backward"].value, "rival": None, "usage": _compare_usage(run),
    }  # fmt: skip
    if facts["exposed"] and facts["isolated"]:
        isolated_s = facts["isolated"].value
        facts |= {"isolated_s": isolated_s, "each_s": isolated_s / (len(sizes) or 1)}
        facts["transfer_s"] = facts["exposed"].value - (facts["wait"].value if facts["wait"] else 0.0)
        facts["ring_bytes"] = ring_bytes(sum(sizes), result.scale.gpus) / isolated_s if isolated_s > 0 else None
    return facts | _find_faster_reduction(run)


def _find_faster_reduction(run: AttributedRun) -> Facts:
    """Find the fastest strategy that reduces on the CPU and surely is faster than NCCL here, where GPUs have no direct
    link."""
    machine, row = run.result.machine, run.row

    def reduces_on_cpu(other: Mapping[str, Any]) -> bool:
        strategy = read_result(Path(other["path"]) / RESULT_FILE).spec.get("strategy", {})
        return other.get("backend_used") == "gloo" or strategy.get("reduces_on") == "cpu"

    links = {link for device in machine.topology or [] for link in device if link != "X"}
    reads = [access for device in (machine.peer_access or {}).get("read") or [] for access in device]
    is_direct = any(link.startswith("NV") for link in links) or (reads and all(each in ("OK", "X") for each in reads))
    if row is None or "nccl" not in (run.result.scale.backend_used or "").lower() or not links or is_direct:
        return {}
    others = [other for other in run.similar_rows(*SHARED_COLUMNS, "framework", "gpus", "global_batch") if other[RATE]]
    faster = [other for other in others if decide_ratio(other, row, run.configurations.estimate_ratio).low > 1]
    best = max(filter(reduces_on_cpu, faster), key=lambda other: float(other[RATE]), default=None)
    peers = "" if machine.peer_access is None else ", no peer access between all"
    return {} if best is None else {
        "rival": best["strategy"],
        "rates": f"{float(best[RATE]):,.0f} samples/s, this {float(row[RATE]):,.0f}",
        "links": f"no NVLink (GPUs connected by {', '.join(sorted(links))}){peers}",
    }  # fmt: skip


def _compare_usage(run: AttributedRun) -> str | None:
    """Compare usage with that of fewer devices; None unless utilization rises while power and speedup do not."""
    row = run.row
    similar = run.similar_rows(*SHARED_COLUMNS, "strategy", "options")
    for before in sorted(similar, key=lambda other: -int(other["gpus"])):
        values = [either.get(name) for either in (row or {}, before) for name in USAGE_COLUMNS]
        if row is None or before["gpus"] >= row["gpus"] or None in values:
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
    "batch": collect_batch_facts, "wrapper": collect_overhead_facts, "contention": collect_contention_facts,
    "data": collect_data_facts, "imbalance": collect_imbalance_facts, "drift": collect_drift_facts,
    "communication": collect_transfer_facts,
}  # fmt: skip
