"""The section `published` of a report: figures of published studies beside those measured here. Layer 3.

They are shown beside each other and nowhere put together: no interval, slope or ranking knows of a published figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalebench.curves import plain_rows
from scalebench.published import Study, study
from scalebench.report.blocks import Axis, Block, Chart, Section, Series, Words
from scalebench.report.drawing import Group, bands, devices_axis, groups, lines, sentences
from scalebench.report.evidence import Evidence
from scalebench.report.published_tables import alone, batch, beside, cite, slopes

APART = "Published figures are shown beside measured ones; nothing in this report is worked out of them."


def section(evidence: Evidence) -> Section | None:
    """None where no study was asked for."""
    if evidence.published is None or evidence.published.empty:
        return None
    rows = plain_rows(evidence.published)
    blocks: list[Block] = [Words(APART)]
    for name in dict.fromkeys(row["study"] for row in rows):
        blocks += _study(study(name), [row for row in rows if row["study"] == name], evidence)
    return Section("published", "Published figures", blocks)


def _study(about: Study, rows: list[dict[str, Any]], evidence: Evidence) -> Iterator[Block]:
    machines = [f"{name}: {words}" for name, words in about.machines.items()]
    yield Words(sentences(about.title, f"source: {about.source}", "; ".join(machines), *about.notes))
    measured = plain_rows(evidence.pooled[evidence.pooled["status"] == "ok"])
    yield from beside(about, rows, measured)
    found, words = groups(evidence.curves)
    yield from words
    for group in found:
        yield from _efficiency(about, rows, group)
    yield from slopes(about, rows, evidence.curves)
    yield alone(about, rows)


def _efficiency(about: Study, rows: Sequence[Mapping[str, Any]], group: Group) -> Iterator[Chart]:
    """Published points of the strategies of a group, in its scaling alone: a curve of weak scaling says nothing about
    one of strong."""
    strategies = {curve.tags["strategy"] for curve in group.curves}
    same = [
        row for row in rows
        if row["strategy"] in strategies and row["model"] == group.shared["model"]
        and row["scaling"] == group.shared["scaling"] and row["gpus"] and row["efficiency"] is not None
    ]  # fmt: skip
    there = _published(same)
    here = [curve for curve in group.curves if curve.tags["strategy"] in {row["strategy"] for row in same}]
    drawn = lines(here, f"efficiency_{about.against}")
    if not there or not drawn:
        return
    made = [*drawn, *there]
    ideal = devices_axis(made).ticks or []
    made.append(Series("ideal", ideal, [1.0] * len(ideal), style="ideal"))
    said = f"{group.shared['scaling']} scaling here and there"
    base = f"efficiency here is against {about.against}, there as published"
    caption = sentences(said, base, "open marks are published, on other hardware", bands(here), cite(about))
    yield Chart(
        group.id("published", about.name), f"{about.title}: efficiency, {group.title}", devices_axis(made),
        Axis("efficiency", percent=True), made, "lines", caption,
    )  # fmt: skip


def _published(rows: Sequence[Mapping[str, Any]]) -> list[Series]:
    """A series for each table, machine, strategy, batch and setting of a study."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        words = (row["strategy"], row["hardware"], batch(row), row["settings"])
        found.setdefault((row["table"], *words), []).append(row)
    made = []
    for (_, strategy, hardware, size, settings), members in found.items():
        name = ", ".join(filter(None, (f"{strategy} published", hardware, f"batch {size}" if size else "", settings)))
        ordered = sorted(members, key=lambda row: row["gpus"])
        x, y = [float(row["gpus"]) for row in ordered], [row["efficiency"] for row in ordered]
        tags = {"model": members[0]["model"], "strategy": strategy}
        made.append(Series(name, x, y, tags=tags, style="published", notes=[row["source"] for row in ordered]))
    return made
