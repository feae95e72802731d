"""The monitor's part of a run's record: figures and flags from the series that it left. Layer 2."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from scalebench import gpus
from scalebench.measure.monitor import guards, together
from scalebench.measure.monitor.series import read_series
from scalebench.measure.monitor.summary import measured, summarise
from scalebench.measure.node import NodeFacts
from scalebench.monitor_records import Monitor
from scalebench.results import RankRecord, Result
from scalebench.run_folder import MONITOR_FILE
from scalebench.spec import RunSpec


def fill(
    result: Result, spec: RunSpec, folder: Path, reason: str | None, told: Sequence[NodeFacts | None] = ()
) -> None:
    """Put the monitor's figures and flags into `result`. `reason` is the monitor's own word on what is missing.

    `told`: what each node of the run left, where these had monitors of their own (attended.read_nodes). Whatever goes
    wrong here is a reason in the record and no failed run.
    """
    result.monitor = Monitor(reason=reason)
    if not told and not (folder / MONITOR_FILE).exists():
        return
    try:
        if told:
            _fill_from_nodes(result, spec, folder, told)
        else:
            _fill(result, spec, folder)
    except Exception as error:
        said = f"the series could not be read: {type(error).__name__}: {' '.join(str(error).split())}"
        result.monitor = Monitor(reason=said)


def _fill(result: Result, spec: RunSpec, folder: Path) -> None:
    series = read_series(folder / MONITOR_FILE)
    used = used_gpus(spec, result.ranks)
    first = next((rank for rank in result.ranks if rank.rank == 0), None)
    window = measured(first)
    monitor = Monitor() if window is None else summarise(series, window, used)
    monitor.file = MONITOR_FILE
    monitor.reason = result.monitor.reason or ("nothing was measured" if window is None else None)
    warmup_s = first.marks_s.get("warmup") if first is not None else None
    told = [gpu for gpu in result.machine.gpus if gpu.index in used]
    result.monitor = monitor
    result.flags += guards.flags(series, window, warmup_s, monitor, told)


def _fill_from_nodes(result: Result, spec: RunSpec, folder: Path, told: Sequence[NodeFacts | None]) -> None:
    nodes = [together.of_node(spec, result.ranks, folder, node, facts) for node, facts in enumerate(told)]
    monitor = together.together(spec, nodes)
    monitor.reason = result.monitor.reason or monitor.reason
    result.monitor = monitor
    result.flags += together.flags(nodes)


def used_gpus(
    spec: RunSpec, ranks: Sequence[RankRecord], visible: Callable[[], list[int | None]] = gpus.visible_gpus
) -> list[int]:
    """NVML's numbers of the GPUs of this machine that the run used, sorted; none for a run on CPUs.

    What a process calls device 0 is the first of those that CUDA_VISIBLE_DEVICES leaves. A part of a GPU (MIG) has no
    figures of its own, and is left out; so are devices of other hosts, which are not seen from here.
    """
    if spec.device != "cuda":
        return []
    elsewhere = {rank.rank for rank in ranks if rank.hostname != platform.node()}
    numbers = visible()
    asked = {device for place in spec.places if place.rank not in elsewhere for device in place.devices}
    found = {numbers[device] for device in asked if device < len(numbers)}
    return sorted(number for number in found if number is not None)
