"""Where the lost efficiency went, and the attributed runs behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.analysis.attribution import lost_efficiency as losses
from scalebench.analysis.attribution.causes import MIN_SHARE, AttributedRun, find_causes
from scalebench.analysis.identity import collect
from scalebench.analysis.scaling_curves import Curve, plain_rows
from scalebench.core import units
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import SWEEP_REPEATS
from scalebench.core.stats.estimates import Estimate
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData, list_left_out_configurations

if TYPE_CHECKING:
    import pandas as pd

MAX_BARS = 8  # of the chart below the answer
MIN_TITLE_SHARE = 0.25  # of the largest loss, above which a part of it is the title
MIN_DRAWN_SHARE = 0.005  # points of efficiency; smaller parts cannot be seen in a chart
Bar = tuple[Curve, int, AttributedRun]  # a configuration at one device count
COLOUR_OF_PART = {"communication": "sync", "drift": "rest"}  # of document.PARTS, where that has another name
REST, TITLE = "unexplained", "Where the lost efficiency went"
TABLE_CAPTION = (
    "Shares of ideal throughput with 95 % intervals. The loss, batch, wrapper and contention compare processes: "
    f"they have limits over repeats only (measure.repeats={SWEEP_REPEATS} gives them). The other parts compare "
    "conditions of one process, and have limits over its blocks. The parts add up to the loss; seconds are of one "
    'step. "in wrapper": measured only together with wrapper.'
)
PART_MEANINGS = {
    "batch": "smaller batches",
    "wrapper": "what the strategy costs on one device",
    "contention": "devices that slow each other down",
    "data": "loading",
    "imbalance": "waiting for the slowest device",
    "communication": "not hidden behind computation",
    "drift": "what changed between figures and probes",
}


def make_attributor(frame: pd.DataFrame) -> Callable[[Result], AttributedRun | None]:
    """Return what attributes the lost efficiency of a single repeat, with the baselines among the rows of a frame; of a
    run without one it returns None."""
    rows = plain_rows(frame)
    alone = [Path(row["path"]) for row in rows if row["gpus"] == 1 and row["status"] == "ok"]
    finder = losses.ReferenceRunFinder(read_result(folder / RESULT_FILE) for folder in alone)

    def attribute(result: Result) -> AttributedRun | None:
        references = finder.find(result)
        parts = losses.attribute_run(result, references)
        return None if parts is None else AttributedRun(parts, result, references, rows)

    return attribute


def make_run_table(parts: losses.Attribution) -> doc.Table:
    """Make the table of one run's parts for the terminal, with the reasons why some could not be measured apart."""
    rows: list[tuple[str, str, str, str]] = []
    for part in parts.parts:
        rows.append((" + ".join(part.names), units.format_seconds(part.step_s), units.format_percent(part.share), ""))
        reasons = dict.fromkeys(parts.missing[name] for name in part.names if name in parts.missing)
        rows += [("", "", "", reason) for reason in reasons]
    against = "against the bare baseline" if parts.against == "bare" else "against the strategy itself on one device"
    lost_s = units.format_seconds(parts.step_s - parts.ideal_s)
    rows += [("", "", "", ""), ("total loss", lost_s, units.format_percent(parts.lost), against)]
    heads = ("part", "of a step (95 %)", "of ideal throughput (95 %)", "remark")
    values: list[spec.TableRow] = [({}, dict(zip(heads, row, strict=True))) for row in rows]
    return spec.make_table("attribution", TITLE, values, ["remark"])


def _draw_losses(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Block]:
    """Yield chart and table of the lost parts, and what is known of them. The chart can be seen at a glance, since the
    page has it below the answer: of many bars those of the most devices of the strategies that lose least."""
    bars = list(_list_bars(group.curves, report_data.attributed_runs))
    best, most = bars, {id(curve): gpus for curve, gpus, _ in bars}
    if len(bars) > MAX_BARS and len(most) > 1:
        largest = [bar for bar in bars if most[id(bar[0])] == bar[1]]
        best = sorted(largest, key=lambda bar: bar[2].attribution.lost.value)[:MAX_BARS]
    yield _make_chart(group, best, "each strategy on its most devices" if len(best) < len(bars) else "")
    yield _make_table(group, bars)
    yield from _explain_unmeasured(bars)
    yield from _describe_causes(bars)


loss_groups = spec.Groups(
    "attribution",
    [_draw_losses],
    shows=lambda curve, report_data: any(_list_bars([curve], report_data.attributed_runs)),
    notes=list_left_out_configurations,
)


def find_largest_loss(case: AttributedRun) -> losses.Part | None:
    """Return the largest part that exceeds its noise; None if no part does, or where it exceeds the whole loss.

    It may where another part is a gain, such as drift; then it explains nothing.
    """
    parts = [part for name in PART_MEANINGS if name != "drift" and (part := case.significant(name)) is not None]
    largest = max(parts, key=lambda part: part.share.value, default=None)
    return largest if largest is not None and largest.share.value <= case.attribution.lost.value else None


def describe_largest_loss(part: losses.Part) -> str:
    """Return `21 % to contention: devices that slow each other down`."""
    meaning = " and ".join(PART_MEANINGS[name] for name in part.names)
    return f"{100 * part.share.value:.0f} % to {' and '.join(part.names)}: {meaning}"


def _list_bars(curves: Sequence[Curve], cases: Mapping[str, AttributedRun]) -> Iterator[Bar]:
    for curve in curves:
        for row in curve.rows:
            case = cases.get(str(row["run_id"]))
            if case is not None:
                yield curve, int(row["gpus"]), case


def _make_chart(group: doc.CurveGroup, bars: list[Bar], about: str) -> doc.Chart:
    """Make bars of ideal throughput, the best one first: efficiency, and the lost parts beside it."""
    bars = sorted(bars, key=lambda bar: bar[2].attribution.lost.value)
    names, tags = [f"{curve.name} x {gpus}" for curve, gpus, _ in bars], [curve.tags for curve, _, _ in bars]
    runs = [case.attribution for _, _, case in bars]

    def exceeds_noise(part: losses.Part) -> bool:
        """Return whether a part exceeds its noise; without limits, as of a single repeat, whether it is large."""
        share = part.share
        if part.names == ("drift",) or abs(share.value) < MIN_DRAWN_SHARE:
            return False
        return not share.low <= 0 <= share.high if share.has_limits else abs(share.value) >= MIN_SHARE

    parts_of_runs = [{part.names: part.share for part in run.parts if exceeds_noise(part)} for run in runs]

    def make_series(name: str, shares: Sequence[Estimate | None], part: str) -> doc.Series:
        values = [None if share is None else share.value for share in shares]
        low, high = ([None if share is None else share.limits[k] for share in shares] for k in (0, 1))
        return doc.Series(name, names, values, low, high, group.tags, point_tags=tags, part=part)

    series = [make_series("efficiency", [Estimate(1 - run.lost.value) for run in runs], "efficiency")]
    kinds = {parts for shares in parts_of_runs for parts in shares}
    for parts in sorted(kinds, key=lambda parts: [losses.LOSS_PARTS.index(name) for name in parts]):
        colour = COLOUR_OF_PART.get(parts[0], parts[0])
        series.append(make_series(" + ".join(parts), [shares.get(parts) for shares in parts_of_runs], colour))
    remainders = [run.lost.value - math.fsum(share.value for share in shares.values())
                  for run, shares in zip(runs, parts_of_runs, strict=True)]  # fmt: skip
    # Less is too small to be seen, or a gain within noise.
    rest = [Estimate(x) if x >= MIN_DRAWN_SHARE or x <= -MIN_SHARE else None for x in remainders]
    has_rest = any(share is not None for share in rest)
    series += [make_series(REST, rest, "rest")] if has_rest else []
    has_gains = any(y is not None and y < 0 for each in series for y in each.y)
    part_names = {name for parts in kinds for name in parts}
    caption = doc.join_sentences(
        about,
        "ideal is the bare baseline on one device times the devices, at the full batch",
        "; ".join(f"{name}: {PART_MEANINGS[name]}" for name in losses.LOSS_PARTS if name in part_names),
        f"{REST}: parts that do not exceed their noise, and drift" if has_rest else "",
        "diamonds are gains, which other parts outweigh" if has_gains else "",
    )
    title = TITLE
    if largest := [(part, curve, gpus) for curve, gpus, case in bars if (part := find_largest_loss(case)) is not None]:
        part, curve, gpus = max(largest, key=lambda loss: loss[0].share.value)
        title = f"{curve.name} on {units.format_count(gpus, 'device')} loses {describe_largest_loss(part)}"
        if part.share.value < MIN_TITLE_SHARE * max(run.lost.value for run in runs):
            title = f"{TITLE}: most of it is within the noise"
    axes = doc.Axis("strategy and devices"), doc.Axis("share of ideal throughput", percent=True)
    return doc.Chart(group.make_id(), title, *axes, series, "stacked", caption)


def _make_table(group: doc.CurveGroup, bars: list[Bar]) -> doc.Table:
    names = [name for name in losses.LOSS_PARTS if any(case.attribution.part(name) for _, _, case in bars)]
    rows = []
    for curve, gpus, case in bars:
        run = case.attribution
        lost, against = units.format_percent(run.lost), "" if run.against == "bare" else f" against {run.against}"
        values: dict[str, Any] = {
            "strategy": curve.name, "devices": gpus, "repeats": run.repeats,
            "ideal step": (run.ideal_s, units.format_seconds),
            "step": (run.step_s, units.format_seconds),
            "lost": doc.make_cell(lost + against, run.lost.value),
        }  # fmt: skip
        for name in names:
            part = run.part(name)
            if part is not None and part.names[0] != name:
                values[name] = doc.Cell(f"in {part.names[0]}")
            else:
                values[name] = (part and part.share, units.format_percent)
        rows.append((curve.tags, values))
    return spec.make_table(group.make_id("parts"), "Parts of the lost efficiency", rows, caption=TABLE_CAPTION)


def _explain_unmeasured(bars: list[Bar]) -> Iterator[doc.Paragraph]:
    """Say why possible parts have no figure of their own, and which run would give it."""
    pairs: list[tuple[tuple[str, str], str]] = []
    for curve, gpus, case in bars:
        run = case.attribution
        possible = {name for part in run.parts for name in part.names}
        possible |= {"wrapper"} if run.against != "bare" else set()
        names_of = collect((run.missing[name], name) for name in losses.LOSS_PARTS if name in possible & {*run.missing})
        pairs += [((" and ".join(names), reason), f"{curve.name} x {gpus}") for reason, names in names_of.items()]
    for (parts, reason), runs in collect(pairs).items():
        yield doc.Paragraph(f"{parts} of {', '.join(runs)} could not be measured separately: {reason}.", "warning")


def _describe_causes(bars: list[Bar]) -> Iterator[doc.Paragraph]:
    """Describe each cause once for each curve, with the figures of its run on the most devices."""
    causes = collect(
        ((id(curve), cause.part, cause.cause), (curve, gpus, cause))
        for curve, gpus, case in bars
        for cause in find_causes(case)
    )
    if causes:
        yield doc.Paragraph("Likely causes, with the numbers of these runs that support them; none is proven:")
    for runs in causes.values():
        curve, gpus, cause = runs[-1]
        also = f" (also {', '.join(str(count) for _, count, _ in runs[:-1])})" if runs[:-1] else ""
        text = f"{curve.name} on {units.format_count(gpus, 'device')}{also}, {cause.sentence()}"
        yield doc.Paragraph(text, tags=curve.tags)
