"""The section `attribution` of a report: where the lost efficiency went. Layer 3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from scalebench.analysis.attribution.causes import AttributedRun, Cause, find_causes
from scalebench.analysis.attribution.components import LOSS_PARTS
from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.report import attribution_cases
from scalebench.report.document import Axis, Block, Cell, Chart, Group, Row, Section, Series, Table, Words, groups
from scalebench.report.report_data import DETAILED, Evidence

MOST_BARS = 40  # of a chart
Bar = tuple[Curve, int, AttributedRun]  # a configuration at one number of devices
NAMED = {
    "batch": "smaller batches",
    "overhead": "the strategy's overhead on one device",
    "contention": "devices that slow each other down",
    "data": "loading",
    "imbalance": "waiting for the slowest",
    "transfer": "exposed transfer",
    "drift": "what changed between figures and probes",
}


def section(evidence: Evidence) -> Section | None:
    """None where no run has a baseline that it is not itself."""
    cases = attribution_cases.cases(evidence)
    found, left = groups(evidence.curves, lambda members: any(_bars(members, cases)))
    if not found:
        return None
    blocks: list[Block] = [*left]
    if len(evidence.frame) > len(evidence.detailed):
        blocks.append(Words(f"There are more than {DETAILED} runs: told is the first launch of each configuration."))
    for group in found:
        bars = list(_bars(group.curves, cases))
        blocks += [*group.words, *_chart(group, bars), _table(group, bars), *_untold(bars), *_causes(bars)]
    return Section("attribution", "Where the lost efficiency went", blocks)


def _bars(curves: list[Curve], cases: Mapping[str, AttributedRun]) -> Iterator[Bar]:
    for curve in curves:
        for row in curve.rows:
            case = cases.get(str(row["run_id"]))
            if case is not None:
                yield curve, int(row["gpus"]), case


def _chart(group: Group, bars: list[Bar]) -> Iterator[Block]:
    """Bars of ideal throughput: what is kept of it, and the parts that are lost upon that."""
    kept = bars
    if len(bars) > MOST_BARS:
        last = {id(curve): gpus for curve, gpus, _ in bars}
        kept = [bar for bar in bars if last[id(bar[0])] == bar[1]][:MOST_BARS]
        yield Words(f"{len(bars)} bars are more than a chart can show: these are of the most devices of each curve.")
    names = [f"{curve.name} x {gpus}" for curve, gpus, _ in kept]
    parts = {attribution_cases.name_of(part): part.names for _, _, case in kept for part in case.attribution.parts}
    efficiency = [1 - case.attribution.lost.value for _, _, case in kept]
    tags = [curve.tags for curve, _, _ in kept]
    drawn = [Series("kept", names, efficiency, tags=group.tags, point_tags=tags)]
    for label in sorted(parts, key=lambda label: [LOSS_PARTS.index(name) for name in parts[label]]):
        mine = [
            {attribution_cases.name_of(part): part.share for part in case.attribution.parts}.get(label)
            for _, _, case in kept
        ]
        drawn.append(
            Series(
                label,
                names,
                [None if one is None else one.value for one in mine],
                [None if one is None else one.limits[0] for one in mine],
                [None if one is None else one.limits[1] for one in mine],
                group.tags,
                point_tags=tags,
            )
        )
    yield Chart(
        group.id("attribution"),
        f"Where the lost efficiency went: {group.title}",
        Axis("strategy and devices"),
        Axis("share of ideal throughput", percent=True),
        drawn,
        "stacked",
        f"Ideal is the bare baseline on one device times the devices, at the full batch. {_legend(parts.values())} "
        "Parts below zero gain.",
    )


def _legend(groups: Iterable[tuple[str, ...]]) -> str:
    there = {name for names in groups for name in names}
    told = [name for name in LOSS_PARTS if name in there]
    return "; ".join(f"{name}: {NAMED[name]}" for name in told) + "."


def _table(group: Group, bars: list[Bar]) -> Table:
    shown = [name for name in LOSS_PARTS if any(case.attribution.part(name) for _, _, case in bars)]
    columns = ["strategy", "devices", "launches", "ideal update", "update", "lost", *shown]
    rows = []
    for curve, gpus, case in bars:
        one = case.attribution
        head = [Cell(curve.name, curve.name), Cell(str(gpus), gpus), Cell(str(one.repeats), one.repeats)]
        head += [Cell(units.format_seconds(value), value) for value in (one.ideal_s, one.step_s)]
        against = "" if one.against == "bare" else f" against {one.against}"
        head.append(Cell(attribution_cases.percent(one.lost) + against, one.lost.value))
        rows.append(Row([*head, *(_cell(case, name) for name in shown)], curve.tags))
    over = {case.attribution.repeats > 1 for _, _, case in bars}
    intervals = {
        frozenset({False}): "over blocks of one launch",
        frozenset({True}): "over launches, three and more",
    }.get(frozenset(over), "over launches where there are three and more, else over blocks of one")
    return Table(
        group.id("attribution-parts"),
        f"Parts of the lost efficiency: {group.title}",
        columns,
        rows,
        frozenset(columns[1:]),
        f"Shares of ideal throughput, 95 % intervals {intervals}. The parts add up to what is lost; seconds are of one "
        "update. A part within another's figure could not be told from it.",
    )


def _cell(case: AttributedRun, name: str) -> Cell:
    part = case.attribution.part(name)
    if part is None:
        return Cell("")
    if part.names[0] != name:
        return Cell(f"in {part.names[0]}")
    return Cell(attribution_cases.percent(part.share), part.share.value)


def _untold(bars: list[Bar]) -> Iterator[Words]:
    """Why parts could not be told, and which run would."""
    found: dict[tuple[str, str], list[str]] = {}
    for curve, gpus, case in bars:
        for reason, names in attribution_cases.untold(case.attribution).items():
            found.setdefault((" and ".join(names), reason), []).append(f"{curve.name} x {gpus}")
    for (names, reason), runs in found.items():
        yield Words(f"Not told apart, {names} of {', '.join(runs)}: {reason}.", "warning")


def _causes(bars: list[Bar]) -> Iterator[Words]:
    """Of each curve each cause once, by the run whose figures are told: the one of most devices."""
    found: dict[tuple[int, str, str], list[tuple[Curve, int, Cause]]] = {}
    for curve, gpus, case in bars:
        for cause in find_causes(case):
            found.setdefault((id(curve), cause.part, cause.cause), []).append((curve, gpus, cause))
    if found:
        yield Words("What usually makes such parts large, and what the figures of these runs support; none is proven:")
    for runs in found.values():
        curve, gpus, cause = runs[-1]
        also = ", ".join(str(count) for _, count, _ in runs[:-1])
        yield Words(
            f"{curve.name} on {gpus} {'device' if gpus == 1 else 'devices'}{f' (also {also})' if also else ''}, "
            f"{cause.sentence()}",
            tags=curve.tags,
        )
