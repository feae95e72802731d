"""The columns of models that are split into pipeline stages: balance and bubble, measured and expected.

A pipeline is the stages of one model, each on a device of its own; a hybrid strategy has one pipeline for each replica.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from scalebench.core.result import Result, StageRecord

Pipeline = list[StageRecord]


def stage_cells(result: Result, step_s: float | None) -> dict[str, Any]:
    """Return the columns of stages; `step_s` is the measured time of a step."""
    pipelines = group_stages(result)
    stages, micro_batches = count_stages(pipelines)
    states = [state for rank in result.ranks for state in rank.state_bytes or [None]]
    reported = [state for state in states if state is not None]
    return {
        "stages": stages,
        "micro_batches": micro_batches,
        "stage_balance": mean_over_pipelines(pipelines, stage_balance),
        "bubble_share": mean_over_pipelines(pipelines, lambda work: bubble_share(work, step_s)),
        "bubble_share_expected": expected_bubble_share(stages, micro_batches) if stages and micro_batches else None,
        # The largest over the devices; None unless all devices report theirs.
        "state_bytes": max(reported) if reported and len(reported) == len(states) else None,
    }


def count_stages(pipelines: Sequence[Pipeline]) -> tuple[int | None, int | None]:
    """Return (stages, micro-batches); None where pipelines differ in them."""
    counts = {(stage.stages, stage.micro_batches) for pipeline in pipelines for stage in pipeline}
    stages, micro_batches = ({each[place] for each in counts} for place in (0, 1))
    return (
        stages.pop() if len(stages) == 1 else None,
        micro_batches.pop() if len(micro_batches) == 1 else None,
    )


def group_stages(result: Result) -> list[Pipeline]:
    """Return the stages of each replica, from the input on; empty if every device has the full model."""
    by_replica: dict[int, Pipeline] = defaultdict(list)
    for stage in (stage for rank in result.ranks for stage in rank.stages):
        by_replica[stage.replica].append(stage)
    return [sorted(by_replica[replica], key=lambda stage: stage.index) for replica in sorted(by_replica)]


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

    Besides the bubble itself, where a pipeline fills and drains, it includes what else a step takes: waiting for a
    slower stage, exposed transfers, the optimizer, synchronization between replicas, the host's own time; and the
    slowdown of a stage beside the others, since `work` was measured one stage at a time. It is negative if a stage took
    longer by itself than in training, for example because something else slowed the machine down then.
    """
    return 1 - sum(work) / (len(work) * step_s) if step_s else None


def expected_bubble_share(stages: int, micro_batches: int) -> float:
    """Return (p - 1) / (m + p - 1), for p equal stages with free transfers and nothing but forward and backward.

    Huang et al. 2019, "GPipe", section 2.3. 1F1B has the same bubble: Narayanan et al. 2021, "Efficient Large-Scale
    Language Model Training on GPU Clusters", section 2.2.1, who put it over the work alone, as (p - 1) / m. With one
    micro-batch the stages work one after the other: (p - 1) / p.
    """
    return (stages - 1) / (micro_batches + stages - 1)


def expected_bubble_share_of_unequal_stages(work: Sequence[float], micro_batches: int) -> float | None:
    """Return the expected bubble of stages that take this long: the first micro-batch passes through all of them, and
    the others follow at the pace of the slowest.

    Exact for GPipe if all stages have the same ratio of backward to forward; the pace is that of a flow shop with equal
    jobs. 1F1B may do better, since a slow first stage continues its forward passes while the others work.
    """
    step_s = (sum(work) + (micro_batches - 1) * max(work)) / micro_batches
    return bubble_share(work, step_s)


def mean_over_pipelines(
    pipelines: Sequence[Pipeline], figure: Callable[[Sequence[float]], float | None]
) -> float | None:
    """Return the mean of a figure of the stages' work over the pipelines; None unless each has it."""
    works = [stage_work_s(pipeline) for pipeline in pipelines]
    figures = [value for work in works if work is not None and (value := figure(work)) is not None]
    return statistics.fmean(figures) if figures and len(figures) == len(pipelines) else None
