"""The section `memory` of a report: how much of a model a device keeps under each strategy, who had room. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator

from scalebench.curves import Curve
from scalebench.footprint import Footprints, footprints
from scalebench.report import memory
from scalebench.report.blocks import Axis, Block, Chart, Row, Section, Table, Words
from scalebench.report.drawing import DEVICES, MOST_ROWS, Group, bars, groups, sentences, tags
from scalebench.report.evidence import Evidence

CAPTION = (
    "State of a device: weights, gradients and optimizer's state that it keeps from update to update, of the fullest "
    "device; an empty cell is what the framework cannot tell",
    "of a whole model: over that of the bare baseline of the same framework, or, where that is not among these, of the "
    "row on one device that keeps most",
    "to expect in float32 of a device that keeps all: for each parameter 4 bytes of weights, 4 of gradients and the "
    "optimizer's state, 8 with Adam, 4 with momentum (Rajbhandari et al. 2020, ZeRO, count 16 bytes for Adam in mixed "
    "precision)",
    "the peak of a device has activations in it too, and is counted on GPUs only",
    "all processes: the most that was resident of them together, without mapped files",
)


def section(evidence: Evidence) -> Section | None:
    """None where nobody told what a device keeps, and no run was out of memory."""
    found = footprints(evidence.pooled)
    rows = [(one, row) for one in found for row in one.rows]
    if not rows:
        return None
    blocks: list[Block] = [*(words for one in found for words in _words(one, len(found) > 1))]
    drawn, left_out = groups(evidence.curves, _differs)
    blocks += [_table(rows), *left_out, *(chart for group in drawn for chart in _chart(group))]
    return Section("memory", "Memory of a device", blocks)


def _words(one: Footprints, several: bool) -> Iterator[Words]:
    first = one.rows[0]
    tagged = {"model": str(first["model"]), "hardware": str(first["hardware"])}
    for said in memory.of(one):
        yield Words(sentences(f"{first['model']}, {said}" if several else said), "plain", tagged)


def _table(rows: list[tuple[Footprints, memory.Row]]) -> Table:
    shown = memory.columns(rows)
    kept = rows[:MOST_ROWS]
    made = [Row([show(one, row) for show in shown.values()], tags(row)) for one, row in kept]
    more = f"{len(rows) - len(kept):,} rows more are in the frame" if len(kept) < len(rows) else ""
    caption = sentences(*CAPTION, more)
    return Table("memory-table", "What a device keeps", list(shown), made, frozenset(shown) - memory.WORDS, caption)


def _differs(curves: list[Curve]) -> bool:
    """Whether bars of these would show anything but one height."""
    return len({row["state_bytes"] for curve in curves for row in curve.rows} - {None}) > 1


def _chart(group: Group) -> Iterator[Chart]:
    drawn = bars(group.curves, "state_bytes")
    caption = sentences("weights, gradients and optimizer's state of the fullest device; less leaves room for more")
    head = f"State of a device: {group.title}"
    yield Chart(group.id("memory", "state"), head, Axis(DEVICES), Axis("bytes"), drawn, "bars", caption)
