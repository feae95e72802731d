"""The section `memory` of a report: how much of a model a device keeps under each strategy, and which runs had room.

The terminal shows the same sentences and table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scalebench.analysis.columns import RATE
from scalebench.analysis.memory import ModelMemory, bytes_per_parameter, format_strategy, group_by_model
from scalebench.analysis.memory import Row as MemoryRow
from scalebench.analysis.repeats import EstimateRatio
from scalebench.core import units
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData
from scalebench.report.tables import explain_doubt, format_ratio

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
    return doc.Section("memory", "Memory of a device", [*blocks, make_table(rows)])


def make_terminal_table(pooled: pd.DataFrame) -> doc.Table | None:
    """Return None if every device keeps a whole model, and all runs had room for it."""
    rows = [(model, row) for model in group_by_model(pooled) if _has_savings(model) for row in model.rows]
    return make_table(rows) if rows else None


def _has_savings(model: ModelMemory) -> bool:
    """Return whether a device keeps less than a whole model anywhere, or a run was out of memory."""
    return bool(model.out_of_memory) or any(map(model.keeps_less, model.rows))


def make_table(rows: Sequence[Item]) -> doc.Table:
    """Make the table of what devices keep, with the columns that any row has. Unknown figures are empty cells."""
    cells = []
    for model, row in rows:
        figures: dict[str, Any] = {name: spec.make_cell(row, name) for name in HEADS}
        figures |= {
            "strategy": format_strategy(row),
            "share": doc.format_cell(model.share(row), _format_share),
            "bytes_per_parameter": doc.format_cell(bytes_per_parameter(row), "{:.1f} B".format),
        }
        cells.append({name: spec.to_cell(value) for name, value in figures.items()})
    columns = [
        name
        for name in HEADS
        if (len({row[name] for _, row in rows}) > 1 if name in SETTINGS
            else name in ALWAYS or any(each[name].text for each in cells))
    ]  # fmt: skip
    values = [(doc.get_tags(row), [each[name] for name in columns])
              for (_, row), each in zip(rows, cells, strict=True)]  # fmt: skip
    words, caption = [HEADS[name] for name in (*SETTINGS, "strategy", "status")], doc.join_sentences(*CAPTION)
    heads = [HEADS[name] for name in columns]
    return spec.make_table("memory-table", "What a device keeps", heads, values, words, caption)


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
        on_devices = f"on {units.format_count(competing[0]['gpus'], 'device')}"
        shares: dict[str, list[str]] = {}  # what a state is a share of -> strategies with their shares
        for name, row in {format_strategy(row): row for row in competing if model.keeps_less(row)}.items():
            full, share = model.reference(row), model.share(row)
            assert full is not None and share is not None
            of = f"of {format_strategy(full)}'s {units.format_bytes(full['state_bytes'])}"
            shares.setdefault(of, []).append(f"{_format_share(share)} under {name}")
        if shares:
            text = "; ".join(f"{', '.join(each)}, {of}" for of, each in shares.items())
            yield f"{on_devices} the state of a device (weights, gradients, optimizer) is {text}"
        if (price := model.sharding_cost(competing, estimate_ratio)) is not None:
            ratio = price.ratio
            doubt = explain_doubt(ratio, price.sharded, price.full)
            yield (
                f"{on_devices} {format_strategy(price.sharded)}, the fastest that keeps less, has "
                f"{format_ratio(ratio.value, *ratio.limits)} times the samples/s of {format_strategy(price.full)}, the "
                f"fastest that keeps all{doubt and f', {doubt}'}"
            )
        out, fit = (", ".join(dict.fromkeys(format_strategy(row) for row in competing if row["status"] == status))
                    for status in ("oom", "ok"))  # fmt: skip
        if out:
            yield f"{on_devices} out of memory: {out}; {f'had room: {fit}' if fit else 'none had room'}"
    # `largest batch per device on 2 devices, within 1.50 GB a process: 1,500 under fsdp_gloo, 400 under ...`
    largest: dict[tuple[int, int | None], dict[str, int]] = {}
    for row in model.rows:
        if row["max_batch_per_device"] is not None:
            batches = largest.setdefault((row["gpus"], row["memory_limit_bytes"]), {})
            batches[format_strategy(row)] = max(row["max_batch_per_device"], batches.get(format_strategy(row), 0))
    for (gpus, limit), batches in largest.items():
        within = "" if limit is None else f", within {units.format_bytes(limit)} a process"
        ordered = sorted(batches.items(), key=lambda item: -item[1])
        text = ", ".join(f"{batch:,} under {name}" for name, batch in ordered)
        yield f"largest batch per device on {units.format_count(gpus, 'device')}{within}: {text}"
    if any(map(model.keeps_less, model.rows)) and not model.out_of_memory:
        yield "no run was out of memory: nothing had to be cut to fit, and what is saved is room for more"


def _format_share(share: float) -> str:
    return f"{100 * share:.0f} %"
