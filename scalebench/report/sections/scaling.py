"""The section `scaling` of a report: throughput, speedup and efficiency over devices, and what the curves come to.
Layer 3.

Tables of what scaling curves come to: their slopes, the devices that keep an efficiency, the jumps between nodes.
Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scalebench.analysis.scaling_curves import Curve, NodeBoundary, ScalingLimit, Slope, find_node_boundaries, find_scaling_limit, fit_slope
from scalebench.report import tables
from scalebench.report.document import (
    DEVICES,
    THROUGHPUT,
    Axis,
    Block,
    Cell,
    Cells,
    Chart,
    Group,
    Row,
    Section,
    Series,
    Table,
    bands,
    cell,
    devices_axis,
    groups,
    lines,
    sentences,
)
from scalebench.report.report_data import Evidence

SLOPE = (
    "slope is the fitted speedup per device: ordinary least squares, with an intercept, over the numbers of devices "
    "that are named; its 95 % limits are those of the regression, and two points have none"
)
JUMP = (
    "throughput per device after over before another node begins, with its 95 % interval; part of it is what as many "
    "more devices would have cost on one node"
)
REMARKS = {True: "", False: "no difference resolved", None: "no interval"}


def slope_table(group: Group, kinds: Mapping[str, str], wanted: float) -> Table:
    """A row for each curve; `kinds` are what speedups are against (bare, self, given) and its words for a head."""
    share = f"keeps {100 * wanted:g} %"
    heads = [f"{name}, {words}" for words in kinds.values() for name in ("slope", f"over {DEVICES}", share)]
    rows = [
        Row([cell(curve.name), *(one for kind in kinds for one in _fitted(curve, kind, wanted))], curve.tags)
        for curve in group.curves
    ]
    kept = (
        f"{share}: the most {DEVICES} up to which efficiency is no less, by the figures and, in brackets, by the lower"
    )
    caption = sentences(SLOPE, f"{kept} limits of their intervals")
    numeric = frozenset(name for name in heads if not name.startswith("over"))
    title = f"Slopes: {group.title}"
    return Table(group.id("scaling", "slopes"), title, ["strategy", *heads], rows, numeric, caption)


def jump_tables(group: Group, kind: str, words: str) -> Iterator[Table]:
    """Where curves go on to another node; none where all are on one. `words` tell what `kind` is."""
    rows = [Row([cell(curve.name), *_jump(jump)], curve.tags) for curve in group.curves for jump in find_node_boundaries(curve, kind)]
    if rows:
        heads = ["strategy", DEVICES, "nodes", "efficiency before", "after", "ratio", "remarks"]
        title, caption = f"Node boundaries: {group.title}", sentences(f"efficiency {words}", f"ratio: {JUMP}")
        yield Table(group.id("scaling", "nodes"), title, heads, rows, frozenset(heads[3:6]), caption)


def _fitted(curve: Curve, kind: str, wanted: float) -> list[Cell]:
    return [*_slope(fit_slope(curve, kind)), _keeps(find_scaling_limit(curve, wanted, kind))]


def _slope(fitted: Slope | None) -> list[Cell]:
    if fitted is None:
        return [Cell(""), Cell("")]
    shown = tables.ratio({"slope": fitted.value, "slope_low": fitted.low, "slope_high": fitted.high}, "slope")
    return [cell(shown, fitted.value), cell(", ".join(str(gpus) for gpus, _ in fitted.points))]


def _keeps(kept: ScalingLimit) -> Cell:
    """`4 [2]`; `none` where not even the fewest devices do, empty where no efficiency is known."""
    if kept.largest_measured is None:
        return Cell("")
    again = f"; again {', '.join(map(str, kept.regained_gpus))}" if kept.regained_gpus else ""
    return cell(f"{kept.gpus or 'none'} [{kept.certain_gpus or 'none'}]{again}", kept.gpus or 0)


def _jump(jump: NodeBoundary) -> list[Cell]:
    ratio = {"ratio": jump.ratio, "ratio_low": jump.low, "ratio_high": jump.high}
    return [
        cell(" to ".join(map(str, jump.gpus))),
        cell(" to ".join(map(str, jump.nodes))),
        *map(_share, (jump.before, jump.after)),
        cell(tables.ratio(ratio, "ratio"), jump.ratio),
        cell(REMARKS[jump.resolved]),
    ]


def _share(efficiency: float | None) -> Cell:
    shown = tables.percent({"share": efficiency, "share_low": None, "share_high": None}, "share")
    return cell(shown, efficiency)


DIFFERS = 0.05  # of the speedup; below it, curves against self would lie upon those against bare
ABOUT = {
    "bare": "against one device without a wrapper, the strategy's bare baseline",
    "self": "against the same strategy on one device",
}


def section(evidence: Evidence) -> Section | None:
    """None where nothing was measured on several devices."""
    found, words = groups(evidence.curves, lambda members: max(map(_most, members)) > 1)
    blocks: list[Block] = [*words]
    for group in found:
        rows = [row for curve in group.curves for row in curve.rows]
        kinds = _kinds(rows, evidence.given)
        blocks += [*group.words, _throughput(group, evidence)]
        for kind, about in kinds.items():
            blocks += _compared(group, kind, about)
        if kinds:
            heads = {kind: str(evidence.given) if kind == "given" else kind for kind in kinds}
            blocks.append(slope_table(group, heads, evidence.wanted_efficiency))
        kind = next(iter(kinds), "bare")
        blocks += jump_tables(group, kind, kinds.get(kind, ABOUT[kind]))
    return Section("scaling", "Scaling", blocks) if found else None


def _most(curve: Curve) -> int:
    return max(curve.gpus)


def _kinds(rows: Sequence[Cells], given: str | None) -> dict[str, str]:
    """What to compare with, in words: self only where it tells something else than bare, given where it was named."""
    known = [kind for kind in ABOUT if any(row[f"speedup_{kind}"] is not None for row in rows)]
    if known == ["bare", "self"] and not any(map(_differ, rows)):
        known = ["bare"]
    kinds = {kind: ABOUT[kind] for kind in known}
    if given is not None and any(row.get("speedup_given") is not None for row in rows):
        kinds["given"] = f"against {given}, the given baseline"
    return kinds


def _differ(row: Cells) -> bool:
    bare, own = row["speedup_bare"], row["speedup_self"]
    return own is not None and (bare is None or abs(own / bare - 1) > DIFFERS)


def _throughput(group: Group, evidence: Evidence) -> Chart:
    drawn = lines(group.curves, THROUGHPUT, "throughput")
    ideals = [_ideal(group, drawn, f"ideal of {name}", rate) for name, rate in _bare_rates(group, evidence).items()]
    what = "samples/s over all devices in steady state, more is better"
    ideal = "ideal is what the bare baseline, of several the fastest, would give without any loss" if ideals else ""
    title, caption = f"Throughput: {group.title}", sentences(what, ideal, bands(group.curves))
    axes = devices_axis(drawn), Axis("samples/s")
    return Chart(group.id("scaling", "throughput"), title, *axes, [*drawn, *ideals], "lines", caption)


def _bare_rates(group: Group, evidence: Evidence) -> dict[str, float]:
    """Samples/s of each bare strategy that these curves are compared with, such as torch's and TensorFlow's."""
    wanted = {row["baseline_bare_id"] for curve in group.curves for row in curve.rows} - {None}
    frame, fastest = evidence.pooled, dict[str, float]()
    for row in frame[frame["run_id"].isin(wanted) & frame[THROUGHPUT].notna()].to_dict("records"):
        name = str(row["strategy"])
        fastest[name] = max(fastest.get(name, 0.0), float(row[THROUGHPUT]))
    return fastest


def _compared(group: Group, kind: str, about: str) -> Iterator[Chart]:
    band = bands(group.curves)
    title = f"{about.partition(', ')[0]}: {group.title}"
    drawn = lines(group.curves, f"speedup_{kind}")
    ideal = _ideal(group, drawn, "ideal", _ideal_speedup(group, kind))
    caption = sentences(f"throughput over the baseline's, {about}; more is better", band)
    axes = devices_axis(drawn), Axis("speedup")
    yield Chart(group.id("scaling", "speedup", kind), f"Speedup {title}", *axes, [*drawn, ideal], "lines", caption)
    drawn = lines(group.curves, f"efficiency_{kind}")
    ideal = _ideal(group, drawn, "ideal", 1.0, share=True)
    caption = sentences(f"speedup over what so many devices could make it, {about}; more is better", band)
    axes = devices_axis(drawn), Axis("efficiency", percent=True)
    yield Chart(
        group.id("scaling", "efficiency", kind), f"Efficiency {title}", *axes, [*drawn, ideal], "lines", caption
    )


def _ideal_speedup(group: Group, kind: str) -> float:
    """Of one device: 1, and less where the given baseline had several."""
    if kind != "given":
        return 1.0
    rows = [row for curve in group.curves for row in curve.rows if row[f"efficiency_{kind}"]]
    return next((row[f"speedup_{kind}"] / row[f"efficiency_{kind}"] / row["gpus"] for row in rows), 1.0)


def _ideal(group: Group, drawn: list[Series], name: str, each: float, share: bool = False) -> Series:
    """A line of `each` per device, or a level of it."""
    places = list(devices_axis(drawn).ticks or [])
    return Series(name, places, [each * (1 if share else x) for x in places], tags=group.tags, style="ideal")
