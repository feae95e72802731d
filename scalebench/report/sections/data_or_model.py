"""The section `data_or_model` of a report: what data and model parallelism exchange, which should win and which did.
Layer 3.

Data or model parallelism for people: two tables, and what they come to in words, for the page and the terminal.
Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scalebench.core.stats.estimate_arithmetic import rate_to_seconds
from scalebench.analysis.prediction.calibration import RATE, Read
from scalebench.analysis.prediction.data_or_model import DATA, KINDS, MODEL, PIPELINE, STAGED, Comparison, comparisons
from scalebench.analysis.scaling_curves import estimate_of, plain_rows
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate
from scalebench.report.document import MOST_ROWS, Block, Cell, Row, Section, Table, Words, cell, sentences, tags
from scalebench.report.report_data import Evidence

if TYPE_CHECKING:
    import pandas as pd

ID = "data-or-model"
BYTES = (
    "sends: bytes that a device sends in an update, the mean over the devices. With data parallelism 2 (n - 1) / n "
    "times the gradients of all parameters, in a ring; with model parallelism, and in a pipeline, the activations at "
    "the cuts and their gradients",
    "FLOP/B: operations of all devices over what all of them send. That of data parallelism grows with the batch, that "
    "of model parallelism does not",
    "device: operations a second of one device without any strategy, its optimizer left out, and where it was measured "
    "with several batches, what a pass takes before its first sample. Link: by the exchange of "
    "gradients alone, over all data-parallel runs on as many devices, or as the hardware's YAML has it",
    "data from: the global batch from which on data parallelism should be ahead of model parallelism, or a pipeline",
)
NEXT_TO_NOTHING_S = 1e-9
WINNERS = (
    "should: predicted seconds of an update, of the figures above and of the optimizer's seconds on one device, and "
    "of no step time of these runs. Nothing of an exchange or transfer is hidden behind work, and devices do not slow "
    "each other down",
    "took: the samples of an update over the measured throughput, with 95 % limits",
    "tied: within those limits",
)


def found(pooled: pd.DataFrame, read: Read) -> list[Comparison]:
    """Of a frame with a row for each configuration, in the order of models, devices and batches."""
    if not pooled["strategy"].isin(list(STAGED)).any():
        return []  # without a look at each of ten thousand rows
    made = comparisons(plain_rows(pooled), read)
    places = {name: place for place, name in enumerate(dict.fromkeys(str(one.row["model"]) for one in made))}
    return sorted(made, key=lambda one: (places[str(one.row["model"])], one.row["gpus"], one.global_batch))


def winners(made: Sequence[Comparison], limits: bool = True) -> Table:
    """Seconds of each kind, and who wins; `limits`: with those of what was measured."""
    kinds = [kind for kind in KINDS if any(kind in one.ways for one in made)]
    numeric = ["gpus", "global batch", *(f"{kind} {what}" for kind in kinds for what in ("should", "took"))]
    rows = []
    for one in made:
        steps = [part for kind in kinds for part in (_should(one, kind), _took(one, kind, limits))]
        ends = [cell(one.predicted or ""), cell(_measured(one)), cell(_right(one))]
        rows.append(Row([*_head(one), *steps, *ends], labels(one)))
    columns = ["model", *numeric, "should win", "won", "as predicted"]
    return Table(
        f"{ID}-winners", "Data or model parallelism: predicted and measured", columns, rows, frozenset(numeric),
        sentences(*WINNERS),
    )  # fmt: skip


def exchanged(made: Sequence[Comparison]) -> Table:
    """Bytes, operations for each of them, and what the prediction stands on."""
    over = [kind for kind in (MODEL, PIPELINE) if any(kind in one.ways for one in made)]
    from_on = [f"data from, over {kind}" for kind in over]
    heads = ["gpus", "global batch", "data sends", "model sends", "data FLOP/B", "model FLOP/B", "device", "link"]
    rows = []
    for one in made:
        other = next((kind for kind in over if kind in one.ways and one.ways[kind].update), MODEL)
        parts = [_sends(one, DATA), _sends(one, other), _intensity(one, DATA), _intensity(one, other)]
        rows.append(Row([*_head(one), *parts, *_rates(one), *(_from(one, kind) for kind in over)], labels(one)))
    title, numeric = "Bytes of an update, and the operations for each of them", frozenset((*heads, *from_on))
    return Table(f"{ID}-bytes", title, ["model", *heads, *from_on], rows, numeric, sentences(*BYTES))


def answers(made: Sequence[Comparison]) -> Iterator[tuple[str, Comparison]]:
    """A sentence for each model and number of devices, with one of its comparisons."""
    groups: dict[tuple[str, int, str], list[Comparison]] = {}
    for one in made:
        groups.setdefault((str(one.row["model"]), one.row["gpus"], str(one.row["framework"])), []).append(one)
    several = len({framework for *_, framework in groups}) > 1
    for (model, gpus, framework), members in groups.items():
        by = f" with {framework}" if several else ""
        parts = [_told("should win", [(one.predicted, one.global_batch) for one in members])]
        parts += [_told("won", [(one.measured, one.global_batch) for one in members])]
        parts += [_from_on(members[-1], kind) for kind in (MODEL, PIPELINE)]
        said = "; ".join(part for part in parts if part) or "neither predicted nor measured both ways"
        yield f"{model} on {gpus} devices{by}: {said}", members[0]


def verdict(made: Sequence[Comparison]) -> str:
    """How often it was right; empty where that cannot be told of any."""
    told = [one.right for one in made if one.right is not None]
    return f"the kind that should win did, or is tied with it, in {sum(told)} of {len(told)}" if told else ""


def unpredicted(made: Sequence[Comparison]) -> list[str]:
    """Why there is no prediction, each reason once, with the models and kinds that it is true of."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for one in made:
        for kind, way in one.ways.items():
            if way.reason is not None:
                models, kinds = found.setdefault(way.reason, ({}, {}))
                models[str(one.row["model"])], kinds[kind] = None, None
    return [f"{', '.join(of)}: {', '.join(kinds)} not predicted: {why}" for why, (of, kinds) in found.items()]


def labels(one: Comparison) -> dict[str, str]:
    """What a reader can filter by; its strategies are several."""
    return {name: value for name, value in tags(one.row).items() if name != "strategy"}


def _head(one: Comparison) -> list[Cell]:
    gpus = one.row["gpus"]
    return [cell(str(one.row["model"])), cell(str(gpus), gpus), cell(f"{one.global_batch:,}", one.global_batch)]


def _should(one: Comparison, kind: str) -> Cell:
    seconds = one.predicted_s(kind)
    return Cell("") if seconds is None else cell(units.format_seconds(seconds), seconds)


def _took(one: Comparison, kind: str, limits: bool) -> Cell:
    """Or the status of what did not go well."""
    way = one.ways.get(kind)
    if way is None or not way.measured:
        return Cell("") if way is None else Cell(str(way.row["status"]))
    taken = rate_to_seconds(way.row[RATE], estimate_of(way.row, RATE, "throughput"), one.global_batch)
    return cell(_seconds(taken) if limits else units.format_seconds(taken.value), taken.value)


def _seconds(taken: Estimate) -> str:
    return units.format_duration(taken)


def _measured(one: Comparison) -> str:
    """`pipeline (pipeline_gpipe)`, `data (ddp_gloo), tied: model`."""
    if one.measured is None:
        return ""
    name = f"{one.measured} ({one.ways[one.measured].row['strategy']})"
    return f"{name}, tied: {', '.join(one.tied)}" if one.tied else name


def _right(one: Comparison) -> str:
    return {None: "", True: "yes", False: "no"}[one.right]


def _sends(one: Comparison, kind: str) -> Cell:
    way = one.ways.get(kind)
    if way is None or way.update is None:
        return Cell("")
    sent = way.update.sent_bytes(one.global_batch)
    return cell(units.format_bytes(sent), sent)


def _intensity(one: Comparison, kind: str) -> Cell:
    way = one.ways.get(kind)
    if way is None or way.update is None or one.known is None:
        return Cell("")
    found = way.update.flops_per_byte(one.known.work, one.global_batch)
    return cell(f"{found:,.0f}", found)


def _rates(one: Comparison) -> list[Cell]:
    """`34.1 GFLOP/s`, `34.1 GFLOP/s, 2.10 ms a pass`; `1.20 GB/s`, `1.20 GB/s, 45.0 us a message`."""
    if one.known is None:
        return [Cell(""), Cell("")]
    rates = one.known.rates
    link = f"{units.format_bytes(rates.bytes_per_s)}/s"
    link += f", {units.format_seconds(rates.latency_s)} a message" if rates.latency_s else ""
    device = f"{rates.flops_per_s / 1e9:,.1f} GFLOP/s"
    device += f", {units.format_seconds(pass_s)} a pass" if (pass_s := one.known.work.pass_s) > NEXT_TO_NOTHING_S else ""
    return [cell(device, rates.flops_per_s), cell(link, rates.bytes_per_s)]


def _from(one: Comparison, kind: str) -> Cell:
    batch = one.data_wins_from(kind)
    return Cell("") if batch is None else cell("any" if batch <= 1 else f"{batch:,.0f}", batch)


def _told(verb: str, found: Sequence[tuple[str | None, int]]) -> str:
    """`data should win at 64 and 256, model at 8`"""
    batches: dict[str, list[str]] = {}
    for kind, batch in found:
        if kind is not None:
            batches.setdefault(kind, []).append(f"{batch:,}")
    parts = [f"{kind} {verb} at {' and '.join(several)}" for kind, several in batches.items()]
    return ", ".join(parts)


def _from_on(one: Comparison, kind: str) -> str:
    batch = one.data_wins_from(kind)
    if batch is None:
        return ""
    return f"data should be ahead of {kind} {'at every batch' if batch <= 1 else f'from {batch:,.0f} on'}"


def section(evidence: Evidence) -> Section | None:
    """None where no model and batch was tried both ways."""
    made = found(evidence.pooled, lambda row: evidence.result(str(row["run_id"])))
    if not made:
        return None
    blocks: list[Block] = []
    for said, one in answers(made):
        blocks.append(Words(f"{said}.", "answer", labels(one)))
    if said := verdict(made):
        blocks.append(Words(sentences(said)))
    blocks += [winners(made[:MOST_ROWS]), exchanged(made[:MOST_ROWS])]
    if len(made) > MOST_ROWS:
        blocks.append(Words(f"{MOST_ROWS} of {len(made)} are shown."))
    blocks += [Words(f"{reason}.") for reason in unpredicted(made)]
    return Section(ID, "Data or model parallelism", blocks)
