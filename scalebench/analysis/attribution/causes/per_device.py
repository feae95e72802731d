"""Causes that each device has by itself: small updates, a wrapper, shared cores and clocks, slow loading. Layer 1."""

from __future__ import annotations

from scalebench.analysis import update_breakdown
from scalebench.analysis.attribution.causes.cause import Case, Cause, percent, seconds, size
from scalebench.analysis.attribution.components import of_updates, share_of_device
from scalebench.core.result import Result

CONSTANT = 0.5  # of a small update that does not depend on its batch, from which on launches rule
SLOWER = 1.05  # times as long, from which on computing is slower in company
CLOCKS = 0.98  # of the mean clock on one device
OF_TIME = 0.05  # flags of the monitor count from this share of the samples on
BUSY = 0.9  # of the cores of a GPU's host
DOUBLED = 1.5


def launch_latency(case: Case) -> Cause | None:
    """Two batches on one bare device give t(b) = t0 + c b; t0 is what launching costs, whatever the batch."""
    # Source: thesis (P. Orlob, "Parallelization of GPUs based on Horovod"): the epoch shortens sharply up to a batch of
    # 700 and levels off there; at 75 the GPUs are hardly used.
    if case.worth("batch") is None or case.bare_full is None or case.bare_local is None:
        return None
    large, small = case.bare_full.scale.global_batch, share_of_device(case.result)
    large_s, small_s = of_updates(case.bare_full, large), of_updates(case.bare_local, small)
    if large_s is None or small_s is None or small >= large:
        return None
    constant_s = (small_s.value - small / large * large_s.value) / (1 - small / large)
    if constant_s < CONSTANT * small_s.value:
        return None
    return Cause(
        "batch",
        "an update takes nearly as long with a small batch as with a large one: starting it costs more than computing",
        "Try a larger train.global_batch with the learning rate scaled to it, or train.compile=true, which starts "
        "fewer kernels; fewer devices lose less",
        f"on one bare device {small:.0f} samples take {seconds(small_s.value)}, {large} take {seconds(large_s.value)}: "
        f"{percent(constant_s / small_s.value)} of the smaller update does not depend on its batch",
    )


def small_kernels(case: Case) -> Cause | None:
    """Forward and backward of a sample take longer in a small batch, though launching does not rule."""
    # Source: thesis, as above ("bigger matrices, efficiently parallelized on GPUs").
    if case.worth("batch") is None or case.bare_full is None or case.bare_local is None or launch_latency(case):
        return None
    large_s, small_s = (_computing_s(one) for one in (case.bare_full, case.bare_local))
    if large_s is None or small_s is None:
        return None
    large_s, small_s = (
        large_s / case.bare_full.scale.global_batch, small_s / case.bare_local.scale.global_batch
    )  # fmt: skip
    if small_s < SLOWER * large_s:
        return None
    return Cause(
        "batch",
        "a device computes a sample more slowly in a small batch, which fills it less",
        "Try a larger train.global_batch with the learning rate scaled to it, or weak scaling",
        f"forward and backward take {seconds(small_s)} a sample with the local batch, {seconds(large_s)} with the "
        "full one",
    )


def wrapper(case: Case) -> Cause | None:
    """What a strategy does at each update of one device does not grow with the batch."""
    # Source: thesis (Horovod costs 17 % on one GPU); Lightning's Trainer took about 20 % of the materials CNN at a
    # batch of 75 where this program was written.
    part = case.worth("overhead")
    if part is None or len(part.names) > 1 or part.share.value < 2 * OF_TIME:
        return None
    name, samples = case.result.scale.strategy, share_of_device(case.result)
    doing = (
        "Lightning's Trainer runs its loop and its hooks" if name.startswith("lightning") else f"{name} does its work"
    )
    less = "fewer callbacks, loggers and progress bars, or " if name.startswith("lightning") else ""
    return Cause(
        "overhead",
        f"{doing} at each update, however small its batch",
        f"Try {less}a larger train.batch_per_device: what it costs does not grow with the batch",
        f"{seconds(part.step_s.value)} an update of {samples:g} samples on one device, beside "
        f"{seconds(case.ladder.ideal_s)} without it",
    )


def oversubscribed(case: Case) -> Cause | None:
    # Source: PyTorch's and Horovod's guides (threads x processes no more than cores); flag of placing.py.
    if case.worth("contention") is None:
        return None
    threads = [rank.threads for rank in case.result.ranks if rank.threads is not None]
    cores = case.result.machine.cpus * case.result.scale.nodes
    crowded = "oversubscribed" in case.flags
    if not threads or not (crowded or sum(threads) > cores):
        return None
    flagged = ", flagged oversubscribed" if crowded else ""
    per_device = len(threads) == case.result.scale.gpus
    what = f"{sum(threads)} threads of {len(threads)} processes" if per_device else f"{case.result.scale.gpus} devices"
    return Cause(
        "contention",
        "there are more threads or devices than cores, so that they take turns on them",
        "Try fewer devices on a node, or a smaller hardware.cpus_per_device",
        f"{what} on {cores} cores{flagged}",
    )


def shared_memory(case: Case) -> Cause | None:
    """Workers on CPUs compute more slowly beside each other, though each has its cores."""
    # Source: McCalpin 1995, "Memory bandwidth and machine balance in current high performance computers" (STREAM).
    if (
        case.worth("contention") is None
        or case.result.scale.device != "cpu"
        or case.own is None
        or oversubscribed(case)
    ):
        return None
    mine_s, alone_s = _computing_s(case.result), _computing_s(case.own)
    if mine_s is None or alone_s is None or mine_s < SLOWER * alone_s:
        return None
    return Cause(
        "contention",
        "workers on one machine share its memory's bandwidth, its caches and the heat of its processors",
        "Try fewer workers on a machine, more machines, or hardware.bind=numa if it is not set",
        f"forward and backward take {seconds(mine_s)} here, {seconds(alone_s)} on one device alone",
    )


def lower_clocks(case: Case) -> Cause | None:
    # Source: keras-multi-gpu's measurements (memory clocks 5 % lower, up to 15 % less throughput).
    if case.worth("contention") is None or case.own is None:
        return None
    mine, alone = case.result.monitor.sm_clock_mhz_mean, case.own.monitor.sm_clock_mhz_mean
    slower = mine is not None and alone is not None and mine < CLOCKS * alone
    if not slower and "throttled" not in case.flags:
        return None
    told = [f"{mine:.0f} MHz here, {alone:.0f} MHz on one device"] if mine is not None and alone is not None else []
    told += [f"throttle reasons: {' '.join(reasons)}"] if (reasons := case.result.monitor.throttle_reasons) else []
    return Cause(
        "contention",
        "devices run at lower clocks together than one does alone: a limit of power or of heat",
        "Look at power limit and cooling (scalebench doctor); measure.cool_down_s pauses before each run",
        "; ".join(told) or "flagged throttled",
    )


def busy_host(case: Case) -> Cause | None:
    # Source: Mohan et al. 2021, "Analyzing and mitigating data stalls in DNN training" (hosts with too few cores).
    used = case.result.monitor.cpu_util_mean
    if case.worth("contention") is None or case.result.scale.device != "cuda" or used is None or used < BUSY:
        return None
    return Cause(
        "contention",
        "the cores that start the GPUs' work are busy themselves",
        "Try more cores a device (hardware.cpus_per_device) or a feed that costs none (dataset.feed=device)",
        f"{percent(used)} of the cores of the run are in use",
    )


def loading(case: Case) -> Cause | None:
    # Source: tf.data's guide ("Better performance with the tf.data API": prefetching overlaps loading with training);
    # Murray et al. 2021, "tf.data: a machine learning data processing framework".
    own = None if case.own is None else update_breakdown.data(case.own)
    mine, workload, monitor = update_breakdown.data(case.result), case.result.workload, case.result.monitor
    if case.worth("data") is None or mine is None:
        return None
    figures = [f"{seconds(mine.value)} an update" + ("" if own is None else f", {seconds(own.value)} on one device")]
    if workload.feed == "disk":
        if monitor.disk_read_bytes_per_s is not None:
            figures.append(f"{size(monitor.disk_read_bytes_per_s)}/s read from disk")
        why, remedy = (
            "devices share the disk that each batch is read from",
            "Try dataset.feed=host, or device where it fits",
        )
    elif own is not None and mine.low > DOUBLED * own.high > 0:
        why, remedy = "loading is slower in company: devices share the cores that do it", "Try dataset.feed=device"
    elif workload.prefetch == "none":
        why, remedy = "each batch is drawn while its device waits", "Try dataset.feed=device"
    else:
        return None
    if workload.prefetch == "none":
        figures.append("nothing is prefetched")
        remedy += ", or dataset.prefetch=queue, which draws batches beside the updates"
    return Cause("data", why, remedy, ", ".join(figures))


def _computing_s(result: Result) -> float | None:
    """Seconds of forward and backward of one update."""
    parts = [update_breakdown.forward(result), update_breakdown.backward(result)]
    known = [part.value for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


CHECKS = (
    launch_latency, small_kernels, wrapper, oversubscribed, shared_memory, lower_clocks, busy_host, loading,
)  # fmt: skip
