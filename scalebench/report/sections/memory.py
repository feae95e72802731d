"""How much of a model a device keeps under each strategy, and which runs had room.

The terminal shows the same sentences and table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scalebench.analysis.columns import RATE, select_heads
from scalebench.analysis.identity import group_by
from scalebench.analysis.memory import ModelMemory, bytes_per_parameter, format_strategy, group_by_model
from scalebench.analysis.repeats import EstimateRatio
from scalebench.core import units
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData
from scalebench.report.tables import THROUGHPUT_HEAD, explain_doubt, format_whole_percent, make_cell

if TYPE_CHECKING:
    import pandas as pd

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
SETTINGS = {"model": "model", "dataset": "data set", "hardware": "hardware", "optimizer": "optimizer"}
FIGURES = {"peak_memory_bytes": "peak of a device"} | select_heads("rss_anon_bytes_max max_batch_per_device")


def list_blocks(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield the sentences about each model of `select_models`, and their table."""
    models = select_models(report_data.pooled)
    for model, text in _describe_models(models, report_data.configurations.estimate_ratio):
        tags = {name: str(model.rows[0][name]) for name in ("model", "hardware")}
        yield doc.Paragraph(doc.join_sentences(text), "plain", tags)
    yield make_table(models)


def list_terminal_sentences(pooled: pd.DataFrame, estimate_ratio: EstimateRatio) -> list[str]:
    """Return the sentences for the terminal, without full stops."""
    return [text for _, text in _describe_models(select_models(pooled), estimate_ratio)]


def make_terminal_table(pooled: pd.DataFrame) -> doc.Table | None:
    """Return None if there is nothing to show."""
    return make_table(models) if (models := select_models(pooled)) else None


def select_models(pooled: pd.DataFrame) -> list[ModelMemory]:
    """Return the models of which a device keeps less than all anywhere, a run was out of memory, or a largest batch was
    searched: the peak memory of devices is in the section on their use."""
    return [
        model
        for model in group_by_model(pooled)
        if model.out_of_memory
        or any(model.keeps_less(row) or row["max_batch_per_device"] is not None for row in model.rows)
    ]


def make_table(models: Sequence[ModelMemory]) -> doc.Table:
    """Make the table of what devices keep, with the settings in which rows differ and the figures that any row has."""
    pairs = [(model, row) for model in models for row in model.rows]
    settings = {name: head for name, head in SETTINGS.items() if len({row[name] for _, row in pairs}) > 1}
    rows = [
        (doc.get_tags(row), {
            **{head: row[name] for name, head in settings.items()},
            "strategy": format_strategy(row), doc.DEVICES: row["gpus"], "batch per device": row["batch_per_device"],
            THROUGHPUT_HEAD: make_cell(row, RATE), "state of a device": make_cell(row, "state_bytes"),
            "of a whole model": (model.share(row), format_whole_percent),
            "of a parameter": (bytes_per_parameter(row), "{:.1f} B".format),
            **{head: make_cell(row, name) for name, head in FIGURES.items()}, "status": row["status"],
        })
        for model, row in pairs
    ]  # fmt: skip
    words, caption = (*settings.values(), "strategy", "status"), doc.join_sentences(*CAPTION)
    optional = ("of a whole model", "of a parameter", *FIGURES.values())
    return spec.make_table("memory-table", "What a device keeps", rows, words, caption, optional)


def _describe_models(models: Sequence[ModelMemory], estimate_ratio: EstimateRatio) -> Iterator[tuple[ModelMemory, str]]:
    """Yield the sentences about each model, which is named if there are several."""
    several = len({model.rows[0]["model"] for model in models}) > 1
    for model in models:
        for text in describe(model, estimate_ratio):
            yield model, f"{model.rows[0]['model']}, {text}" if several else text


def describe(model: ModelMemory, estimate_ratio: EstimateRatio) -> Iterator[str]:
    """Yield sentences about the figures of one model."""
    for competing in model.competing_rows():
        on_devices = f"on {units.format_count(competing[0]['gpus'], 'device')}"
        shares: dict[str, list[str]] = {}  # what a state is a share of -> strategies with their shares
        for name, row in {format_strategy(row): row for row in competing if model.keeps_less(row)}.items():
            full, share = model.reference(row), model.share(row)
            assert full is not None and share is not None
            of = f"of {format_strategy(full)}'s {units.format_bytes(full['state_bytes'])}"
            shares.setdefault(of, []).append(f"{format_whole_percent(share)} under {name}")
        if shares:
            text = "; ".join(f"{', '.join(each)}, {of}" for of, each in shares.items())
            yield f"{on_devices} the state of a device (weights, gradients, optimizer) is {text}"
        if (price := model.sharding_cost(competing, estimate_ratio)) is not None:
            doubt = explain_doubt(price.ratio, price.sharded, price.full)
            yield (
                f"{on_devices} {format_strategy(price.sharded)}, the fastest that keeps less, has "
                f"{units.format_ratio(price.ratio)} times the samples/s of {format_strategy(price.full)}, the "
                f"fastest that keeps all{doubt and f', {doubt}'}"
            )
        out, fit = (", ".join(dict.fromkeys(format_strategy(row) for row in competing if row["status"] == status))
                    for status in ("oom", "ok"))  # fmt: skip
        if out:
            yield f"{on_devices} out of memory: {out}; {f'had room: {fit}' if fit else 'none had room'}"
    # `largest batch per device on 2 devices, within 1.50 GB a process: 1,500 under fsdp_gloo, 400 under ...`
    searches = [row for row in model.rows if row["max_batch_per_device"] is not None]
    for (gpus, limit), rows in group_by(searches, lambda row: (row["gpus"], row["memory_limit_bytes"])).items():
        within = "" if limit is None else f", within {units.format_bytes(limit)} a process"
        ascending = sorted(rows, key=lambda row: row["max_batch_per_device"])
        largest = {format_strategy(row): row["max_batch_per_device"] for row in ascending}
        text = ", ".join(
            f"{batch:,} under {name}" for name, batch in sorted(largest.items(), key=lambda item: -item[1])
        )
        yield f"largest batch per device on {units.format_count(gpus, 'device')}{within}: {text}"
    if any(map(model.keeps_less, model.rows)) and not model.out_of_memory:
        yield "no run was out of memory: nothing had to be cut to fit, and what is saved is room for more"
