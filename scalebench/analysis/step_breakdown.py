"""The breakdown of a step into parts, computed on load from the series that probes recorded, and the work of the stages
into which a pipeline cuts a model.

Each part is a mean over ranks and over blocks with its 95 % interval, in seconds of one step. Means over ranks are
linear: what differences measure adds up, whatever the noise of a rank. A figure that was not measured is None, and
`unmeasured_reasons` has the reason.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from scalebench.analysis.columns import interval_cells
from scalebench.analysis.identity import group_by
from scalebench.core.probe_record import ProbeRecord
from scalebench.core.result import Result, StageRecord
from scalebench.core.stats.estimates import Estimate, estimate_mean
from scalebench.core.stats.gpu_time import mean_gpu_time

VARIANTS = ("sync_on_s", "sync_off_s", "fixed_batch_s")  # of the steps in blocks that take turns
GPU_COLUMNS = (
    "gpu_compute_share", "gpu_communication_share", "gpu_hidden_share", "gpu_copy_share", "host_wait_share",
    "kernel_wait_share", "gpu_kernels_per_step",
)  # fmt: skip
PART_BEFORE = {"forward": None, "backward": "forward", "optimizer": "backward"}  # each block includes the part before


SERIES_COLUMNS = (
    "sync_isolated_s", "sync_exposed_s", "imbalance_s", "data_s", "copy_s", "forward_s", "backward_s", "optimizer_s",
)  # fmt: skip
# Columns of the frame, and the phases of the recorded timeline. They overlap: their sum means nothing.
SYNC_PHASES = {f"sync_{name}": name for name in ("negotiate_s", "queue_s", "memcpy_s", "allreduce_s")}


def variant_blocks(result: Result) -> dict[str, list[float]]:
    """Return the seconds of a step in the blocks of each measured variant, means over ranks.

    All variants have the same number of blocks, so that sums of their differences are exact.
    """
    probes = _probes(result)
    series = {name: _mean_over_ranks(probes, name, "steps") for name in VARIANTS
              if probes and all(getattr(record, name) for record in probes)}  # fmt: skip
    count = min(map(len, series.values()), default=0)
    return {name: blocks[:count] for name, blocks in series.items()}


def measure_blocks(result: Result, column: str) -> list[float]:
    """Return the seconds of one of SERIES_COLUMNS in each block of the probes, means over ranks; empty if not measured.

    Isolated sync ends when the last rank has the gradients. Exposed sync includes the wait for the slowest rank, which
    that rank itself does not have. Imbalance is the largest minus the mean of the devices' own times in each step,
    which all start together. Loading is what it costs beside the device's work.
    """
    probes, part = _probes(result), column.removesuffix("_s").removeprefix("sync_")
    if not probes:
        return []
    if column == "sync_isolated_s":
        repeats, ranks = probes[0].isolated_sync_repeats, [record.isolated_sync_s for record in probes]
        return [max(block) / repeats for block in zip(*ranks, strict=False)] if repeats else []
    if column == "imbalance_s":
        devices = [series for record in probes for series in record.local_step_s]
        steps = zip(*devices, strict=False) if len(devices) > 1 and all(devices) else ()
        return [max(step) - sum(step) / len(step) for step in steps]
    if column == "copy_s":
        return _mean_over_ranks(probes, column, "copy_repeats")
    if part in PART_BEFORE:
        before, blocks = PART_BEFORE[part], _mean_over_ranks(probes, column, "part_steps")
        return blocks if before is None else _subtract(blocks, _mean_over_ranks(probes, f"{before}_s", "part_steps"))
    if part == "data" and all(rank.script is None and rank.block_data_s and rank.block_steps for rank in result.ranks):
        # Time in a loader of the user's, whose workers go on while steps use a fixed batch.
        return _divide([rank.block_data_s for rank in result.ranks], result.ranks[0].block_steps)
    blocks_of = variant_blocks(result)
    without_sync = "sync_off_s" if "sync_off_s" in blocks_of else "sync_on_s"
    more, less = ("sync_on_s", "sync_off_s") if part == "exposed" else (without_sync, "fixed_batch_s")
    return _subtract(blocks_of.get(more, ()), blocks_of.get(less, ()))


def figure(result: Result, column: str) -> Estimate | None:
    """Return the mean of one of SERIES_COLUMNS with its interval; None if it has fewer than two blocks."""
    blocks = measure_blocks(result, column)
    return estimate_mean(blocks) if len(blocks) > 1 else None


def sync_phases(result: Result) -> dict[str, float | None]:
    """Return the seconds of each of SYNC_PHASES in a step, as rank 0's framework timed them; None: not timed."""
    timeline = result.sync.timeline
    return {name: None if timeline is None else getattr(timeline, field) for name, field in SYNC_PHASES.items()}


def breakdown_cells(result: Result, step_s: float | None) -> dict[str, Any]:
    """Return the columns of a run; `step_s` is the measured time of its step."""
    cells: dict[str, Any] = sync_phases(result) | gpu_cells(result, step_s)
    for name in SERIES_COLUMNS:
        cells |= interval_cells(name, figure(result, name))
    steps, messages = result.workload.steps_per_epoch, len(result.sync.message_bytes)
    exposed_s, data_s = cells["sync_exposed_s"], cells["data_s"]
    of_kernels, of_steps = collective_shares(result)
    return cells | {
        "sync_exposed_share": exposed_s / step_s if exposed_s is not None and step_s else None,
        "data_share": data_s / step_s if data_s is not None and step_s else None,
        "sync_per_epoch_s": exposed_s * steps if exposed_s is not None and steps else None,
        "syncs_per_epoch": messages * steps if messages and steps else None,
        "collective_kernel_share": of_kernels, "collective_step_share": of_steps,
        "steady_after_steps": result.ranks[0].steady_after_steps if result.ranks else None,
    }  # fmt: skip


def gpu_cells(result: Result, step_s: float | None) -> dict[str, float | None]:
    """Return what the GPUs do in a step, as shares of the step without the profiler: means over the ranks.

    The profiler slows the host, not the kernels, so the wait for the host is what the others leave of the step.
    """
    probes = _probes(result)
    gpus = [record.profile.gpu for record in probes if record.profile is not None and record.profile.gpu is not None]
    total = mean_gpu_time(gpus)
    if total is None or len(gpus) < len(probes) or not step_s:
        return dict.fromkeys(GPU_COLUMNS)
    visible_s, wait_s, host_wait = total.communication_s - total.hidden_s, total.kernel_wait_s, None
    if wait_s is not None:
        host_wait = max(0.0, (step_s - total.compute_s - visible_s - total.copy_s - wait_s) / step_s)
    return {
        "gpu_compute_share": total.compute_s / step_s,
        "gpu_communication_share": visible_s / step_s,
        "gpu_hidden_share": total.hidden_s / total.communication_s if total.communication_s else None,
        "gpu_copy_share": total.copy_s / step_s,
        "host_wait_share": host_wait,
        "kernel_wait_share": None if wait_s is None else wait_s / step_s,
        "gpu_kernels_per_step": total.kernels,
    }


def unmeasured_reasons(result: Result) -> dict[str, str]:
    """Return why quantities were not measured, as recorded by the first rank."""
    probes = _probes(result)
    return dict(probes[0].reasons) if probes else {}


def explain_missing_probes(result: Result) -> str:
    """Return why no probes were made, or not by every rank."""
    settings = result.spec.get("measure", {})
    for record in result.ranks:
        for error in record.probe_failures.values():
            return f"a probe failed: {error}"
    if settings.get("probes") and (settings.get("repeats") or 1) > 1 and result.scale.repeat > 0:
        return "only the first repeat has them"
    return "a rank has no probes" if settings.get("probes", True) else "measure.probes=false"


def collective_shares(result: Result) -> tuple[float | None, float | None]:
    """Return (share of all kernels' own time, share of the step's wall time) of collective operations under the
    profiler, means over the ranks. The first can be large while the second is small, and vice versa."""
    profiles = [probes.profile for probes in _probes(result) if probes.profile is not None]
    of_kernels = [p.collective_s / p.kernel_s for p in profiles if p.collective_s is not None and p.kernel_s]
    of_steps = [p.collective_s / p.step_s for p in profiles if p.collective_s is not None and p.step_s]
    return statistics.fmean(of_kernels) if of_kernels else None, statistics.fmean(of_steps) if of_steps else None


def _probes(result: Result) -> list[ProbeRecord]:
    """Return the probes of all ranks; empty if one rank has none."""
    probes = [rank.probes for rank in result.ranks if rank.probes is not None]
    return probes if result.status == "ok" and len(probes) == len(result.ranks) else []


def _mean_over_ranks(probes: Sequence[ProbeRecord], name: str, count: str) -> list[float]:
    """Return the seconds of one of the `count` operations in each block; empty if not measured."""
    repeats = getattr(probes[0], count)
    return _divide([getattr(record, name) for record in probes], repeats) if repeats else []


def _divide(ranks: Sequence[Sequence[float]], repeats: int | None) -> list[float]:
    """Return the mean over ranks of one of `repeats` operations in each block."""
    totals = ranks[0] if len(ranks) == 1 else map(sum, zip(*ranks, strict=False))
    divisor = len(ranks) * (repeats or 1)
    return [total / divisor for total in totals]


def _subtract(more: Sequence[float], less: Sequence[float]) -> list[float]:
    return list(map(operator.sub, more, less))  # as many as both have


# A pipeline is the stages of one model, each on a device of its own; a hybrid strategy has one for each replica.
Pipeline = list[StageRecord]


def group_stages(result: Result) -> list[Pipeline]:
    """Return the stages of each replica, from the input on; empty if every device has the full model."""
    stages = sorted((stage for rank in result.ranks for stage in rank.stages), key=lambda s: (s.replica, s.index))
    return list(group_by(stages, lambda stage: stage.replica).values())


def stage_cells(result: Result, step_s: float | None) -> dict[str, Any]:
    """Return the columns of the balance and bubble of a model's stages; `step_s` is the measured time of a step."""
    pipelines = group_stages(result)
    shapes = {(stage.stages, stage.micro_batches) for pipeline in pipelines for stage in pipeline}
    stages, micro_batches = (different.pop() if len(different) == 1 else None  # pipelines may differ
                             for different in ({shape[n] for shape in shapes} for n in (0, 1)))  # fmt: skip
    states = [state for rank in result.ranks for state in rank.state_bytes or [None]]
    reported = [state for state in states if state is not None]
    return {
        "stages": stages,
        "micro_batches": micro_batches,
        "stage_balance": mean_over_pipelines(pipelines, stage_balance),
        "bubble_share": mean_over_pipelines(pipelines, lambda work: bubble_share(work, step_s)),
        # Equal stages with free transfers and nothing but forward and backward have this share: Huang et al. 2019,
        # "GPipe", section 2.3. 1F1B has the same: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training
        # on GPU Clusters", section 2.2.1, who put it over the work alone, as (p - 1) / m.
        "bubble_share_expected": (stages - 1) / (micro_batches + stages - 1) if stages and micro_batches else None,
        # The largest over the devices; None unless all devices report theirs.
        "state_bytes": max(reported) if reported and len(reported) == len(states) else None,
    }


def stage_work_s(pipeline: Pipeline) -> list[float] | None:
    """Return seconds of forward and backward of each stage in a step; None unless all stages are there and measured."""
    measured = [stage.work_s for stage in pipeline if stage.work_s is not None]
    is_complete = [stage.index for stage in pipeline] == list(range(pipeline[0].stages))
    return measured if is_complete and len(measured) == len(pipeline) else None


def stage_balance(work: Sequence[float]) -> float | None:
    """Return the mean work of the stages over the largest: 1 is even, 1/stages is all work in one stage."""
    return statistics.fmean(work) / max(work) if max(work) > 0 else None


def bubble_share(work: Sequence[float], step_s: float | None) -> float | None:
    """Return the share of the devices' time without forward or backward: 1 - sum of work / (stages x step_s).

    Besides the bubble, where a pipeline fills and drains, it includes all else that a step takes (slower stages,
    transfers, the optimizer, the host), and the slowdown of a stage beside the others, since `work` was measured one
    stage at a time. It is negative if a stage took longer by itself than in training.
    """
    return 1 - sum(work) / (len(work) * step_s) if step_s else None


def mean_over_pipelines(
    pipelines: Sequence[Pipeline], figure: Callable[[Sequence[float]], float | None]
) -> float | None:
    """Return the mean of a figure of the stages' work over the pipelines; None unless each has it."""
    works = [stage_work_s(pipeline) for pipeline in pipelines]
    figures = [value for work in works if work is not None and (value := figure(work)) is not None]
    return statistics.fmean(figures) if figures and len(figures) == len(pipelines) else None
