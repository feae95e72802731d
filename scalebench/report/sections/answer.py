"""The section `answer` of a report: which strategy, how sure, how far it goes, what is lost, and how to have it.
Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from scalebench.analysis.ranking import Ranking, is_control, join_with_and, rank_curves, throughput_ratio
from scalebench.analysis.scaling_curves import Curve, ScalingLimit, format_batch, make_curves, find_scaling_limit, format_group_title
from scalebench.core.errors import InputError
from scalebench.core.stats.estimates import CONFIDENCE
from scalebench.core.units import format_percent
from scalebench.report import repeat_commands
from scalebench.report.document import Block, Cell, Code, Row, Section, Table, Words
from scalebench.report.report_data import Evidence
from scalebench.report.tables import percent, throughput

# Flags that make a figure one to be careful with, in words.
TRUST = {
    "oversubscribed": "more threads than cores",
    "approximate": "its updates are not the baseline's, so that its speed is of another training",
    "foreign_process": "a program that is not of the run computed on one of its devices",
    "busy_machine": "other programs kept the processors busy",
    "hot_at_start": "a GPU was near slowing itself down before it began",
    "throttled": "something held a GPU's clocks back",
    "unequal_clocks": "the clocks of its GPUs differ",
    "swapping": "the machine swapped",
    "gpu_lost": "a GPU was lost",
    "no_interval": "no interval, of too few blocks or of two launches",
    "target_missed": "the interval is wider than was asked for",
    "drifts": "its level changed while it was measured",
    "superlinear": "an efficiency above 1, which needs an explanation",
}
HEADS = ("devices", "fastest", "samples/s (95 %)", "efficiency", "against", "how sure", "tied with")
CAPTION = (
    "Efficiency is against one device: of the bare baseline, which has no strategy around it, or where there is none, "
    "of the strategy itself. Figures behind a strategy that is tied: how many times as fast the fastest is."
)
MOST_GROUPS = 20  # told in full; the others are a row of a table
MOST_LINES = 5  # groups whose winner is shown with its lines of code
CERTAINTY = {"best": "the best", "tied": "tied within noise", "not sure": "not sure", "alone": "nothing to compare"}


def section(evidence: Evidence) -> Section | None:
    if len(evidence.pooled) == 0:
        return None
    found = make_curves(evidence.pooled)
    groups = [list(members) for _, members in groupby(rank_curves(found), key=lambda one: one.group)]
    groups.sort(key=lambda members: members[-1].gpus == 1)  # what was scaled comes first
    of_row = {row["run_id"]: curve for curve in found for row in curve.rows}
    blocks: list[Block] = []
    for number, members in enumerate(groups[:MOST_GROUPS]):
        blocks += _answer(evidence, members, of_row[members[-1].row["run_id"]])
        if members[-1].gpus > 1 or members[-1].rivals:
            blocks.append(_table(f"answer-{number}", format_group_title(members[0].group), members))
        if members[-1].gpus > 1:
            blocks += _lines(evidence, members[-1], number < MOST_LINES)
    if others := groups[MOST_GROUPS:]:
        title = f"{len(others)} more, each at its largest number of devices"
        blocks.append(_table("answer-others", title, [members[-1] for members in others], named=True))
    if not groups:
        blocks.append(Words("No run went well, so there is no answer: the problems say why.", "warning"))
    return Section("answer", "Which strategy, and how sure", blocks)


def _answer(evidence: Evidence, members: Sequence[Ranking], curve: Curve) -> Iterator[Block]:
    """In words, of the largest number of devices."""
    last = members[-1]
    against, tags = _against(last.row), dict(curve.tags)
    told = f"{format_group_title(last.group)}. {_advice(last)} A{last.sentence()[1:]}."
    if last.gpus == 1:
        yield Words(f"{told} More than one device was not measured.", "answer", tags)
    else:
        kept = _kept(find_scaling_limit(curve, evidence.wanted_efficiency, against), last.best) if against else ""
        parts = [told, kept, _lost(last, against), _fewer(members)]
        yield Words(" ".join(part for part in parts if part), "answer", tags)
    if last.rivals:
        yield Words(f"How sure: {last.test}. {_over([last.row, *(rival.row for rival in last.rivals)])}", tags=tags)
    if doubts := _doubts(evidence, last):
        yield Words(f"To know of these figures: {'; '.join(doubts)}.", "warning", tags)


def _advice(last: Ranking) -> str:
    if last.certainty == "tied":
        return f"{join_with_and([last.best, *(rival.name for rival in last.tied)])} are equally fast within noise."
    if last.certainty == "best":
        return f"Take {last.best}."
    if last.rivals:
        return f"{last.best} was the fastest, which is not sure."
    return f"Only {last.best} was measured on {_count(last.gpus)}."


def _kept(kept: ScalingLimit, name: str) -> str:
    wanted = format_percent(kept.efficiency).replace(".0 ", " ")
    if kept.largest_measured is None:
        return ""
    if kept.gpus is None:
        return f"{name} keeps an efficiency of {wanted} at no number of devices{_again(kept)}."
    most = ", the most that were measured" if kept.gpus == kept.largest_measured else ""
    sure = "" if kept.certain_gpus == kept.gpus else f" (with certainty {_count(kept.certain_gpus)})"
    return f"{name} keeps an efficiency of {wanted} up to {_count(kept.gpus)}{most}{sure}{_again(kept)}."


def _again(kept: ScalingLimit) -> str:
    return f", and has it again at {join_with_and([str(gpus) for gpus in kept.regained_gpus])}" if kept.regained_gpus else ""


def _count(gpus: int | None) -> str:
    return "at none" if gpus is None else f"{gpus} device{'s' * (gpus > 1)}"


def _lost(last: Ranking, against: str | None) -> str:
    """1 - efficiency, and how much of it the strategy costs before there is anybody to talk to."""
    row = last.row
    if against is None:
        return "What is lost cannot be told: no baseline on one device was measured."
    value, low, high = (row[f"efficiency_{against}{limit}"] for limit in ("", "_low", "_high"))
    limits = "" if low is None or high is None else f" [{100 * (1 - high):z.0f}, {100 * (1 - low):z.0f}]"
    ideal = "as many bare devices" if against == "bare" else "as many devices, each as fast as its one alone,"
    if value >= 1:
        return f"Nothing is lost: its efficiency is {percent(row, f'efficiency_{against}')}."
    told = f"{100 * (1 - value):z.0f} %{limits} of what {ideal} would do is lost"
    overhead = percent(row, "overhead_share") if against == "bare" and (row["overhead_share"] or 0) > 0 else ""
    return f"{told}; on one device alone it loses {overhead}." if overhead else f"{told}."


def _fewer(members: Sequence[Ranking]) -> str:
    """A word where so many devices may not be worth it: fewer of them train faster, or it cannot be told that not."""
    last, fewer = members[-1], max(members[:-1], key=lambda one: one.row["throughput_samples_per_s"], default=None)
    limits = None if fewer is None else throughput_ratio(last.row, fewer.row, CONFIDENCE)
    if fewer is None or limits is None or limits.low > 1:
        return ""
    figure = f"{limits.value:.2f} [{limits.low:.2f}, {limits.high:.2f}]"
    than = f"{fewer.best} on {_count(fewer.gpus)}"
    if limits.high < 1:
        return f"So many devices do not pay: they are {figure} times as fast as {than}."
    return f"That so many devices pay is not sure: they are {figure} times as fast as {than}."


def _over(rows: Sequence[dict[str, Any]]) -> str:
    kinds = {row["interval_over"] for row in rows} - {None}
    if "blocks" in kinds:
        return "Intervals over blocks of one launch miss what differs between launches: measure.repeats=3 shows it."
    return "Intervals are over launches." if kinds else ""


def _doubts(evidence: Evidence, last: Ranking) -> list[str]:
    """What spoils trust in the figures of the best and of those that are tied with it; who has none."""
    found = []
    for name, row in [(last.best, last.row), *((rival.name, rival.row) for rival in [*last.tied, *last.untold])]:
        flags = [TRUST[flag] for flag in (row["flags"] or "").split() if flag in TRUST]
        if row["steady"] is False and "drifts" not in (row["flags"] or ""):
            flags.append("it was not steady")
        found += [f"{name}: {', '.join(flags)}"] if flags else []
    missing = _missing(evidence, last)
    return [*found, f"not measured on {_count(last.gpus)}: {', '.join(missing)}"] if missing else found


def _missing(evidence: Evidence, last: Ranking) -> list[str]:
    """`horovod_nccl (unsupported)`: what was tried in this group on as many devices, and gave no figure; but for
    controls, and for baselines, which are of one device."""
    rows = evidence.pooled
    same = ["model", "dataset", "hardware", "scaling"]
    tried = rows[(rows["status"] != "ok") & (rows["gpus"] == last.gpus)].to_dict("records")
    found = [row for row in tried if all(str(row[name]) == last.group[name] for name in same)]
    found = [row for row in found if format_batch(row) == last.group["batch"] and not is_control(str(row["strategy"]))]
    most = {row["strategy"]: repeat_commands.of_strategy(str(row["strategy"])).get("max_gpus") for row in found}
    found = [row for row in found if (most[row["strategy"]] or last.gpus) >= last.gpus]
    return list(dict.fromkeys(f"{row['strategy']} ({row['status']})" for row in found))


def _table(name: str, title: str, rankings: Sequence[Ranking], named: bool = False) -> Table:
    """`named`: each row says of which group it is."""
    rows = []
    for one in rankings:
        kind = _against(one.row)
        efficiency = f"efficiency_{kind or 'bare'}"
        cells = [
            Cell(str(one.gpus), one.gpus), Cell(one.best, one.best),
            Cell(throughput(one.row), one.row["throughput_samples_per_s"]),
            Cell(percent(one.row, efficiency), one.row[efficiency]), Cell(kind or ""),
            Cell(CERTAINTY[one.certainty], one.certainty), Cell(", ".join(rival.words() for rival in one.tied)),
        ]  # fmt: skip
        rows.append(Row([Cell(format_group_title(one.group)), *cells] if named else cells, _tags(one)))
    numeric = frozenset(("devices", "samples/s (95 %)", "efficiency"))
    heads = ["of", *HEADS] if named else HEADS
    return Table(name, f"The fastest for each number of devices: {title}", heads, rows, numeric, CAPTION)


def _tags(one: Ranking) -> dict[str, str]:
    return {name: str(one.row[name]) for name in ("model", "strategy", "hardware")}


def _lines(evidence: Evidence, last: Ranking, with_code: bool) -> Iterator[Block]:
    """How to have it again, and how to have it in a program of one's own."""
    row, tags = last.row, _tags(last)
    where = f"{last.best} on {_count(last.gpus)}"
    yield Code(repeat_commands.command(row), "sh", f"Measure {where} again", tags)
    found = repeat_commands.recipe(row["strategy"], last.gpus, _device(evidence, row["run_id"]), row["options"])
    if found is None or not with_code:
        return
    title = f"The lines that give {where}, around a model, an optimizer, a loss and batches of your own"
    yield Code(found.code, "python", title, tags)
    yield Code(found.launch, "sh", "Start them", tags)
    if found.left_out:
        yield Words(f"These lines do not set {join_with_and(found.left_out)}.", tags=tags)


def _device(evidence: Evidence, run_id: str) -> str:
    try:
        return evidence.result(run_id).scale.device
    except (InputError, KeyError):  # its file has gone since
        return "cuda"


def _against(row: dict[str, Any]) -> str | None:
    return next((kind for kind in ("bare", "self") if row[f"efficiency_{kind}"] is not None), None)
