"""The section `batch_or_devices` of a report: more devices or a larger batch, and what fewer exchanges save.
Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalebench.analysis.batch_size import BATCH, make_batch_curves
from scalebench.analysis.devices_or_batch import DevicesOrBatch, BatchGain, compare_devices_with_batch, list_batch_gains
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.time_to_target import TrainingOutcome, summarize_trainings
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate
from scalebench.report import tables
from scalebench.report.document import (
    MOST_ROWS,
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
    groups,
    sentences,
    series,
    tags,
)
from scalebench.report.report_data import Evidence

ID = "batch-or-devices"
CHOICES = (
    "N devices of b samples beside one device of N * b: as many samples in an update, and as many updates an epoch",
    "ratio: throughput of N devices over that of one; sooner: seconds of training that one device takes to the target "
    "over those of N devices; above 1 the devices win. Both with 95 % limits",
    "to target: seconds of training, of several seeds their geometric mean; empty where one of them never got there",
)
GAINS = (
    "predicted: exposed sync of an update times the updates of an epoch, before minus after: what fewer exchanges save",
    "measured: the epoch before minus after. The rest is how much better a device works with a larger batch",
    "95 % limits; empty where probes were not made or an epoch is not known",
)


def section(evidence: Evidence) -> Section | None:
    """None where nothing was measured both ways, nor two batches on several devices."""
    found = compare_devices_with_batch(evidence.curves, summarize_trainings(evidence.frame))
    drawn, words = groups(make_batch_curves(evidence.curves))
    fewer = [(curve, gain) for group in drawn for curve in group.curves for gain in list_batch_gains(curve)]
    if not found and not fewer:
        return None
    blocks: list[Block] = [*_answers(found)]
    if found:
        blocks += [*words, *(chart for group in drawn for chart in _chart(group, found)), *_choices(found)]
    blocks += [_gains(fewer)] if fewer else []
    return Section(ID, "More devices or a larger batch", blocks)


def _answers(found: Sequence[DevicesOrBatch]) -> Iterator[Words]:
    """Of the largest number of devices of each strategy, where it stands beside its own kind: what wins."""
    best: dict[tuple[str, ...], DevicesOrBatch] = {}
    for choice in found:
        key = (*tags(choice.many_devices).values(), str(choice.same_strategy))
        kept = best.get(key)
        if kept is None or _size(choice) > _size(kept):
            best[key] = choice
    for choice in [one for key, one in best.items() if one.same_strategy or (*key[:-1], "True") not in best]:
        yield Words(_answer(choice), "answer", tags(choice.many_devices))


def _size(choice: DevicesOrBatch) -> tuple[int, int]:
    return choice.many_devices["gpus"], choice.many_devices["global_batch"]


def _answer(choice: DevicesOrBatch) -> str:
    many, one, ratio = choice.many_devices, choice.one_device, choice.throughput
    devices = f"{many['gpus']} devices of {many[BATCH]:,} samples ({many['strategy']})"
    alone = f"one of {one[BATCH]:,} ({one['strategy']})"
    if _undecided(ratio):
        said = f"{devices} and {alone}: no difference in throughput is resolved"
    else:
        said = f"{devices} have {ratio.value:.2f} times the throughput of {alone}"
    if choice.time_ratio is not None and not _undecided(choice.time_ratio):
        said += f", and are at the target in {1 / choice.time_ratio.value:.2f} times its time"
    return f"{said}."


def _undecided(ratio: Estimate) -> bool:
    return ratio.has_limits and ratio.low <= 1 <= ratio.high


def _chart(group: Group, found: Sequence[DevicesOrBatch]) -> Iterator[Chart]:
    """Throughput over the samples of an update, of the curves that stand beside each other somewhere."""
    shown = {choice.many_devices["run_id"] for choice in found} | {choice.one_device["run_id"] for choice in found}
    kept = [curve for curve in group.curves if any(row["run_id"] in shown for row in curve.rows)]
    drawn = [one for curve in kept if (one := _line(curve)) is not None]
    if len(drawn) > 1:
        x = Axis("global batch", log=True, ticks=sorted({float(x) for one in drawn for x in one.x}))
        what = "samples/s over all devices; more is better. Above each other: the same batch on more or fewer devices"
        title = f"Throughput over the global batch: {group.title}"
        caption = sentences(what, bands(kept))
        yield Chart(group.id(ID, "throughput"), title, x, Axis("samples/s"), drawn, "lines", caption)


def _line(curve: Curve) -> Series | None:
    return series(curve.name, curve.tags, curve.rows, "global_batch", THROUGHPUT, "throughput")


def _choices(found: Sequence[DevicesOrBatch]) -> Iterator[Block]:
    aimed = any(choice.trainings is not None for choice in found)
    heads = ["model", "strategy", "gpus", "batch per device", "samples/s", "one device", "its batch", "its samples/s"]
    heads += ["ratio (95 %)", *(["to target", "one device to target", "sooner (95 %)"] if aimed else [])]
    rows = [Row([*_work(choice), *(_aim(choice) if aimed else [])], tags(choice.many_devices)) for choice in found]
    numeric = frozenset(heads) - {"model", "strategy", "one device"}
    title, caption = "N devices or N times the batch", sentences(*CHOICES[: 3 if aimed else 2])
    yield Table(f"{ID}-choices", title, heads, rows[:MOST_ROWS], numeric, caption)
    if len(rows) > MOST_ROWS:
        yield Words(f"{MOST_ROWS} of {len(rows)} pairs are shown.")


def _work(choice: DevicesOrBatch) -> list[Cell]:
    many, one = choice.many_devices, choice.one_device
    return [
        cell(many["model"]),
        cell(many["strategy"]),
        cell(str(many["gpus"]), many["gpus"]),
        cell(f"{many[BATCH]:,}", many[BATCH]),
        cell(tables.throughput(dict(many)), many[THROUGHPUT]),
        cell(one["strategy"]),
        cell(f"{one[BATCH]:,}", one[BATCH]),
        cell(tables.throughput(dict(one)), one[THROUGHPUT]),
        _ratio(choice.throughput),
    ]


def _aim(choice: DevicesOrBatch) -> list[Cell]:
    if choice.trainings is None:
        return [Cell("")] * 3
    return [*map(_target, choice.trainings), _ratio(choice.time_ratio)]


def _target(found: TrainingOutcome) -> Cell:
    """`12.3 s`, `12.3 s (5 seeds)`, `2 of 3 seeds reached it`, `never`."""
    seconds, _ = found.figures["time_to_target_s"]
    if found.reached < found.seeds or seconds is None:
        return Cell("never" if found.seeds == 1 else f"{found.reached} of {found.seeds} seeds reached it")
    return cell(tables.seconds(seconds) + (f" ({found.seeds} seeds)" if found.seeds > 1 else ""), seconds)


def _ratio(figure: Estimate | None) -> Cell:
    if figure is None:
        return Cell("")
    low, high = figure.limits
    shown = {"ratio": figure.value, "ratio_low": low, "ratio_high": high}
    return cell(tables.ratio(shown, "ratio"), figure.value)


def _gains(fewer: Sequence[tuple[Curve, BatchGain]]) -> Table:
    heads = ["batch per device", "updates an epoch", "predicted gain (95 %)", "measured gain (95 %)", "predicted of it"]
    rows = [Row([cell(curve.tags["model"]), cell(curve.name), *_gain(gain)], curve.tags) for curve, gain in fewer]
    columns = ["model", "strategy", *heads]
    title = "Fewer exchanges: predicted and measured"
    return Table(f"{ID}-gains", title, columns, rows[:MOST_ROWS], frozenset(heads), sentences(*GAINS))


def _gain(gain: BatchGain) -> list[Cell]:
    return [
        cell(_change(gain, BATCH), gain.after[BATCH]),
        cell(_change(gain, "steps_per_epoch"), gain.after["steps_per_epoch"]),
        _seconds(gain.predicted),
        _seconds(gain.measured),
        Cell("") if gain.share is None else cell(units.format_percent(gain.share), gain.share),
    ]


def _change(gain: BatchGain, column: str) -> str:
    """`75 to 150`"""
    before, after = gain.before[column], gain.after[column]
    return "" if before is None or after is None else f"{before:,} to {after:,}"


def _seconds(figure: Estimate | None) -> Cell:
    if figure is None:
        return Cell("")
    return cell(units.format_duration(figure), figure.value)
