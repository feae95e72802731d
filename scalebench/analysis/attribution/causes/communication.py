"""Causes of exposed exchange: what it is made of, what it could hide behind, and which way it takes. Layer 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalebench.analysis import update_breakdown
from scalebench.analysis.attribution.causes.cause import Case, Cause, percent, seconds, size
from scalebench.core.result import Result

ALL_EXPOSED = 0.8  # of the exchange alone
SMALL_BYTES, LARGE_BYTES = 256e3, 1e6  # messages of up to, and from so many on the average
FASTER = 1.05  # where there are no intervals
JUMP, NO_RISE = 0.15, 1.05  # of utilisation; of power a device
USED = ("gpu_util_mean", "gpu_power_w_mean", "speedup_self")
GROUP = ("model", "dataset", "hardware", "scaling", "precision", "feed")


def one_message(case: Case) -> Cause | None:
    # Source: Li et al. 2020, "PyTorch Distributed: experiences on accelerating data parallel training" (buckets are
    # exchanged while the rest of the backward pass runs).
    figures = _transfer(case)
    if figures is None or len(case.result.sync.message_bytes) != 1:
        return None
    exposed_s, isolated_s = figures
    if exposed_s < ALL_EXPOSED * isolated_s:
        return None
    return Cause(
        "transfer",
        "all gradients travel in one message when the backward pass is over, so that nothing overlaps",
        f"Try smaller messages{_messages_option(case.result, 'lower')}",
        f"1 message of {size(sum(case.result.sync.message_bytes))}, {seconds(exposed_s)} exposed, "
        f"{seconds(isolated_s)} alone",
    )


def dearer_than_alone(case: Case) -> Cause | None:
    # Source: Rashidi et al. 2021, "Enabling compute-communication overlap in distributed deep learning training
    # platforms" (both compete for cores and memory bandwidth).
    isolated, figures = update_breakdown.isolated(case.result), _transfer(case)
    exposed, wait = update_breakdown.exposed(case.result), update_breakdown.straggler_wait(case.result)
    if figures is None or isolated is None or exposed is None or wait is None:
        return None
    if exposed.low - wait.high <= isolated.high:
        return None
    return Cause(
        "transfer",
        "the exchange costs more within training than alone: both want the same cores or the same memory",
        "Try fewer threads (hardware.cpus_per_device), or a backend that does not use the cores of the model",
        f"{seconds(figures[0])} of the update without the wait for the slowest, {seconds(figures[1])} alone",
    )


def little_to_hide_behind(case: Case) -> Cause | None:
    # Source: Li et al. 2020, as above (only the backward pass hides an exchange); thesis (fewer exchanges an epoch with
    # larger batches).
    isolated, backward = update_breakdown.isolated(case.result), update_breakdown.backward(case.result)
    if _transfer(case) is None or isolated is None or backward is None or isolated.low <= backward.high:
        return None
    return Cause(
        "transfer",
        "the exchange takes longer than the backward pass that it could hide behind",
        "Try a larger train.batch_per_device: the pass grows with it, the messages do not, and an epoch has fewer",
        f"{seconds(isolated.value)} alone, a backward pass of {seconds(backward.value)}",
    )


def small_messages(case: Case) -> Cause | None:
    # Source: Hockney 1994, "The communication challenge for MPP" (t = latency + bytes / bandwidth); Sergeev and Del
    # Balso 2018, "Horovod: fast and easy distributed deep learning in TensorFlow" (tensor fusion).
    figures, messages = _transfer(case), case.result.sync.message_bytes
    if figures is None or not messages or sum(messages) / len(messages) > SMALL_BYTES:
        return None
    several = len(messages) > 1
    fewer = f"Try fewer, larger messages{_messages_option(case.result, 'raise')}, or a" if several else "Try a"
    return Cause(
        "transfer",
        "messages are so small that starting each of them takes longer than what is in it",
        f"{fewer} larger train.batch_per_device, with fewer exchanges an epoch",
        f"{len(messages)} {'messages' if several else 'message'} of {size(sum(messages) / len(messages))}, "
        f"{seconds(figures[1] / len(messages))} each alone",
    )


def large_messages(case: Case) -> Cause | None:
    # Source: Hockney 1994, as above; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    # workstations" (a ring moves 2 (N - 1) / N of the bytes over each link).
    figures, messages = _transfer(case), case.result.sync.message_bytes
    if figures is None or not messages or sum(messages) / len(messages) < LARGE_BYTES or figures[1] <= 0:
        return None
    gpus = case.result.scale.gpus
    rate = 2 * (gpus - 1) / gpus * sum(messages) / figures[1]
    options = case.result.spec.get("strategy", {}).get("options") or {}
    fewer_bytes = "strategy.options.compression=fp16, " if options.get("compression") == "none" else ""
    return Cause(
        "transfer",
        "large messages fill the links between devices",
        f"Try {fewer_bytes}a larger train.batch_per_device, or a faster way between them (sweep=placement, "
        "sweep=transport)",
        f"{size(sum(messages))} in {len(messages)} take {seconds(figures[1])} alone, {size(rate)}/s on each link of "
        "a ring",
    )


def nccl_without_links(case: Case) -> Cause | None:
    """NCCL slower than adding up on the CPU, where GPUs are not connected directly."""
    # Source: parallel-strategies-benchmark-tensorflow2 (P. Schubert): four and eight 2080 Ti, NCCL slower than
    # ReductionToOneDevice on the CPU; its author suspected the missing NVLink.
    machine, mine = case.result.machine, case.row()
    if case.worth("transfer") is None or mine is None or "nccl" not in (case.result.scale.backend_used or "").lower():
        return None
    words = [word for row in machine.topology or [] for word in row if word != "X"]
    if not words or any(word.startswith("NV") for word in words) or _all_peers(case.result):
        return None
    rows = case.like(*GROUP, "framework", "gpus", "global_batch")
    faster = [row for row in rows if _on_cpu(row) and _faster(row, mine)]
    if not faster:
        return None
    best = max(faster, key=lambda row: float(row["throughput_samples_per_s"]))
    peers = "" if machine.peer_access is None else ", no peer access between all"
    return Cause(
        "transfer",
        "NCCL has no direct way between these GPUs and goes through host memory, where the CPU could add up at once",
        f"Try strategy={best['strategy']}; sweep=transport tells what each way between the GPUs is worth",
        f"{best['strategy']} {float(best['throughput_samples_per_s']):,.0f} samples/s, this "
        f"{float(mine['throughput_samples_per_s']):,.0f}; no NVLink (GPUs connected by "
        f"{', '.join(sorted(set(words)))}){peers}",
    )


def waiting_kernels(case: Case) -> Cause | None:
    """Utilisation that rises with devices while power and speedup a device do not."""
    # Source: thesis (with NCCL utilisation jumps when a second node is used, without a trace in power or speedup).
    mine = case.row()
    if case.worth("transfer") is None or mine is None:
        return None
    fewer = [row for row in case.like(*GROUP, "strategy", "options") if row["gpus"] < mine["gpus"]]
    for before in sorted(fewer, key=lambda row: -int(row["gpus"])):
        known = [row.get(name) for row in (mine, before) for name in USED]
        if any(value is None for value in known):
            continue
        util, watts, speedup, util0, watts0, speedup0 = (float(value or 0) for value in known)
        each, each0 = watts / mine["gpus"], watts0 / before["gpus"]
        if util < util0 + JUMP or each > NO_RISE * each0 or speedup / mine["gpus"] > speedup0 / before["gpus"]:
            continue
        share = mine.get("collective_kernel_share")
        kernels = "" if share is None else f"; collective operations are {percent(share)} of all kernels' time"
        return Cause(
            "transfer",
            "the backend waits for other devices within a kernel, which utilisation counts as work",
            "Do not read utilisation here but straggler wait and exposed sync; compare another backend",
            f"from {before['gpus']} to {mine['gpus']} devices utilisation goes from {percent(util0)} to "
            f"{percent(util)}, power a device from {each0:.0f} to {each:.0f} W, speedup from {speedup0:.2f} to "
            f"{speedup:.2f}{kernels}",
        )
    return None


def _transfer(case: Case) -> tuple[float, float] | None:
    """(exposed without the wait for the slowest, isolated) seconds, where the part is worth a cause."""
    exposed, isolated = update_breakdown.exposed(case.result), update_breakdown.isolated(case.result)
    if case.worth("transfer") is None or exposed is None or isolated is None:
        return None
    wait = update_breakdown.straggler_wait(case.result)
    return exposed.value - (0.0 if wait is None else wait.value), isolated.value


def _messages_option(result: Result, change: str) -> str:
    """The option that sets how gradients are fused, where the strategy has one."""
    options = result.spec.get("strategy", {}).get("options") or {}
    name = next((name for name in ("bucket_cap_mb", "fusion_threshold_mb") if name in options), None)
    return "" if name is None else f" ({change} strategy.options.{name}, now {options[name]:g})"


def _all_peers(result: Result) -> bool:
    read = (result.machine.peer_access or {}).get("read")
    return bool(read) and all(word in ("OK", "X") for row in read or [] for word in row)


def _on_cpu(row: Mapping[str, Any]) -> bool:
    name = str(row["strategy"])
    return name.endswith(("reduce_cpu", "storage_cpu", "ps_cpu", "_gloo"))


def _faster(row: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    low, high = row.get("throughput_low"), mine.get("throughput_high")
    if low is not None and high is not None:
        return bool(low > high)
    theirs, ours = row["throughput_samples_per_s"], mine["throughput_samples_per_s"]
    return theirs is not None and ours is not None and theirs > FASTER * ours


CHECKS = (
    one_message, dearer_than_alone, little_to_hide_behind, small_messages, large_messages, nccl_without_links,
    waiting_kernels,
)  # fmt: skip
