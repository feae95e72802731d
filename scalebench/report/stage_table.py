"""The stages that a run's model was cut into, and how much of the devices' time none of them works. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from scalebench import analysis, staged
from scalebench.report import units
from scalebench.results import Result, StageRecord

FIGURES = ("parameters", "sends an update", "work an update", "of the work")
Of = tuple[StageRecord, float | None]  # a stage, its share of the work of its chain


def stages(result: Result) -> Iterator[Table | str]:
    """Nothing of a run whose devices have all of the model."""
    found = of(result)
    if not found:
        return
    yield "stages of the model"
    several = len({one.replica for one, _ in found}) > 1
    table = Table(box=box.SIMPLE_HEAD)
    for name in (["replica"] if several else []) + ["stage", "operations"]:
        table.add_column(name)
    for name in FIGURES:
        table.add_column(name, justify="right")
    for one, share in found:
        told = [str(one.index), operations(one), *figures(one, share)]
        table.add_row(*map(Text, [str(one.replica), *told] if several else told))
    yield table
    yield sentence(result)


def of(result: Result) -> list[Of]:
    """Chain by chain, from the input on."""
    found: list[Of] = []
    for chain in staged.chains(result):
        work = staged.work_s(chain)
        whole_s = sum(work) if work is not None else 0.0
        found += [(one, one.work_s / whole_s if one.work_s is not None and whole_s else None) for one in chain]
    return found


def operations(one: StageRecord) -> str:
    return one.first if one.first == one.last else f"{one.first} .. {one.last}"


def figures(one: StageRecord, share: float | None) -> tuple[str, str, str, str]:
    """FIGURES in words: nothing where there is none, a dash where it was not measured."""
    sent = units.size(one.sent_bytes) if one.sent_bytes is not None else "" if one.index == one.stages - 1 else "-"
    work = units.seconds(one.work_s) if one.work_s is not None else "-"
    return units.size(one.parameter_bytes), sent, work, units.share(share) if share is not None else "-"


def sentence(result: Result) -> str:
    """The measured bubble beside what it should be."""
    found, step_s = staged.chains(result), analysis.step_s(result)
    stages, micro_batches = staged.cut_into(found)
    measured = staged.over_chains(found, lambda work: staged.bubble_share(work, step_s))
    words = ["bubble: not measured"]
    if measured is not None:
        words = [f"bubble: {units.share(measured)} of the devices' time is no stage's forward or backward"]
        words += ["below 0, since by themselves the stages took longer than in training"] if measured < 0 else []
    if stages is not None and micro_batches is not None:
        expected = units.share(staged.bubble_share_expected(stages, micro_batches))
        batches = f"{micro_batches} micro-batch{'' if micro_batches == 1 else 'es'}"
        theory = f"{expected} is expected of {batches} through {stages} equal stage{'' if stages == 1 else 's'}"
        unequal = staged.over_chains(found, lambda work: staged.bubble_share_unequal(work, micro_batches))
        words.append(
            theory + (f", {units.share(unequal)} of stages as unequal as these" if unequal is not None else "")
        )
    return "; ".join(words)
