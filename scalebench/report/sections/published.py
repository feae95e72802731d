"""The section `published` of a report: figures of published studies beside those measured here. Layer 3.

They are shown beside each other and nowhere put together: no interval, slope or ranking knows of a published figure.

Tables of published rows, alone and beside measured ones; the two are told apart in every column. Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalebench.analysis.published import Study, load_study
from scalebench.analysis.scaling_curves import Curve, format_batch, plain_rows, fit_slope
from scalebench.report import tables
from scalebench.report.document import (
    THROUGHPUT,
    Axis,
    Block,
    Cell,
    Chart,
    Group,
    Row,
    Section,
    Series,
    Table,
    Words,
    bands,
    cell,
    devices_axis,
    groups,
    lines,
    sentences,
)
from scalebench.report.report_data import Evidence

Cells = Mapping[str, Any]  # of one row, None for null
SHARES = ("share", "efficiency", "of_tf_cnn", "bandwidth", "cores")  # quantities that are shares
FIGURES = (THROUGHPUT, "step_s", "speedup", "efficiency", "slope", "value")
HEADS = {THROUGHPUT: "samples/s", "step_s": "a step", "value": "other"}
SAME = ("model", "strategy")  # and the number of devices
BESIDE = (
    "model, strategy, devices, scaling published, scaling here, hardware published, hardware here, batch published, "
    "batch here, samples/s published, samples/s here, speedup published, speedup here, efficiency published, "
    "efficiency here, remarks"
).split(", ")


def beside(study: Study, rows: Sequence[Cells], measured: Sequence[Cells]) -> Iterator[Table]:
    """Published rows of a model, strategy and number of devices that was measured here, each with every such row."""
    made = [
        Row(_both(study, row, mine), {name: mine[name] for name in ("model", "strategy")})
        for row in rows
        for mine in measured
        if _figures(row) and row["gpus"] == mine["gpus"] and all(row[name] == mine[name] for name in SAME)
    ]
    if made:
        numeric = frozenset(
            head for head in BESIDE if head.split()[0] in ("devices", "samples/s", "speedup", "efficiency")
        )
        about = f"speedup and efficiency here are against {study.against}, with 95 % intervals"
        title = f"{study.title}: beside what was measured here"
        yield Table(
            f"published-{study.name}-beside".replace("_", "-"),
            title,
            BESIDE,
            made,
            numeric,
            sentences(about, cite(study)),
        )


def slopes(study: Study, rows: Sequence[Cells], curves: Sequence[Curve]) -> Iterator[Table]:
    """Fitted speedup per device there and here."""
    made = []
    for row in rows:
        for curve in curves if row["slope"] is not None else ():
            fitted = fit_slope(curve, study.against)
            if fitted is None or any(row[name] != curve.tags[name] for name in SAME):
                continue
            here = {"slope": fitted.value, "slope_low": fitted.low, "slope_high": fitted.high}
            over = ", ".join(f"{gpus}" for gpus, _ in fitted.points)
            cells = [
                *(cell(row[name] or "") for name in (*SAME, "scaling")), cell(curve.group["scaling"]),
                cell(row["hardware"] or ""), cell(curve.group["hardware"]), figure(row, "slope"),
                cell(tables.ratio(here, "slope"), fitted.value), cell(over), cell(row["remark"] or ""),
            ]  # fmt: skip
            made.append(Row(cells, {name: curve.tags[name] for name in SAME}))
    if made:
        heads = [*SAME, "scaling published", "scaling here", "hardware published", "hardware here", "slope published",
                 "slope here", "over devices", "remarks"]  # fmt: skip
        title = f"{study.title}: slopes beside those measured here"
        yield Table(f"published-{study.name}-slopes".replace("_", "-"), title, heads, made,
                    frozenset({"slope published", "slope here"}), cite(study))  # fmt: skip


def alone(study: Study, rows: Sequence[Cells]) -> Table:
    """Everything that these rows tell; columns in which none has anything are left out."""
    told = [
        name for name in ("model", "strategy", "method", "settings", "hardware", "gpus", "scaling") if _any(rows, name)
    ]
    figures = [name for name in FIGURES if _any(rows, name)]
    heads = [
        "table",
        *told,
        *["batch"][: any(map(batch, rows))],
        *(HEADS.get(name, name) for name in figures),
        "remarks",
        "where",
    ]
    made = []
    for row in rows:
        cells = [cell(row["table"].replace("_", " ")), *(_text(row, name) for name in told)]
        cells += [cell(batch(row))] if "batch" in heads else []
        cells += [*(figure(row, name) for name in figures), cell(_remark(row)), cell(row["source"])]
        made.append(Row(cells, {name: row[name] for name in SAME if row[name]}))
    numeric = frozenset({"gpus", *(HEADS.get(name, name) for name in figures)})
    named = f"published-{study.name}".replace("_", "-")
    return Table(named, f"{study.title}: as published", heads, made, numeric, cite(study))


def cite(study: Study) -> str:
    return f"Source: {study.source}."


def batch(row: Cells) -> str:
    """`75 per device`, of strong scaling `32 in all`; empty where the study does not say."""
    known = row["global_batch"] if row["scaling"] == "strong" else row["batch_per_device"]
    return "" if known is None else format_batch({**row, "scaling": row["scaling"] or "weak"})


def figure(row: Cells, name: str) -> Cell:
    """As the study has it: no digit more."""
    value = row[name]
    if value is None:
        return Cell("")
    if name == "value":
        share = any(word in row["quantity"] for word in SHARES)
        return cell(
            f"{row['quantity'].replace('_', ' ')}: {f'{100 * value:.4g} %' if share else f'{value:,.9g}'}", value
        )
    if name == "efficiency":
        return cell(f"{100 * value:.2f} %", value)
    if name == "step_s":
        return cell(f"{1000 * value:.4g} ms", value)
    return cell(f"{value:,.6g}" if name == THROUGHPUT else f"{value:.3f}".rstrip("0").rstrip("."), value)


def _both(study: Study, row: Cells, mine: Cells) -> list[Cell]:
    compared = [("speedup", tables.ratio), ("efficiency", tables.percent)]
    found = [cell(row["model"]), cell(row["strategy"]), cell(str(row["gpus"]), row["gpus"])]
    found += [cell(row["scaling"] or ""), cell(mine["scaling"]), cell(row["hardware"] or ""), cell(mine["hardware"])]
    found += [cell(batch(row)), cell(format_batch(mine))]
    found += [figure(row, THROUGHPUT), cell(tables.throughput(dict(mine)), mine[THROUGHPUT])]
    for name, show in compared:
        column = f"{name}_{study.against}"
        found += [figure(row, name), cell(show(dict(mine), column), mine[column])]
    return [*found, cell(_remark(row))]


def _remark(row: Cells) -> str:
    ours = f"ours: {', '.join(row['derived'].split()).replace('_', ' ')}" if row["derived"] else ""
    return "; ".join(filter(None, (row["settings"] or "", row["remark"] or "", ours)))


def _figures(row: Cells) -> bool:
    return any(row[name] is not None for name in (THROUGHPUT, "speedup", "efficiency"))


def _any(rows: Sequence[Cells], name: str) -> bool:
    return any(row[name] is not None for row in rows)


def _text(row: Cells, name: str) -> Cell:
    value = row[name]
    return cell("" if value is None else str(value), value if isinstance(value, int) else None)


APART = "Published figures are shown beside measured ones; nothing in this report is worked out of them."


def section(evidence: Evidence) -> Section | None:
    """None where no study was asked for."""
    if evidence.published is None or evidence.published.empty:
        return None
    rows = plain_rows(evidence.published)
    blocks: list[Block] = [Words(APART)]
    for name in dict.fromkeys(row["study"] for row in rows):
        blocks += _study(load_study(name), [row for row in rows if row["study"] == name], evidence)
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
