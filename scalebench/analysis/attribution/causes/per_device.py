"""Causes that lie in each device: small steps, a wrapper, shared cores and clocks, slow loading."""

from __future__ import annotations

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.attribution.causes.cause import AttributedRun, Cause, format_whole_percent
from scalebench.analysis.attribution.components import estimate_step_s
from scalebench.analysis.attribution.reference_runs import samples_per_device
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate
from scalebench.core.units import format_bytes, format_seconds

MIN_CONSTANT_SHARE = 0.5  # of a small step that does not depend on its batch: from here on launching dominates
MIN_TIME_RATIO = 1.05  # from here on devices compute more slowly together
MAX_CLOCK_RATIO = 0.98  # of the mean clock on one device
MIN_OVERHEAD_SHARE = 0.1  # points of efficiency
MIN_CPU_UTILIZATION = 0.9  # of the cores of a GPU's host
MIN_LOADING_RATIO = 1.5


def check_launch_latency(run: AttributedRun) -> Cause | None:
    """Check the constant part of t(b) = t0 + c b from two batches on one bare device: t0 is the cost of launching."""
    # Source: thesis (P. Orlob, "Parallelization of GPUs based on Horovod"): the epoch shortens sharply up to a batch of
    # 700 and levels off there; at 75 the GPUs are hardly used.
    full, local = run.references.bare_full, run.references.bare_local
    if run.significant("batch") is None or full is None or local is None:
        return None
    large, small = full.scale.samples_per_step, samples_per_device(run.result)
    large_s, small_s = estimate_step_s(full, large), estimate_step_s(local, small)
    if large_s is None or small_s is None or small >= large:
        return None
    constant_s = (small_s.value - small / large * large_s.value) / (1 - small / large)
    if constant_s < MIN_CONSTANT_SHARE * small_s.value:
        return None
    return Cause(
        "batch",
        "a step takes nearly as long with a small batch as with a large one: launching it costs more than computing",
        "Try a larger train.global_batch with the learning rate scaled to it, or train.compile=true, which starts "
        "fewer kernels; fewer devices lose less",
        f"on one bare device {small:.0f} samples take {format_seconds(small_s.value)}, {large} take "
        f"{format_seconds(large_s.value)}: {format_whole_percent(constant_s / small_s.value)} of the smaller step does "
        "not depend on its batch",
    )


def check_small_kernels(run: AttributedRun) -> Cause | None:
    """Check if forward and backward of a sample take longer in a small batch, though launching does not dominate."""
    # Source: thesis, as above ("bigger matrices, efficiently parallelized on GPUs").
    full, local = run.references.bare_full, run.references.bare_local
    if run.significant("batch") is None or full is None or local is None or check_launch_latency(run):
        return None
    full_s, local_s = _computing_s(full), _computing_s(local)
    if full_s is None or local_s is None:
        return None
    full_sample_s, local_sample_s = full_s / full.scale.samples_per_step, local_s / local.scale.samples_per_step
    if local_sample_s < MIN_TIME_RATIO * full_sample_s:
        return None
    return Cause(
        "batch",
        "a device computes a sample more slowly in a small batch, which fills it less",
        "Try a larger train.global_batch with the learning rate scaled to it, or weak scaling",
        f"forward and backward take {format_seconds(local_sample_s)} per sample with the local batch, "
        f"{format_seconds(full_sample_s)} with the full one",
    )


def check_wrapper_overhead(run: AttributedRun) -> Cause | None:
    """Check the overhead on one device, which does not grow with the batch."""
    # Source: thesis (Horovod costs 17 % on one GPU); Lightning's Trainer took about 20 % of the materials CNN at a
    # batch of 75 where this program was written.
    part = run.significant("overhead")
    if part is None or len(part.names) > 1 or part.share.value < MIN_OVERHEAD_SHARE:
        return None
    name, samples = run.result.scale.strategy, samples_per_device(run.result)
    lightning = "pytorch_lightning" in (run.result.spec.get("strategy", {}).get("requires") or ())
    work = "Lightning's Trainer runs its loop and its hooks" if lightning else f"{name} does its work"
    less = "fewer callbacks, loggers and progress bars, or " if lightning else ""
    evidence = (
        f"{format_seconds(part.step_s.value)} in a step of {samples:g} samples on one device, which takes "
        f"{format_seconds(run.attribution.ideal_s)} without it"
    )
    limit, gpu = "", step_breakdown.gpu_cells(run.result, throughput.step_s(run.result))
    if (gpu["host_wait_share"] or 0.0) >= throughput.MIN_HOST_WAIT_SHARE:
        limit = ", and the host is the limit: the GPU waits for all that it does"
        evidence += f"; a step starts {gpu['gpu_kernels_per_step']:.0f} kernels, and the GPU computes "
        evidence += f"{format_whole_percent(gpu['gpu_compute_share'] or 0.0)} of it"
    return Cause(
        "overhead",
        f"{work} at each step, however small its batch{limit}",
        f"Try {less}a larger train.batch_per_device: the overhead does not grow with the batch",
        evidence,
    )


def check_oversubscription(run: AttributedRun) -> Cause | None:
    # Source: PyTorch's and Horovod's guides (threads x processes no more than cores); the flag is that of placement.
    if run.significant("contention") is None:
        return None
    result = run.result
    threads = [rank.threads for rank in result.ranks if rank.threads is not None]
    cores, quota = result.machine.cpus * result.scale.nodes, result.machine.cpu_quota
    is_limited = quota is not None and quota < result.machine.cpus
    cpu_time = quota * result.scale.nodes if quota is not None and is_limited else cores
    is_flagged = "oversubscribed" in run.flags
    if not threads or not (is_flagged or sum(threads) > cpu_time):
        return None
    per_device = len(threads) == result.scale.gpus
    users = f"{sum(threads)} threads of {len(threads)} processes" if per_device else f"{result.scale.gpus} devices"
    flagged = ", flagged oversubscribed" if is_flagged else ""
    if is_limited:
        return Cause(
            "contention",
            f"a quota, as that of a container, gives them the time of {quota:g} CPUs, however many cores there are",
            "Try fewer devices, or a higher limit of CPU time (docker --cpus, limits.cpu of a pod)",
            f"{users} with the time of {quota:g} CPUs on each node of {result.machine.cpus} cores{flagged}",
        )
    return Cause(
        "contention",
        "there are more threads or devices than cores, so that they take turns on them",
        "Try fewer devices on a node, or a smaller hardware.cpus_per_device",
        f"{users} on {cores} cores{flagged}",
    )


def check_shared_memory(run: AttributedRun) -> Cause | None:
    """Check if workers on CPUs compute more slowly together, though each has its cores."""
    # Source: McCalpin 1995, "Memory bandwidth and machine balance in current high performance computers" (STREAM).
    one_device = run.references.self_local
    if run.significant("contention") is None or run.result.scale.device != "cpu" or one_device is None:
        return None
    together_s, alone_s = _computing_s(run.result), _computing_s(one_device)
    if together_s is None or alone_s is None or together_s < MIN_TIME_RATIO * alone_s or check_oversubscription(run):
        return None
    return Cause(
        "contention",
        "workers on one machine share its memory's bandwidth, its caches and the heat of its processors",
        "Try fewer workers on a machine, more machines, or hardware.bind=numa if it is not set",
        f"forward and backward take {format_seconds(together_s)} here, {format_seconds(alone_s)} on one device alone",
    )


def check_lower_clocks(run: AttributedRun) -> Cause | None:
    # Source: keras-multi-gpu's measurements (memory clocks 5 % lower, up to 15 % less throughput).
    one_device = run.references.self_local
    if run.significant("contention") is None or one_device is None:
        return None
    together, alone = run.result.monitor.sm_clock_mhz_mean, one_device.monitor.sm_clock_mhz_mean
    slower = together is not None and alone is not None and together < MAX_CLOCK_RATIO * alone
    if not slower and "throttled" not in run.flags:
        return None
    evidence = []
    if together is not None and alone is not None:
        evidence.append(f"{together:.0f} MHz here, {alone:.0f} MHz on one device")
    if reasons := run.result.monitor.throttle_reasons:
        evidence.append(f"throttle reasons: {' '.join(reasons)}")
    return Cause(
        "contention",
        "devices run at lower clocks together than one does alone: a limit of power or of heat",
        "Look at power limit and cooling (scalebench doctor); measure.cool_down_s pauses before each run",
        "; ".join(evidence) or "flagged throttled",
    )


def check_busy_host(run: AttributedRun) -> Cause | None:
    # Source: Mohan et al. 2021, "Analyzing and mitigating data stalls in DNN training" (hosts with too few cores).
    used = run.result.monitor.cpu_util_mean
    if run.significant("contention") is None or run.result.scale.device != "cuda":
        return None
    if used is None or used < MIN_CPU_UTILIZATION:
        return None
    return Cause(
        "contention",
        "the cores that start the GPUs' work are busy themselves",
        "Try more cores a device (hardware.cpus_per_device) or a feed that costs none (dataset.feed=device)",
        f"{format_whole_percent(used)} of the cores of the run are in use",
    )


def check_loading(run: AttributedRun) -> Cause | None:
    from scalebench.workloads import datasets  # slow to import, for one word

    # Source: tf.data's guide ("Better performance with the tf.data API": prefetching overlaps loading with training);
    # Murray et al. 2021, "tf.data: a machine learning data processing framework".
    one_device = run.references.self_local
    alone = None if one_device is None else step_breakdown.data_loading(one_device)
    together, workload, monitor = step_breakdown.data_loading(run.result), run.result.workload, run.result.monitor
    if run.significant("data") is None or together is None:
        return None
    evidence = f"{format_seconds(together.value)} a step"
    evidence += "" if alone is None else f", {format_seconds(alone.value)} on one device"
    if workload.feed == "disk":
        if monitor.disk_read_bytes_per_s is not None:
            evidence += f", {format_bytes(monitor.disk_read_bytes_per_s)}/s read from disk"
        cause = "devices share the disk that each batch is read from"
        remedy = "Try dataset.feed=host, or device where it fits"
    elif datasets.decodes_in_training(workload.dataset):
        cause = "pictures are decoded more slowly than the devices train"
        remedy = "Try more cores a device (hardware.cpus_per_device) with as many dataset.workers, or dataset=imagenet"
        return Cause("data", cause, remedy, evidence)
    elif alone is not None and _loads_more_slowly(together, alone):
        cause = "several devices load more slowly than one: they share the cores that do it"
        remedy = "Try dataset.feed=device"
    elif workload.prefetch == "none":
        cause, remedy = "each batch is drawn while its device waits", "Try dataset.feed=device"
    else:
        return None
    if workload.prefetch == "none":
        evidence += ", nothing is prefetched"
        remedy += ", or dataset.prefetch=queue, which draws batches during the steps"
    return Cause("data", cause, remedy, evidence)


def _loads_more_slowly(together: Estimate, alone: Estimate) -> bool:
    terms = {"together": 1.0, "alone": -MIN_LOADING_RATIO}
    return alone.value > 0 and combine(terms, {"together": together, "alone": alone}).low > 0


def _computing_s(result: Result) -> float | None:
    """Return the seconds of forward and backward of one step."""
    forward, backward = step_breakdown.forward_pass(result), step_breakdown.backward_pass(result)
    return None if forward is None or backward is None else forward.value + backward.value


PER_DEVICE_CHECKS = (
    check_launch_latency, check_small_kernels, check_wrapper_overhead, check_oversubscription, check_shared_memory,
    check_lower_clocks, check_busy_host, check_loading,
)  # fmt: skip
