"""The section `answer` of a report: which strategy to take, how sure that is, how far it scales, what is lost, and how
to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from scalebench.analysis.ranking import Ranking, decide_ratio, is_control, join_with_and, rank_curves
from scalebench.analysis.scaling_curves import (
    Curve,
    ScalingLimit,
    find_scaling_limit,
    format_batch,
    format_group_title,
    make_curves,
)
from scalebench.core.errors import InputError
from scalebench.core.units import format_percent
from scalebench.report.document import THROUGHPUT, Block, Cell, Code, Paragraph, Row, Section, Table, get_tags
from scalebench.report.repeat_commands import make_command, make_recipe, read_strategy_config
from scalebench.report.report_data import ReportData
from scalebench.report.tables import format_percent_column, format_ratio, format_throughput

# Flags that make a figure doubtful, as text.
DOUBTS = {
    "oversubscribed": "more threads than cores",
    "approximate": "its steps are not the baseline's, so its speed is that of a different training",
    "not_in_turns": "it was measured by itself, while the others of its sweep took turns",
    "foreign_process": "a program outside the run computed on one of its devices",
    "busy_machine": "other programs kept the processors busy",
    "hot_at_start": "a GPU was close to throttling before it began",
    "throttled": "something held a GPU's clocks back",
    "unequal_clocks": "the clocks of its GPUs differ",
    "swapping": "the machine swapped",
    "gpu_lost": "a GPU was lost",
    "no_interval": "no interval, with too few blocks or two repeats",
    "target_missed": "the interval is wider than requested",
    "drifts": "its level changed while it was measured",
    "superlinear": "an efficiency above 1, which needs an explanation",
}
COLUMNS = ("devices", "fastest", "samples/s (95 %)", "efficiency", "against", "how sure", "tied with")
CAPTION = (
    "Efficiency is against one device: of the bare baseline, which has no strategy around it, or where there is none, "
    "of the strategy itself. Figures behind a tied strategy: how many times as fast the fastest is."
)
MAX_ANSWERS = 20  # groups with an answer of their own; the others are a row of a table
MAX_RECIPES = 5  # groups whose fastest strategy is shown with its lines of code
CERTAINTY = {"best": "the best", "tied": "tied within noise", "not sure": "not sure", "alone": "nothing to compare"}


def section(report_data: ReportData) -> Section | None:
    """Return None if there is no row."""
    if len(report_data.pooled) == 0:
        return None
    all_curves = make_curves(report_data.pooled)
    rankings = rank_curves(all_curves, report_data.configurations.estimate_ratio)
    groups = [list(members) for _, members in groupby(rankings, key=lambda ranking: ranking.group)]
    groups.sort(key=lambda members: members[-1].gpus == 1)  # groups with several device counts come first
    curve_of = {row["run_id"]: curve for curve in all_curves for row in curve.rows}
    blocks: list[Block] = []
    for number, members in enumerate(groups[:MAX_ANSWERS]):
        blocks += _make_answer(report_data, members, curve_of[members[-1].row["run_id"]])
        if members[-1].gpus > 1 or members[-1].rivals:
            blocks.append(_make_table(f"answer-{number}", format_group_title(members[0].group), members))
        if members[-1].gpus > 1:
            blocks += _make_repeat_lines(report_data, members[-1], number < MAX_RECIPES)
    if others := groups[MAX_ANSWERS:]:
        title = f"{len(others)} more, each at its largest number of devices"
        blocks.append(_make_table("answer-others", title, [members[-1] for members in others], with_group=True))
    if not groups:
        text = "No run was successful, so there is no answer: the problems say why."
        blocks.append(Paragraph(text, "warning"))
    return Section("answer", "Which strategy, and how sure", blocks)


def _make_answer(report_data: ReportData, members: Sequence[Ranking], curve: Curve) -> Iterator[Block]:
    """Make the paragraphs about the largest number of devices."""
    last = members[-1]
    against, tags = _baseline_kind(last.row), dict(curve.tags)
    answer = f"{format_group_title(last.group)}. {_advise(last)} A{last.sentence()[1:]}."
    if last.gpus == 1:
        yield Paragraph(f"{answer} More than one device was not measured.", "answer", tags)
    else:
        kept = find_scaling_limit(curve, report_data.min_efficiency, against) if against else None
        efficiency = "" if kept is None else _describe_kept_efficiency(kept, last.best)
        parts = [answer, efficiency, _describe_loss(last, against), _compare_with_fewer(report_data, members)]
        yield Paragraph(" ".join(part for part in parts if part), "answer", tags)
    if last.rivals:
        intervals = _describe_intervals([last.row, *(rival.row for rival in last.rivals)])
        yield Paragraph(f"How sure: {last.test}. {intervals}", tags=tags)
    if doubts := _list_doubts(report_data, last):
        yield Paragraph(f"Limits of these figures: {'; '.join(doubts)}.", "warning", tags)


def _advise(last: Ranking) -> str:
    if last.certainty == "tied":
        return f"{join_with_and([last.best, *(rival.name for rival in last.tied)])} are equally fast within noise."
    if last.certainty == "best":
        return f"Take {last.best}."
    if last.rivals:
        return f"{last.best} was the fastest, which is not sure."
    return f"Only {last.best} was measured on {_count_devices(last.gpus)}."


def _describe_kept_efficiency(kept: ScalingLimit, name: str) -> str:
    wanted = format_percent(kept.efficiency).replace(".0 ", " ")
    again = (
        f", and has it again at {join_with_and([str(gpus) for gpus in kept.regained_gpus])}"
        if kept.regained_gpus
        else ""
    )
    if kept.largest_measured is None:
        return ""
    if kept.gpus is None:
        return f"{name} keeps an efficiency of {wanted} at no number of devices{again}."
    most = ", the most that were measured" if kept.gpus == kept.largest_measured else ""
    sure = "" if kept.certain_gpus == kept.gpus else f" (with certainty {_count_devices(kept.certain_gpus)})"
    return f"{name} keeps an efficiency of {wanted} up to {_count_devices(kept.gpus)}{most}{sure}{again}."


def _count_devices(gpus: int | None) -> str:
    return "at none" if gpus is None else f"{gpus} device{'s' * (gpus > 1)}"


def _describe_loss(last: Ranking, against: str | None) -> str:
    """Describe 1 - efficiency, and how much of it the strategy already costs on one device."""
    row = last.row
    if against is None:
        return "The loss is unknown: no baseline on one device was measured."
    value, low, high = (row[f"efficiency_{against}{limit}"] for limit in ("", "_low", "_high"))
    limits = "" if low is None or high is None else f" [{100 * (1 - high):z.0f}, {100 * (1 - low):z.0f}]"
    ideal = "as many bare devices" if against == "bare" else "as many devices, each as fast as one alone,"
    if value >= 1:
        return f"Nothing is lost: its efficiency is {format_percent_column(row, f'efficiency_{against}')}."
    loss = f"{100 * (1 - value):z.0f} %{limits} of what {ideal} would do is lost"
    has_overhead = against == "bare" and (row["overhead_share"] or 0) > 0
    overhead = format_percent_column(row, "overhead_share") if has_overhead else ""
    return f"{loss}; on one device it loses {overhead}." if overhead else f"{loss}."


def _compare_with_fewer(report_data: ReportData, members: Sequence[Ranking]) -> str:
    """Say if so many devices may not be worth it, because fewer of them train faster, or may do so."""
    last, fewer = members[-1], max(members[:-1], key=lambda ranking: ranking.row[THROUGHPUT], default=None)
    ratio = report_data.configurations.estimate_ratio
    limits = None if fewer is None else decide_ratio(last.row, fewer.row, ratio)
    if fewer is None or limits is None or limits.low > 1:
        return ""
    figure = format_ratio(limits.value, limits.low, limits.high)
    than = f"{fewer.best} on {_count_devices(fewer.gpus)}"
    if limits.high < 1:
        return f"So many devices do not pay: they are {figure} times as fast as {than}."
    return f"That so many devices pay is not sure: they are {figure} times as fast as {than}."


def _describe_intervals(rows: Sequence[dict[str, Any]]) -> str:
    kinds = {row["interval_over"] for row in rows} - {None}
    if "blocks" in kinds:
        return "Intervals over blocks of one repeat miss what differs between repeats: measure.repeats=3 shows it."
    return "Intervals are over repeats." if kinds else ""


def _list_doubts(report_data: ReportData, last: Ranking) -> list[str]:
    """List what reduces trust in the figures of the best strategy and of its ties, and which strategies have none."""
    doubts = []
    rivals = [*last.tied, *last.undecided]
    for name, row in [(last.best, last.row), *((rival.name, rival.row) for rival in rivals)]:
        flags = [DOUBTS[flag] for flag in (row["flags"] or "").split() if flag in DOUBTS]
        if row["steady"] is False and "drifts" not in (row["flags"] or ""):
            flags.append("it was not steady")
        doubts += [f"{name}: {', '.join(flags)}"] if flags else []
    missing = _list_missing(report_data, last)
    return [*doubts, f"not measured on {_count_devices(last.gpus)}: {', '.join(missing)}"] if missing else doubts


def _list_missing(report_data: ReportData, last: Ranking) -> list[str]:
    """List what was tried in this group on as many devices without a figure: `horovod_nccl (unsupported)`.

    Controls are left out, and baselines, which use one device.
    """
    pooled = report_data.pooled
    is_tried = (pooled["status"] != "ok") & (pooled["gpus"] == last.gpus)
    missing: dict[str, None] = {}
    # Selecting rows of a frame takes long, since it has many columns, even if there are none.
    for row in pooled[is_tried].to_dict("records") if is_tried.any() else ():
        strategy = str(row["strategy"])
        same = all(str(row[name]) == last.group[name] for name in ("model", "dataset", "hardware", "scaling"))
        if not same or format_batch(row) != last.group["batch"] or is_control(strategy):
            continue
        if (read_strategy_config(strategy).get("max_gpus") or last.gpus) >= last.gpus:
            missing[f"{strategy} ({row['status']})"] = None
    return list(missing)


def _make_table(name: str, title: str, rankings: Sequence[Ranking], with_group: bool = False) -> Table:
    """Make the table of the fastest strategies; `with_group` adds a column with the group of each row."""
    rows = []
    for ranking in rankings:
        kind = _baseline_kind(ranking.row)
        efficiency = f"efficiency_{kind or 'bare'}"
        cells = [
            Cell(str(ranking.gpus), ranking.gpus), Cell(ranking.best, ranking.best),
            Cell(format_throughput(ranking.row), ranking.row[THROUGHPUT]),
            Cell(format_percent_column(ranking.row, efficiency), ranking.row[efficiency]), Cell(kind or ""),
            Cell(CERTAINTY[ranking.certainty], ranking.certainty),
            Cell(", ".join(rival.label() for rival in ranking.tied)),
        ]  # fmt: skip
        rows.append(
            Row([Cell(format_group_title(ranking.group)), *cells] if with_group else cells, get_tags(ranking.row))
        )
    numeric = frozenset(("devices", "samples/s (95 %)", "efficiency"))
    columns = ["of", *COLUMNS] if with_group else COLUMNS
    return Table(name, f"The fastest for each number of devices: {title}", columns, rows, numeric, CAPTION)


def _make_repeat_lines(report_data: ReportData, last: Ranking, with_code: bool) -> Iterator[Block]:
    """Make the command that repeats the row, and the lines for a program of one's own."""
    row, tags = last.row, get_tags(last.row)
    target = f"{last.best} on {_count_devices(last.gpus)}"
    yield Code(make_command(row), "sh", f"Measure {target} again", tags)
    recipe = make_recipe(row["strategy"], last.gpus, _get_device(report_data, row["run_id"]), row["options"])
    if recipe is None or not with_code:
        return
    title = f"The lines for {target}, around a model, an optimizer, a loss and batches of your own"
    yield Code(recipe.code, "python", title, tags)
    yield Code(recipe.start_command, "sh", "Start them", tags)
    if recipe.left_out:
        yield Paragraph(f"These lines do not set {join_with_and(recipe.left_out)}.", tags=tags)


def _get_device(report_data: ReportData, run_id: str) -> str:
    try:
        return report_data.result(run_id).scale.device
    except (InputError, KeyError):  # its file has been removed since
        return "cuda"


def _baseline_kind(row: dict[str, Any]) -> str | None:
    return next((kind for kind in ("bare", "self") if row[f"efficiency_{kind}"] is not None), None)
