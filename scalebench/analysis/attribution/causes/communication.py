"""Causes of exposed synchronization: its messages, what it could overlap with, and the links that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalebench.analysis import step_breakdown
from scalebench.analysis.attribution.causes.cause import AttributedRun, Cause, format_whole_percent
from scalebench.analysis.verdicts import decide_ratio
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.units import format_bytes, format_seconds

MIN_EXPOSED_SHARE = 0.8  # of the isolated synchronization
MAX_SMALL_MESSAGE_BYTES, MIN_LARGE_MESSAGE_BYTES = 256e3, 1e6  # on average
MIN_UTILIZATION_RISE, MAX_POWER_RATIO = 0.15, 1.05  # power of one device
USAGE_COLUMNS = ("gpu_util_mean", "gpu_power_w_mean", "speedup_self")
SHARED_COLUMNS = ("model", "dataset", "hardware", "scaling", "precision", "feed")


def check_single_message(run: AttributedRun) -> Cause | None:
    # Source: Li et al. 2020, "PyTorch Distributed: experiences on accelerating data parallel training" (buckets are
    # synchronized while the rest of the backward pass runs).
    times = _transfer_s(run)
    if times is None or len(run.result.sync.message_bytes) != 1:
        return None
    exposed_s, isolated_s = times
    if exposed_s < MIN_EXPOSED_SHARE * isolated_s:
        return None
    return Cause(
        "transfer",
        "all gradients travel in one message when the backward pass is over, so that nothing overlaps",
        f"Try smaller messages{_message_size_option(run.result, 'lower')}",
        f"1 message of {format_bytes(sum(run.result.sync.message_bytes))}, {format_seconds(exposed_s)} exposed, "
        f"{format_seconds(isolated_s)} in isolation",
    )


def check_sync_slower_in_training(run: AttributedRun) -> Cause | None:
    # Source: Rashidi et al. 2021, "Enabling compute-communication overlap in distributed deep learning training
    # platforms" (both compete for cores and memory bandwidth).
    isolated, times = step_breakdown.isolated_sync(run.result), _transfer_s(run)
    exposed, wait = step_breakdown.exposed_sync(run.result), step_breakdown.imbalance(run.result)
    if times is None or isolated is None or exposed is None or wait is None:
        return None
    parts = {"exposed": exposed, "wait": wait, "isolated": isolated}
    if combine({"exposed": 1.0, "wait": -1.0, "isolated": -1.0}, parts).low <= 0:
        return None
    return Cause(
        "transfer",
        "gradient synchronization costs more within training than in isolation: both want the same cores or the same "
        "memory",
        "Try fewer threads (hardware.cpus_per_device), or a backend that does not use the cores of the model",
        f"{format_seconds(times[0])} of the step without the imbalance, {format_seconds(times[1])} in isolation",
    )


def check_sync_longer_than_backward(run: AttributedRun) -> Cause | None:
    # Source: Li et al. 2020, as above (only the backward pass hides synchronization); thesis (fewer of them an epoch
    # with larger batches).
    isolated, backward = step_breakdown.isolated_sync(run.result), step_breakdown.backward_pass(run.result)
    if _transfer_s(run) is None or isolated is None or backward is None:
        return None
    if combine({"isolated": 1.0, "backward": -1.0}, {"isolated": isolated, "backward": backward}).low <= 0:
        return None
    return Cause(
        "transfer",
        "gradient synchronization takes longer than the backward pass that it could overlap with",
        "Try a larger train.batch_per_device: the pass grows with it, the messages do not, and an epoch has fewer",
        f"{format_seconds(isolated.value)} in isolation, a backward pass of {format_seconds(backward.value)}",
    )


def check_small_messages(run: AttributedRun) -> Cause | None:
    # Source: Hockney 1994, "The communication challenge for MPP" (t = latency + bytes / bandwidth); Sergeev and Del
    # Balso 2018, "Horovod: fast and easy distributed deep learning in TensorFlow" (tensor fusion).
    times, messages = _transfer_s(run), run.result.sync.message_bytes
    if times is None or not messages or sum(messages) / len(messages) > MAX_SMALL_MESSAGE_BYTES:
        return None
    several = len(messages) > 1
    fewer = f"Try fewer, larger messages{_message_size_option(run.result, 'raise')}, or a" if several else "Try a"
    return Cause(
        "transfer",
        "messages are so small that their latency takes longer than their bytes",
        f"{fewer} larger train.batch_per_device, with fewer synchronizations an epoch",
        f"{len(messages)} {'messages' if several else 'message'} of {format_bytes(sum(messages) / len(messages))}, "
        f"{format_seconds(times[1] / len(messages))} each in isolation",
    )


def check_large_messages(run: AttributedRun) -> Cause | None:
    # Source: Hockney 1994, as above; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    # workstations" (a ring moves 2 (N - 1) / N of the bytes over each link).
    times, messages = _transfer_s(run), run.result.sync.message_bytes
    if times is None or not messages or sum(messages) / len(messages) < MIN_LARGE_MESSAGE_BYTES or times[1] <= 0:
        return None
    gpus = run.result.scale.gpus
    bytes_per_s = 2 * (gpus - 1) / gpus * sum(messages) / times[1]
    options = run.result.spec.get("strategy", {}).get("options") or {}
    fewer_bytes = "strategy.options.compression=fp16, " if options.get("compression") == "none" else ""
    return Cause(
        "transfer",
        "large messages saturate the links between devices",
        f"Try {fewer_bytes}a larger train.batch_per_device, or a faster link between them (sweep=placement, "
        "sweep=transport)",
        f"{format_bytes(sum(messages))} in {len(messages)} take {format_seconds(times[1])} in isolation, "
        f"{format_bytes(bytes_per_s)}/s on each link of a ring",
    )


def check_nccl_without_links(run: AttributedRun) -> Cause | None:
    """Check if NCCL is slower than a reduction on the CPU where GPUs are not connected directly."""
    # Source: parallel-strategies-benchmark-tensorflow2 (P. Schubert): four and eight 2080 Ti, NCCL slower than
    # ReductionToOneDevice on the CPU; its author suspected the missing NVLink.
    machine, row = run.result.machine, run.row()
    uses_nccl = "nccl" in (run.result.scale.backend_used or "").lower()
    if run.significant("transfer") is None or row is None or not uses_nccl:
        return None
    links = [link for device in machine.topology or [] for link in device if link != "X"]
    if not links or any(link.startswith("NV") for link in links) or _has_full_peer_access(run.result):
        return None
    rows = run.similar_rows(*SHARED_COLUMNS, "framework", "gpus", "global_batch")
    rivals = [other for other in rows if other["throughput_samples_per_s"]]
    faster = [other for other in rivals if decide_ratio(other, row, run.configurations.estimate_ratio).low > 1]
    faster = [other for other in faster if _reduces_on_cpu(other)]
    if not faster:
        return None
    best = max(faster, key=lambda row: float(row["throughput_samples_per_s"]))
    peers = "" if machine.peer_access is None else ", no peer access between all"
    return Cause(
        "transfer",
        "NCCL has no direct link between these GPUs and goes through host memory, where the CPU could reduce at once",
        f"Try strategy={best['strategy']}; sweep=transport measures each way between the GPUs",
        f"{best['strategy']} {float(best['throughput_samples_per_s']):,.0f} samples/s, this "
        f"{float(row['throughput_samples_per_s']):,.0f}; no NVLink (GPUs connected by "
        f"{', '.join(sorted(set(links)))}){peers}",
    )


def check_waiting_kernels(run: AttributedRun) -> Cause | None:
    """Check if utilization rises with devices while power and speedup per device do not."""
    # Source: thesis (with NCCL utilisation jumps when a second node is used, without a trace in power or speedup).
    row = run.row()
    if run.significant("transfer") is None or row is None:
        return None
    fewer = [other for other in run.similar_rows(*SHARED_COLUMNS, "strategy", "options") if other["gpus"] < row["gpus"]]
    for before in sorted(fewer, key=lambda other: -int(other["gpus"])):
        values = [either.get(name) for either in (row, before) for name in USAGE_COLUMNS]
        if any(value is None for value in values):
            continue
        util, watts, speedup, util0, watts0, speedup0 = (float(value or 0) for value in values)
        each, each0 = watts / row["gpus"], watts0 / before["gpus"]
        scales = speedup / row["gpus"] > speedup0 / before["gpus"]
        if util < util0 + MIN_UTILIZATION_RISE or each > MAX_POWER_RATIO * each0 or scales:
            continue
        share = row.get("collective_kernel_share")
        kernels = "" if share is None else f"; collective operations are {format_whole_percent(share)} of kernel time"
        return Cause(
            "transfer",
            "the backend waits for other devices within a kernel, which utilization counts as work",
            "Do not read utilization here but imbalance and exposed synchronization; compare another backend",
            f"from {before['gpus']} to {row['gpus']} devices utilization goes from {format_whole_percent(util0)} to "
            f"{format_whole_percent(util)}, power per device from {each0:.0f} to {each:.0f} W, speedup from "
            f"{speedup0:.2f} to {speedup:.2f}{kernels}",
        )
    return None


def _transfer_s(run: AttributedRun) -> tuple[float, float] | None:
    """Return (exposed without the imbalance, isolated) seconds if the part is significant."""
    exposed, isolated = step_breakdown.exposed_sync(run.result), step_breakdown.isolated_sync(run.result)
    if run.significant("transfer") is None or exposed is None or isolated is None:
        return None
    wait = step_breakdown.imbalance(run.result)
    return exposed.value - (0.0 if wait is None else wait.value), isolated.value


def _message_size_option(result: Result, change: str) -> str:
    """Name the option that sets how gradients are fused, if the strategy has one."""
    options = result.spec.get("strategy", {}).get("options") or {}
    name = next((name for name in ("bucket_cap_mb", "fusion_threshold_mb") if name in options), None)
    return "" if name is None else f" ({change} strategy.options.{name}, now {options[name]:g})"


def _has_full_peer_access(result: Result) -> bool:
    read = (result.machine.peer_access or {}).get("read")
    return bool(read) and all(access in ("OK", "X") for row in read or [] for access in row)


def _reduces_on_cpu(row: Mapping[str, Any]) -> bool:
    if row.get("backend_used") == "gloo":
        return True
    result = read_result(Path(row["path"]) / RESULT_FILE)
    return bool(result.spec.get("strategy", {}).get("reduces_on") == "cpu")


COMMUNICATION_CHECKS = (
    check_single_message, check_sync_slower_in_training, check_sync_longer_than_backward, check_small_messages,
    check_large_messages, check_nccl_without_links, check_waiting_kernels,
)  # fmt: skip
