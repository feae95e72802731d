"""Tables of what scaling curves come to: their slopes, the devices that keep an efficiency, the jumps between nodes.
Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scalebench.curves import Curve
from scalebench.report import tables
from scalebench.report.blocks import Cell, Row, Table
from scalebench.report.drawing import DEVICES, Group, cell, sentences
from scalebench.slopes import Jump, Keeps, Slope, jumps, keeps, slope

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
    rows = [Row([cell(curve.name), *_jump(jump)], curve.tags) for curve in group.curves for jump in jumps(curve, kind)]
    if rows:
        heads = ["strategy", DEVICES, "nodes", "efficiency before", "after", "ratio", "remarks"]
        title, caption = f"Node boundaries: {group.title}", sentences(f"efficiency {words}", f"ratio: {JUMP}")
        yield Table(group.id("scaling", "nodes"), title, heads, rows, frozenset(heads[3:6]), caption)


def _fitted(curve: Curve, kind: str, wanted: float) -> list[Cell]:
    return [*_slope(slope(curve, kind)), _keeps(keeps(curve, wanted, kind))]


def _slope(fitted: Slope | None) -> list[Cell]:
    if fitted is None:
        return [Cell(""), Cell("")]
    shown = tables.ratio({"slope": fitted.value, "slope_low": fitted.low, "slope_high": fitted.high}, "slope")
    return [cell(shown, fitted.value), cell(", ".join(str(gpus) for gpus, _ in fitted.points))]


def _keeps(kept: Keeps) -> Cell:
    """`4 [2]`; `none` where not even the fewest devices do, empty where no efficiency is known."""
    if kept.measured is None:
        return Cell("")
    again = f"; again {', '.join(map(str, kept.again))}" if kept.again else ""
    return cell(f"{kept.value or 'none'} [{kept.surely or 'none'}]{again}", kept.value or 0)


def _jump(jump: Jump) -> list[Cell]:
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
