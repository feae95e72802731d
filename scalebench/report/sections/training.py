"""Training: how good models became and when they reached their target; what an epoch and the target take of time,
devices and energy; the loss during training.

The terminal shows the table of trainings, and when those of several seeds reached their target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scalebench.analysis.columns import select_heads
from scalebench.analysis.identity import group_by
from scalebench.analysis.rows import generalisation_gap
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.time_to_target import TrainingOutcome, summarize_trainings
from scalebench.core import units
from scalebench.core.result import FINAL_LOSS_STEPS, LOWER_IS_BETTER, CurvePoint
from scalebench.core.stats.estimates import Estimate
from scalebench.core.stats.log_means import mean_over_repeats
from scalebench.report import document as doc
from scalebench.report import report_data as data
from scalebench.report import spec
from scalebench.report.losses import compute_losses
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

MAX_CURVE_POINTS = 300  # of a line
DECADE = 10.0  # ratio of the largest to the smallest figure above which an axis is logarithmic
SEEDS_CAPTION = (
    "Lines are means over seeds as far as all seeds went, bands 95 % intervals over three seeds or more; of seeds that "
    "were evaluated after different numbers of steps, the first one. "
)
POINTS_CAPTION = "Taken at the evaluations of the training, between two steps and outside its clock. "
LOSS_CAPTION = (
    "Training loss, mean over each block of steps and all ranks, drawn at the block's end, warm-up included. "
    "Of several repeats of a configuration, the first one. "
    f"Where there are more than {MAX_CURVE_POINTS} blocks, the lowest and the highest of each stretch are drawn."
)
MEASURED_CAPTION = (
    "as long as their figures take to measure, not as long as training would be: a lower loss at the end may only mean "
    "more steps. Their validation figure is taken once, after the last measured block."
)
STOPPED_CAPTION = (
    "as long as train.stop says. Their seconds are without the first step, which compiles, and the validation figure "
    "is that of the last point of the curve, which the section on training draws. The loss at the end is the mean of "
    f"the last {FINAL_LOSS_STEPS} steps."
)
TABLE_CAPTION = (
    "Means over seeds with 95 % intervals by Student's t, if there are three seeds or more and all have the figure. "
    "Seconds are of training, without the first step, which compiles, and without evaluation. The gap is how much "
    "worse the metric is on validation samples than on training samples. Speedup to target is the baseline's time to "
    "target over the run's own, seed by seed; beside it, the speedup in throughput, which does not depend on what was "
    "learned."
)
# Columns that a narrow terminal has no room for, by how their heads begin.
WIDE_HEADS = ("devices", "batch", "global", "rule", "learning", "gap", "epochs to", "target", "reached", "samples/s")


def group_trainings(frame: pd.DataFrame) -> list[tuple[str, list[TrainingOutcome]]]:
    """Group the successful trainings whose metric and seconds compare, each with the end of its titles."""
    names = ("model", "dataset", "metric_name", "hardware", "machine")
    trainings = [training for training in summarize_trainings(frame) if training.runs]
    groups = group_by(trainings, lambda training: tuple(str(training.first_run[name]) for name in names))
    has_machines = len({key[3:] for key in groups}) > 1
    labels = [f": {model} on {dataset}" + (f", hardware {hardware} ({machine})" if has_machines else "")
              for model, dataset, _, hardware, machine in groups]  # fmt: skip
    return list(zip(labels if len(groups) > 1 else [""], groups.values(), strict=False))


def list_trainings(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield the outcome of trainings to a stop, with their curves."""
    for number, (label, members) in enumerate(group_trainings(report_data.frame), 1):
        names = name_trainings(members)
        yield from _describe_targets(members, names)
        yield from _draw_curves(report_data, number, label, members[: doc.MAX_CURVES], names)
        yield from doc.note_left_out(doc.MAX_CURVES, len(members), "trainings are drawn")
        yield make_table(f"training-{number}-ends", f"Results of training{label}", members)


def _describe_targets(trainings: Sequence[TrainingOutcome], names: Mapping[str, str]) -> Iterator[doc.Block]:
    """Name the training that reached each target first, and count those that did not."""
    metric = trainings[0].first_run["metric_name"] or ""
    for target in sorted({training.target for training in trainings if training.target is not None}):
        aimed = [training for training in trainings if training.target == target]
        soonest = min((each for each in aimed if each.reached == each.seeds), key=_time_to_target_key, default=None)
        if soonest is not None:
            text = describe_training(soonest, names[soonest.first_run["training_id"]])
            yield doc.Paragraph(f"First to reach the target: {text}.", tags=doc.get_tags(soonest.first_run))
        if missed := sum(training.reached < training.seeds for training in aimed):
            with_seeds = " with every seed" if any(training.seeds > 1 for training in aimed) else ""
            yield doc.Paragraph(f"{missed} of {len(aimed)} trainings did not reach {metric} {target:g}{with_seeds}.")


def _draw_curves(
    report_data: ReportData, number: int, label: str, trainings: Sequence[TrainingOutcome], names: Mapping[str, str]
) -> Iterator[doc.Chart]:
    metric = trainings[0].first_run["metric_name"] or ""
    curves = [[report_data.result(row["run_id"]).quality.curve for row in training.by_seed]
              for training in trainings]  # fmt: skip
    targets = sorted({training.target for training in trainings if training.target is not None})
    is_error = metric.startswith(LOWER_IS_BETTER)
    better = f"{metric}, {'lower' if is_error else 'higher'} is better. "
    for kind, heading, about in (
        ("epochs", "Validation", f"Validation {better}"),
        ("seconds", "Validation", f"Validation {better}"),
        ("trained", "Training samples", f"On as many training samples, with dropout off: {better}"),
        ("gap", "Generalisation gap",
         f"How much worse {metric} is on validation samples than on training samples; above 0 is worse. "),
    ):  # fmt: skip
        lines: list[doc.Series] = []
        for training, of_seeds in zip(trainings, curves, strict=True):
            name, tags = names[training.first_run["training_id"]], doc.get_tags(training.first_run)
            lines += _draw_curve(name, tags, of_seeds, metric, kind)
        if not lines:
            continue
        values = [y for line in lines for y in line.y if y is not None]
        is_log = is_error and kind != "gap" and 0 < DECADE * min(values) < max(values)
        x = "seconds of training" if kind == "seconds" else "epochs"
        ends = sorted({end([float(x) for line in lines for x in line.x]) for end in (min, max)})
        lines += [
            doc.Series(f"target {metric} {target:g}", ends, [target] * len(ends), style="ideal",
                       tags={"model": lines[0].tags["model"]})
            for target in targets if heading == "Validation"
        ]  # fmt: skip
        caption = about + POINTS_CAPTION + (SEEDS_CAPTION if any(len(of_seeds) > 1 for of_seeds in curves) else "")
        axes, title = (doc.Axis(x), doc.Axis(metric, is_log, from_zero=False)), f"{heading}, {metric} over {x}{label}"
        yield doc.Chart(f"training-{number}-{kind}", title, *axes, lines, "lines", caption.strip())


def _draw_curve(
    name: str, tags: doc.Tags, curves: Sequence[list[CurvePoint]], metric: str, kind: str
) -> Iterator[doc.Series]:
    """Yield a series of means over the curves of seeds as far as all of them went, with limits from three seeds on; of
    one seed its curve. Nothing if there is no value.

    Points of seeds are those after the same number of steps. Seeds that were evaluated by the clock have few such
    points: then those of the first seed are shown.
    """

    def read(point: CurvePoint) -> float | None:
        value, trained = point.metrics.get(metric), point.train_metrics.get(metric)
        return trained if kind == "trained" else generalisation_gap(metric, value, trained) if kind == "gap" else value

    by_step = [{point.step: point for point in curve} for curve in curves]
    steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
    matched = [[points[step] for points in by_step] for step in steps]
    if 2 * len(steps) < min(map(len, by_step), default=0):
        matched = [[point] for point in curves[0]]
    x, means = [], []
    for points in matched:
        values = [value for point in points if (value := read(point)) is not None]
        if len(values) == len(points):
            x.append(sum(point.train_s if kind == "seconds" else point.epochs for point in points) / len(points))
            means.append(mean_over_repeats(values))
    if x:
        numbered = [(float(k), mean.value) for k, mean in enumerate(means)]
        places = [int(k) for k, _ in doc.downsample(numbered, MAX_CURVE_POINTS)]
        low, high = zip(*(means[k].limits for k in places), strict=True)
        line = doc.Series(name, [x[k] for k in places], [means[k].value for k in places], tags=tags,
                          style="points" if len(places) == 1 else "line")  # fmt: skip
        yield replace(line, low=low, high=high) if any(limit is not None for limit in low) else line


def name_trainings(trainings: Sequence[TrainingOutcome]) -> dict[str, str]:
    """Map each training_id to a unique name: `ddp_gloo on 2 devices, batch per device 75`."""
    names = data.name_runs([training.first_run for training in trainings])
    return {training.first_run["training_id"]: names[training.first_run["run_id"]] for training in trainings}


def _format_level(level: Estimate) -> str:
    """Return `0.00048 [0.00041, 0.00055]`."""
    low, high = level.limits
    return f"{level.value:.4g}" if low is None or high is None else f"{level.value:.4g} [{low:.3g}, {high:.3g}]"


def make_table(table_id: str, title: str, trainings: Sequence[TrainingOutcome]) -> doc.Table:
    """Make a table with a row for each training, over its seeds."""
    names, metric = name_trainings(trainings), trainings[0].first_run["metric_name"] or "metric"
    rows = []
    for training in trainings:
        row, rule, figures = training.first_run, training.first_run["learning_rate_rule"] or "", training.figures
        base = f" from {row['base_batch']:,}" if row["base_batch"] is not None and rule != "none" else ""
        has_missed = training.target is not None and not training.reached
        time_s = doc.format_cell(figures["time_to_target_s"], units.format_seconds)
        over = {
            f"{head} over {kind}": (figures[f"{name}_{kind}"], units.format_ratio)
            for kind in ("bare", "self") for head, name in (("to target", "speedup_target"), ("samples/s", "speedup"))
        }  # fmt: skip
        rows.append((doc.get_tags(row), {
            "run": names[row["training_id"]], doc.DEVICES: row["gpus"], "batch per device": row["batch_per_device"],
            "global batch": row["global_batch"], "rule": rule + base,
            "learning rate": (row["learning_rate"], "{:.4g}".format),
            "epochs": (figures["trained_epochs"], _format_epochs),
            "seconds of training": (figures["trained_s"], units.format_seconds),
            f"{metric} (95 %)": (figures["metric"], _format_level),
            "gap": (figures["generalisation_gap"], _format_level),
            "target": (training.target, "{:g}".format),
            "reached": None if training.target is None else f"{training.reached} of {training.seeds} seeds",
            "epochs to target": (figures["epochs_to_target"], _format_epochs),
            "time to target (95 %)": doc.Cell("not reached") if has_missed and not time_s.text else time_s,
            **over, "stopped by": ", ".join(training.stopped_by),
        }))  # fmt: skip
    return spec.make_table(table_id, title, rows, ("rule", "reached", "stopped by"), TABLE_CAPTION, [*rows[0][1]])


def _format_epochs(epochs: Estimate) -> str:
    return f"{epochs.value:.3g}"


def make_terminal_tables(frame: pd.DataFrame, wide: bool = False) -> Iterator[doc.Table]:
    """Yield the tables of trainings; unless they may be wide without limits, settings, and what follows from others."""
    for label, trainings in group_trainings(frame):
        table = make_table("trainings", f"Results of training{label}", trainings)
        if not wide:
            wide_heads = (*WIDE_HEADS, *(["to target over self"] if "to target over bare" in table.columns else []))
            rows: list[spec.TableRow] = [({}, {head.removesuffix(" (95 %)"): cell.text.partition(" [")[0]
                          for head, cell in zip(table.columns, row.cells, strict=True)
                          if not head.startswith(wide_heads)}) for row in table.rows]  # fmt: skip
            table = spec.make_table(table.id, table.title, rows, ["stopped by"])
        yield table


def list_terminal_sentences(frame: pd.DataFrame) -> list[str]:
    """Say when trainings of several seeds reached their target, the soonest first, those that never did last."""
    trainings = [each for each in summarize_trainings(frame) if each.target is not None and each.seeds > 1]
    names = name_trainings(trainings)
    return [describe_training(training, names[training.first_run["training_id"]])
            for training in sorted(trainings, key=_time_to_target_key)]  # fmt: skip


def describe_training(training: TrainingOutcome, name: str) -> str:
    """Return `ddp_gloo on 2 devices: mse 0.0005 after 12.3 s of training [11.9, 12.7], 4.2 epochs; 3 of 5 seeds reached
    it`."""
    metric = f"{training.first_run['metric_name'] or 'metric'} {training.target:g}"
    failed = f", {training.failed} failed" if training.failed else ""
    several = training.seeds > 1
    if not training.reached:
        seeds = f" with any of {training.seeds} seeds" if several else ""
        return f"{name}: {metric} was not reached{seeds}{failed}"
    time_s, epochs = (training.figures[column] for column in ("time_to_target_s", "epochs_to_target"))
    text = f"{name}: {metric} after {'' if time_s is None else units.format_seconds(time_s)} of training"
    text += "" if epochs is None else f", {epochs.value:.3g} epochs"
    return f"{text}; {training.reached} of {training.seeds} seeds reached it{failed}" if several else text


def _time_to_target_key(training: TrainingOutcome) -> tuple[bool, float]:
    time_s = training.figures["time_to_target_s"]
    return time_s is None, 0.0 if time_s is None else time_s.value


def _merge_hardware(curves: Sequence[Curve]) -> list[Curve]:
    """Put the curves of several machines into one group, each named after its own machine: seconds compare across
    hardware where speedups do not."""

    def key(curve: Curve) -> tuple[str, ...]:
        return tuple(text for name, text in curve.group.items() if name != "hardware")

    hardware = {group: list(dict.fromkeys(curve.group["hardware"] for curve in members))
                for group, members in group_by(curves, key).items()}  # fmt: skip
    merged = []
    for curve in curves:
        machines = hardware[key(curve)]
        name = f"{curve.name} on {curve.group['hardware']}" if len(machines) > 1 else curve.name
        merged.append(replace(curve, name=name, group={**curve.group, "hardware": ", ".join(machines)}))
    return merged


EPOCH_HEADS = select_heads(
    "epoch_s steps_per_epoch device_hours_per_epoch energy_j_per_epoch time_to_target_s device_hours_to_target "
    "energy_j_to_target"
)
epoch_groups = spec.Groups(
    "epochs",
    [
        spec.Drawing("epoch_s", "Epoch", "time per epoch",
                     "Seconds that all samples of the training set take at the measured throughput; less is better."),
        spec.Drawing("device_hours_per_epoch", "Device time of an epoch", "per epoch",
                     "Device time per epoch; less is better."),
        spec.Drawing("energy_j_per_epoch", "Energy of the GPUs for an epoch", "per epoch",
                     "GPU energy per epoch; less is better."),
        spec.Listing("Epochs", EPOCH_HEADS, "Less is better in all of them, except for steps.",
                     always=("epoch_s", "steps_per_epoch"), limits=True),
    ],
    keep=lambda row: row["epoch_s"] is not None,
    prepare=_merge_hardware,
)  # fmt: skip


def list_losses(report_data: ReportData) -> Iterator[doc.Block]:
    """Draw the losses of the first repeat of each configuration and seed, which all learn the same."""
    firsts = set(report_data.pooled["run_id"])
    rows = [row for row in data.list_detailed_runs(report_data)
            if row["run_id"] in firsts and row["final_loss"] is not None and row["status"] == "ok"]  # fmt: skip
    groups = group_by(rows, lambda row: f"{row['model']} on {row['dataset']}")
    for number, (group, members) in enumerate(groups.items()):
        yield from _make_loss_blocks(report_data, number, f": {group}" if len(groups) > 1 else "", members)
    if groups:
        yield from data.list_left_out_runs(report_data)


def _make_loss_blocks(report_data: ReportData, number: int, label: str, rows: list[data.Row]) -> Iterator[doc.Block]:
    selection, names = data.select_first_repeats(rows, doc.MAX_CURVES), data.name_runs(rows)
    results = [report_data.result(row["run_id"]) for row in selection]
    epochs_known, series, table_rows = all(result.workload.train_samples for result in results), [], []
    for row, result in zip(selection, results, strict=True):
        ends, samples, tags = compute_losses(result), result.workload.train_samples, doc.get_tags(row)
        name, of_epoch = names[row["run_id"]], (epochs_known and samples) or 1
        losses = [(end.samples / of_epoch, end.loss) for end in ends if end.loss is not None]
        points = doc.downsample(losses, MAX_CURVE_POINTS)
        series.append(doc.Series(name, [x for x, _ in points], [y for _, y in points], tags=tags))
        metric = f"{row['metric_name']} {row['metric']:.4g}" if row["metric"] is not None else ""
        table_rows.append((tags, {
            "run": name, "steps": ends[-1].steps,
            "epochs": (ends[-1].samples / samples if samples else None, "{:.3g}".format),
            "seconds of training": (ends[-1].seconds, units.format_seconds),
            "training loss at the end": (row["final_loss"], "{:.4g}".format),
            "validation": doc.Cell(metric, row["metric"]),
        }))  # fmt: skip
    kind = "epochs" if epochs_known else "samples"
    axes, title = (doc.Axis(kind), doc.Axis("training loss", from_zero=False)), f"Loss over {kind}{label}"
    yield doc.Chart(f"learning-{number}-{kind}", title, *axes, series, caption=LOSS_CAPTION)
    to_stop = {row["stopped_by"] is not None for row in selection}
    caption = f"Runs are {STOPPED_CAPTION if True in to_stop else MEASURED_CAPTION}"
    if len(to_stop) > 1:
        caption = f"Runs that train to a stop are {STOPPED_CAPTION} The others are {MEASURED_CAPTION}"
    yield spec.make_table(f"learning-{number}-ends", f"Where training ended{label}", table_rows, caption=caption)
    yield from doc.note_left_out(doc.MAX_CURVES, len(rows), "configurations are drawn")
