"""What a row tells of a model that is cut into stages. Layer 1.

A chain is the stages of one model, each on a device of its own; a hybrid has one for each replica.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from scalebench.core.result import Result, StageRecord

COLUMNS = "stages micro_batches stage_balance bubble_share bubble_share_expected state_bytes".split()
Chain = list[StageRecord]


def cells(result: Result, step_s: float | None) -> dict[str, Any]:
    """The columns of that name. `step_s`: seconds of an update, as the row has them."""
    found = chains(result)
    stages, micro_batches = cut_into(found)
    values = (
        stages,
        micro_batches,
        over_chains(found, balance),
        over_chains(found, lambda work: bubble_share(work, step_s)),
        bubble_share_expected(stages, micro_batches) if stages and micro_batches else None,
        _state_bytes(result),
    )
    return dict(zip(COLUMNS, values, strict=True))


def cut_into(found: Sequence[Chain]) -> tuple[int | None, int | None]:
    """(stages, micro-batches); null where chains differ in them."""
    stages = {one.stages for chain in found for one in chain}
    micro_batches = {one.micro_batches for chain in found for one in chain}
    return _only(stages), _only(micro_batches)


def chains(result: Result) -> list[Chain]:
    """The stages of each replica, from the input on; none where every device has all of the model."""
    found: dict[int, Chain] = defaultdict(list)
    for one in (one for rank in result.ranks for one in rank.stages):
        found[one.replica].append(one)
    return [sorted(found[replica], key=lambda one: one.index) for replica in sorted(found)]


def work_s(chain: Chain) -> list[float] | None:
    """Seconds of forward and backward of each stage in an update; None unless all of them are there and measured."""
    measured = [one.work_s for one in chain if one.work_s is not None]
    whole = [one.index for one in chain] == list(range(chain[0].stages))
    return measured if whole and len(measured) == len(chain) else None


def balance(work: Sequence[float]) -> float | None:
    """Mean of the stages' work over the largest: 1 is even, 1/stages is all in one of them."""
    return statistics.fmean(work) / max(work) if max(work) > 0 else None


def bubble_share(work: Sequence[float], step_s: float | None) -> float | None:
    """Share of the devices' time in which they do no forward or backward: 1 - sum of work / (stages x step_s).

    Besides the bubble itself, where a pipeline fills and drains, it holds what else an update takes: waiting for a
    slower stage, transfers that nothing hides, the optimizer, the exchange between replicas, the host's own time; and
    what a stage is slower beside the others than by itself, as `work` was measured. Below 0: by itself a stage took
    longer than in training, as when something else slowed the machine down by then.
    """
    return 1 - sum(work) / (len(work) * step_s) if step_s else None


def bubble_share_expected(stages: int, micro_batches: int) -> float:
    """(p - 1) / (m + p - 1) of the time, of p equal stages with free transfers and nothing but forward and backward.

    Huang et al. 2019, "GPipe", section 2.3. 1F1B has the same bubble: Narayanan et al. 2021, "Efficient Large-Scale
    Language Model Training on GPU Clusters", section 2.2.1, who put it over the work alone, as (p - 1) / m. With one
    micro-batch the stages work one after the other: (p - 1) / p.
    """
    return (stages - 1) / (micro_batches + stages - 1)


def bubble_share_unequal(work: Sequence[float], micro_batches: int) -> float | None:
    """As expected, but of stages that take as long as these: the first micro-batch goes through all of them, and the
    others follow at the pace of the slowest.

    Exact for GPipe where all stages have the same ratio of backward to forward; the pace is that of a flow shop with
    equal jobs. 1F1B may do better, since a slow first stage goes on forward while the others work.
    """
    whole_s = (sum(work) + (micro_batches - 1) * max(work)) / micro_batches
    return bubble_share(work, whole_s)


def over_chains(found: Sequence[Chain], figure: Callable[[Sequence[float]], float | None]) -> float | None:
    """Mean over the chains; None unless each has the figure."""
    work = [work_s(chain) for chain in found]
    figures = [figure(one) for one in work if one is not None]
    known = [value for value in figures if value is not None]
    return statistics.fmean(known) if known and len(known) == len(found) else None


def _state_bytes(result: Result) -> int | None:
    """The largest over the devices; None unless each one's is known."""
    found = [state for rank in result.ranks for state in rank.state_bytes]
    known = [state for state in found if state is not None]
    complete = len(known) == len(found) and all(rank.state_bytes for rank in result.ranks)
    return max(known) if known and complete else None


def _only(found: set[int]) -> int | None:
    return next(iter(found)) if len(found) == 1 else None
