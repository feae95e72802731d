"""The section `memory` of a report: how much of a model a device keeps under each strategy, and which runs had room.

The terminal shows the same sentences and table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from scalebench.analysis.columns import RATE
from scalebench.analysis.memory import ModelMemory, ShardingCost, bytes_per_parameter, format_strategy, group_by_model
from scalebench.analysis.memory import Row as MemoryRow
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.verdicts import explain_no_verdict
from scalebench.core import units
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData
from scalebench.report.tables import format_ratio

if TYPE_CHECKING:
    import pandas as pd

MAX_TERMINAL_SENTENCES = 12
CAPTION = (
    "State of a device: weights, gradients and optimizer's state that it keeps between steps, of the fullest device; "
    "a cell is empty where the framework cannot measure it",
    "of a whole model: over that of the bare baseline of the same framework, or, if that is not among these, of the "
    "row on one device that keeps most",
    "to expect in float32 of a device that keeps all: for each parameter 4 bytes of weights, 4 of gradients and the "
    "optimizer's state, 8 with Adam, 4 with momentum (Rajbhandari et al. 2020, ZeRO, count 16 bytes for Adam in mixed "
    "precision)",
    "the peak of a device includes activations, and is measured on GPUs only",
    "all processes: the most that was resident of them together, without mapped files",
)
Item = tuple[ModelMemory, MemoryRow]
SETTINGS = {"model": "model", "dataset": "data set", "hardware": "hardware", "optimizer": "optimizer"}
HEADS = {
    **SETTINGS,
    "strategy": "strategy",
    "gpus": "gpus",
    "batch_per_device": "batch per device",
    RATE: "samples/s (95 %)",
    "state_bytes": "state of a device",
    "share": "of a whole model",
    "bytes_per_parameter": "of a parameter",
    "peak_memory_bytes": "peak of a device",
    "rss_anon_bytes_max": "all processes",
    "max_batch_per_device": "largest batch",
    "status": "status",
}
ALWAYS = ("strategy", "gpus", "batch_per_device", RATE, "state_bytes", "status")

STATE_CHART = spec.Drawing(
    "state_bytes",
    "State of a device",
    "state",
    "Weights, gradients, optimizer's state of the fullest device; less leaves room for more.",
)


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if every device keeps a whole model, all runs had room, and no largest batch was searched: the peak
    memory of devices is in the section on their use."""
    models = [
        model
        for model in group_by_model(report_data.pooled)
        if _has_savings(model) or any(row["max_batch_per_device"] is not None for row in model.rows)
    ]
    rows = [(model, row) for model in models for row in model.rows]
    if not rows:
        return None
    estimate_ratio, several = report_data.configurations.estimate_ratio, len(models) > 1
    blocks: list[doc.Block] = []
    for model in models:
        first = model.rows[0]
        tags = {"model": str(first["model"]), "hardware": str(first["hardware"])}
        for text in describe(model, estimate_ratio):
            sentence = doc.join_sentences(f"{first['model']}, {text}" if several else text)
            blocks.append(doc.Paragraph(sentence, "plain", tags))
    groups, notes = doc.group_curves(report_data.curves, _states_differ)
    blocks += [make_table(rows), *notes]
    for group in groups:
        blocks += STATE_CHART("memory", group, report_data)
    return doc.Section("memory", "Memory of a device", blocks)


def _states_differ(curves: list[Curve]) -> bool:
    """Return whether bars of these curves would show anything but one height."""
    return len({row["state_bytes"] for curve in curves for row in curve.rows} - {None}) > 1


def make_terminal_table(pooled: pd.DataFrame) -> doc.Table | None:
    """Return None if every device keeps a whole model, and all runs had room for it."""
    rows = [(model, row) for model in group_by_model(pooled) if _has_savings(model) for row in model.rows]
    return make_table(rows) if rows else None


def _has_savings(model: ModelMemory) -> bool:
    """Return whether a device keeps less than a whole model anywhere, or a run was out of memory."""
    return bool(model.out_of_memory) or any(map(model.keeps_less, model.rows))


def make_table(rows: Sequence[Item]) -> doc.Table:
    """Make the table of what devices keep, with the columns that any row has. Unknown figures are empty cells."""

    def make_cell(item: Item, name: str) -> doc.Cell:
        model, row = item
        if name == "strategy":
            return doc.make_cell(format_strategy(row))
        if name == "share":
            return doc.format_cell(model.share(row), _format_share)
        if name == "bytes_per_parameter":
            return doc.format_cell(bytes_per_parameter(row), "{:.1f} B".format)
        return spec.make_cell(row, name)

    def is_needed(name: str) -> bool:
        if name in SETTINGS:
            return len({row[name] for _, row in rows}) > 1
        return name in ALWAYS or any(make_cell(item, name).text for item in rows)

    columns = list(filter(is_needed, HEADS))
    more = f"{len(rows) - doc.MAX_ROWS:,} more rows are in results.csv" if len(rows) > doc.MAX_ROWS else ""
    table_rows = [doc.Row([make_cell(item, name) for name in columns], doc.get_tags(item[1]))
            for item in rows[: doc.MAX_ROWS]]  # fmt: skip
    numeric = frozenset(HEADS[name] for name in columns if name not in (*SETTINGS, "strategy", "status"))
    heads, caption = [HEADS[name] for name in columns], doc.join_sentences(*CAPTION, more)
    return doc.Table("memory-table", "What a device keeps", heads, table_rows, numeric, caption)


def list_terminal_sentences(pooled: pd.DataFrame, estimate_ratio: EstimateRatio) -> list[str]:
    """Return the sentences for the terminal, without full stops."""
    models = group_by_model(pooled)
    several = len({model.rows[0]["model"] for model in models}) > 1
    texts = [
        f"{model.rows[0]['model']}, {text}" if several else text
        for model in models
        for text in describe(model, estimate_ratio)
    ]
    more = len(texts) - MAX_TERMINAL_SENTENCES
    return texts[:MAX_TERMINAL_SENTENCES] + ([f"memory: {more} more are in the report"] if more > 0 else [])


def describe(model: ModelMemory, estimate_ratio: EstimateRatio) -> Iterator[str]:
    """Yield sentences about the figures of one model."""
    for competing in model.competing_rows():
        sentences = (
            _describe_kept(model, competing),
            _describe_price(model.sharding_cost(competing, estimate_ratio)),
            _describe_room(competing),
        )
        yield from filter(None, sentences)
    yield from _describe_largest_batches(model.rows)
    if any(map(model.keeps_less, model.rows)) and not model.out_of_memory:
        yield "no run was out of memory: nothing had to be cut to fit, and what is saved is room for more"


def _describe_kept(model: ModelMemory, competing: Sequence[MemoryRow]) -> str | None:
    """Return `on 2 devices the state of a device (...) is 50 % under fsdp_gloo, of bare_torch's 2.46 MB`."""
    shares: dict[str, list[str]] = {}
    for row in {format_strategy(row): row for row in competing if model.keeps_less(row)}.values():
        full, share = model.reference(row), model.share(row)
        assert full is not None and share is not None
        of = f"of {format_strategy(full)}'s {units.format_bytes(full['state_bytes'])}"
        shares.setdefault(of, []).append(f"{_format_share(share)} under {format_strategy(row)}")
    if not shares:
        return None
    text = "; ".join(f"{', '.join(each)}, {of}" for of, each in shares.items())
    return f"{_on_devices(competing[0])} the state of a device (weights, gradients, optimizer) is {text}"


def _describe_price(price: ShardingCost | None) -> str | None:
    """Return `on 2 devices fsdp_gloo, the fastest that keeps less, has 0.94 [0.93, 0.95] times the samples/s ...`."""
    if price is None:
        return None
    ratio, doubt = price.ratio, ""
    if not ratio.has_limits:
        doubt = f", which is not sure: {explain_no_verdict(price.sharded, price.full)}"
    elif ratio.low <= 1 <= ratio.high:
        doubt = ", a difference that is not resolved"
    return (
        f"{_on_devices(price.sharded)} {format_strategy(price.sharded)}, the fastest that keeps less, has "
        f"{format_ratio(ratio.value, *ratio.limits)} times the samples/s of {format_strategy(price.full)}, the fastest "
        f"that keeps all{doubt}"
    )


def _describe_room(competing: Sequence[MemoryRow]) -> str | None:
    out = _join_names(row for row in competing if row["status"] == "oom")
    fit = _join_names(row for row in competing if row["status"] == "ok")
    if not out:
        return None
    return f"{_on_devices(competing[0])} out of memory: {out}; {f'had room: {fit}' if fit else 'none had room'}"


def _describe_largest_batches(rows: Iterable[MemoryRow]) -> Iterator[str]:
    """Yield `largest batch per device on 2 devices, within 1.50 GB a process: 1,500 under fsdp_gloo, 400 under ...`."""
    largest: dict[tuple[int, int | None], dict[str, int]] = {}
    for row in rows:
        if row["max_batch_per_device"] is not None:
            batches = largest.setdefault((row["gpus"], row["memory_limit_bytes"]), {})
            batches[format_strategy(row)] = max(row["max_batch_per_device"], batches.get(format_strategy(row), 0))
    for (gpus, limit), batches in largest.items():
        within = "" if limit is None else f", within {units.format_bytes(limit)} a process"
        ordered = sorted(batches.items(), key=lambda item: -item[1])
        text = ", ".join(f"{batch:,} under {name}" for name, batch in ordered)
        yield f"largest batch per device {_on_devices({'gpus': gpus})}{within}: {text}"


def _join_names(rows: Iterable[MemoryRow]) -> str:
    return ", ".join(dict.fromkeys(map(format_strategy, rows)))


def _on_devices(row: MemoryRow) -> str:
    return f"on {units.format_count(row['gpus'], 'device')}"


def _format_share(share: float) -> str:
    return f"{100 * share:.0f} %"
