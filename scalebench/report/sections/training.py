"""The sections about training: `training`, how good models became and when they reached their target; `epochs`, what an
epoch and the target take of time, devices and energy; `learning`, the loss during training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from scalebench.analysis.rows import generalisation_gap
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.time_to_target import TrainingOutcome, summarize_trainings
from scalebench.core import units
from scalebench.core.result import FINAL_LOSS_STEPS, LOWER_IS_BETTER, CurvePoint
from scalebench.core.stats.log_means import mean_over_repeats
from scalebench.report import document as doc
from scalebench.report import report_data as data
from scalebench.report import spec, training_tables
from scalebench.report.flag_text import describe_curve_intervals, to_text
from scalebench.report.report_data import ReportData

SeedCurves = tuple[doc.Tags, list[list[CurvePoint]]]  # the metric curves of one configuration, one for each seed

MAX_TRAINING_GROUPS = 8
MAX_SEEDS = 10  # of a line
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


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no run trained to a stop successfully."""
    groups: dict[tuple[str, ...], list[TrainingOutcome]] = {}
    for training in summarize_trainings(report_data.frame):
        if training.runs:
            names = ("model", "dataset", "metric_name", "hardware", "machine")
            groups.setdefault(tuple(to_text(training.first_run[name]) for name in names), []).append(training)
    machines = len({key[3:] for key in groups}) > 1
    blocks: list[doc.Block] = []
    for number, (key, members) in enumerate(list(groups.items())[:MAX_TRAINING_GROUPS], 1):
        where = f", hardware {key[3]} ({key[4]})" if machines else ""
        label = f": {key[0]} on {key[1]}{where}" if len(groups) > 1 else ""
        blocks += _make_training_blocks(report_data, number, label, members)
    if len(groups) > MAX_TRAINING_GROUPS:
        text = f"Shown are {MAX_TRAINING_GROUPS} of {len(groups)} groups of a model, a data set and a machine."
        blocks.append(doc.Paragraph(text))
    return doc.Section("training", "Training: accuracy and time to target", blocks) if groups else None


def _make_training_blocks(
    report_data: ReportData, number: int, label: str, trainings: Sequence[TrainingOutcome]
) -> Iterator[doc.Block]:
    """Yield the blocks of a group; `label` ends the titles of its charts where there are several groups."""
    names = training_tables.name_trainings(trainings)
    metric = to_text(trainings[0].first_run["metric_name"])
    targets = sorted({training.target for training in trainings if training.target is not None})
    for target in targets:
        aimed = [training for training in trainings if training.target == target]
        if soonest := training_tables.sort_by_time_to_target(aimed):
            first = soonest[0].first_run
            text = training_tables.describe_training(soonest[0], names[first["training_id"]])
            yield doc.Paragraph(f"First to reach the target: {text}.", tags=doc.get_tags(first))
        if missed := sum(training.reached < training.seeds for training in aimed):
            with_seeds = " with every seed" if any(training.seeds > 1 for training in aimed) else ""
            yield doc.Paragraph(f"{missed} of {len(aimed)} trainings did not reach {metric} {target:g}{with_seeds}.")
    selection = trainings[: doc.MAX_CURVES]
    curves = {
        names[training.first_run["training_id"]]: (
            doc.get_tags(training.first_run),
            [report_data.result(row["run_id"]).quality.curve for row in training.by_seed[:MAX_SEEDS]],
        )
        for training in selection
    }
    better = f"{metric}, {'lower' if metric.startswith(LOWER_IS_BETTER) else 'higher'} is better. "
    for kind, heading, about in (
        ("epochs", "Validation", f"Validation {better}"),
        ("seconds", "Validation", f"Validation {better}"),
        ("trained", "Training samples", f"On as many training samples, with dropout off: {better}"),
        ("gap", "Generalisation gap",
         f"How much worse {metric} is on validation samples than on training samples; above 0 is worse. "),
    ):  # fmt: skip
        if lines := [line for name, each in curves.items() if (line := _draw_curve(name, each, metric, kind))]:
            x = "seconds of training" if kind == "seconds" else "epochs"
            ends = sorted({end([float(x) for line in lines for x in line.x]) for end in (min, max)})
            model = {"model": lines[0].tags["model"]}
            lines += [
                doc.Series(f"target {metric} {target:g}", ends, [target] * len(ends), tags=model, style="ideal")
                for target in targets if heading == "Validation"
            ]  # fmt: skip
            seeds = SEEDS_CAPTION if any(len(of_seeds) > 1 for _, of_seeds in curves.values()) else ""
            axes = doc.Axis(x), _make_metric_axis(metric, lines, kind)
            title, caption = f"{heading}, {metric} over {x}{label}", f"{about}{POINTS_CAPTION}{seeds}".strip()
            yield doc.Chart(f"training-{number}-{kind}", title, *axes, lines, "lines", caption)
    if len(selection) < len(trainings):
        yield doc.Paragraph(f"{len(selection)} of {len(trainings)} trainings are drawn.")
    title = f"Results of training{label}"
    yield training_tables.make_training_table(f"training-{number}-ends", title, trainings, names)


def _make_metric_axis(metric: str, lines: Sequence[doc.Series], kind: str) -> doc.Axis:
    """Make the axis of a metric, logarithmic for an error over more than a decade."""
    values = [y for line in lines if line.style != "ideal" for y in line.y if y is not None]
    is_error = metric.startswith(LOWER_IS_BETTER) and min(values) > 0 and kind != "gap"
    return doc.Axis(metric, log=is_error and max(values) > DECADE * min(values), from_zero=False)


def _draw_curve(name: str, seed_curves: SeedCurves, metric: str, kind: str) -> doc.Series | None:
    """Make a series of means over the curves of seeds as far as all of them went, with limits from three seeds on; of
    one seed its curve. None if there is no value.

    Points of seeds are those after the same number of steps. Seeds that were evaluated by the clock have few such
    points: then those of the first seed are shown.
    """

    def read(point: CurvePoint) -> float | None:
        value, trained = point.metrics.get(metric), point.train_metrics.get(metric)
        return trained if kind == "trained" else generalisation_gap(metric, value, trained) if kind == "gap" else value

    tags, curves = seed_curves
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
    if not x:
        return None
    numbered = [(float(k), mean.value) for k, mean in enumerate(means)]
    places = [int(k) for k, _ in doc.downsample(numbered, MAX_CURVE_POINTS)]
    has_limits = any(means[k].has_limits for k in places)
    low, high = ([means[k].limits[end] for k in places] if has_limits else () for end in (0, 1))
    style: Any = "points" if len(places) == 1 else "line"
    return doc.Series(name, [x[k] for k in places], [means[k].value for k in places], low, high, tags, style)


def _merge_hardware(curves: Sequence[Curve]) -> list[Curve]:
    """Put the curves of several machines into one group, each named after its own machine: seconds compare across
    hardware where speedups do not."""

    def key(curve: Curve) -> tuple[str, ...]:
        return tuple(text for name, text in curve.group.items() if name != "hardware")

    hardware: dict[tuple[str, ...], dict[str, None]] = {}
    for curve in curves:
        hardware.setdefault(key(curve), {})[curve.group["hardware"]] = None
    merged = []
    for curve in curves:
        machines = list(hardware[key(curve)])
        name = f"{curve.name} on {curve.group['hardware']}" if len(machines) > 1 else curve.name
        rows = [doc.add_epoch_limits(row) for row in curve.rows]
        merged.append(replace(curve, name=name, group={**curve.group, "hardware": ", ".join(machines)}, rows=rows))
    return merged


def _describe_epoch_chart(group: doc.CurveGroup) -> str:
    several = len({curve.tags["hardware"] for curve in group.curves}) > 1
    return doc.join_sentences(
        "seconds that all samples of the training set take at the measured throughput; less is better",
        "machines share this chart, since it is in seconds, and each curve names its own" if several else "",
        describe_curve_intervals(group.curves),
    )


EPOCH_CAPTION = "less is better in all of them, except for steps. Cells without a measurement are empty"
EPOCH_HEADS = {
    "epoch_s": "epoch (95 %)",
    "steps_per_epoch": "steps per epoch",
    "device_hours_per_epoch": "device time per epoch",
    "energy_j_per_epoch": "GPU energy per epoch",
    "time_to_target_s": "time to target",
    "device_hours_to_target": "device time to target",
    "energy_j_to_target": "GPU energy to target",
}
epochs_section = spec.SectionSpec(
    "epochs",
    "Epochs: time, devices and energy",
    [
        spec.Drawing("epoch_s", "Epoch", "time per epoch", _describe_epoch_chart, lines=True),
        spec.Drawing("device_hours_per_epoch", "Device time of an epoch", "per epoch",
                     "Device time per epoch; less is better.", lines=True),
        spec.Drawing("energy_j_per_epoch", "Energy of the GPUs for an epoch", "per epoch",
                     "GPU energy per epoch; less is better.", lines=True),
        spec.Listing("Epochs", EPOCH_HEADS,
                     lambda group: doc.join_sentences(EPOCH_CAPTION, describe_curve_intervals(group.curves)),
                     always=("epoch_s", "steps_per_epoch")),
    ],
    keep=lambda row: row["epoch_s"] is not None,
    prepare=_merge_hardware,
)  # fmt: skip


def losses_section(report_data: ReportData) -> doc.Section | None:
    """Return None if no run has a loss."""
    firsts = set(report_data.pooled["run_id"])  # repeats of one configuration and seed learn the same
    groups: dict[tuple[str, str], list[data.Row]] = {}
    for row in data.list_detailed_runs(report_data):
        if row["run_id"] in firsts and row["final_loss"] is not None and row["status"] == "ok":
            groups.setdefault((to_text(row["model"]), to_text(row["dataset"])), []).append(row)
    blocks: list[doc.Block] = []
    for number, (group, members) in enumerate(list(groups.items())[:MAX_TRAINING_GROUPS]):
        blocks += _make_loss_blocks(report_data, number, f": {' on '.join(group)}" if len(groups) > 1 else "", members)
    if len(groups) > MAX_TRAINING_GROUPS:
        text = f"Shown are {MAX_TRAINING_GROUPS} of {len(groups)} pairs of a model and a data set."
        blocks.append(doc.Paragraph(text))
    blocks += data.list_left_out_runs(report_data)
    return doc.Section("learning", "Loss during training", blocks) if groups else None


def _make_loss_blocks(report_data: ReportData, number: int, label: str, rows: list[data.Row]) -> Iterator[doc.Block]:
    selection, names = data.select_first_repeats(rows, doc.MAX_CURVES), data.name_runs(rows)
    results = [report_data.result(row["run_id"]) for row in selection]
    epochs_known, series, table_rows = all(result.workload.train_samples for result in results), [], []
    for row, result in zip(selection, results, strict=True):
        run, samples, tags = training_tables.compute_losses(result), result.workload.train_samples, doc.get_tags(row)
        name, ends = (
            names[row["run_id"]],
            [count / samples if samples and epochs_known else count for count in run.samples],
        )
        points = doc.downsample(run.make_points(ends), MAX_CURVE_POINTS)
        series.append(doc.Series(name, [x for x, _ in points], [y for _, y in points], tags=tags))
        metric = f"{to_text(row['metric_name'])} {row['metric']:.4g}" if row["metric"] is not None else ""
        table_rows.append((tags, [
            name,
            doc.Cell(f"{run.steps[-1]:,}", run.steps[-1]),
            doc.format_cell(run.samples[-1] / samples if samples else None, "{:.3g}".format),
            doc.make_cell(units.format_seconds(run.seconds[-1]), run.seconds[-1]),
            doc.make_cell(f"{row['final_loss']:.4g}", row["final_loss"]),
            doc.Cell(metric, row["metric"]),
        ]))  # fmt: skip
    kind = "epochs" if epochs_known else "samples"
    axes, title = (doc.Axis(kind), doc.Axis("training loss", from_zero=False)), f"Loss over {kind}{label}"
    yield doc.Chart(f"learning-{number}-{kind}", title, *axes, series, caption=LOSS_CAPTION)
    to_stop = [row["stopped_by"] is not None for row in selection]
    if any(to_stop) and not all(to_stop):
        caption = f"Runs that train to a stop are {STOPPED_CAPTION} The others are {MEASURED_CAPTION}"
    else:
        caption = f"Runs are {STOPPED_CAPTION if all(to_stop) else MEASURED_CAPTION}"
    heads = ("run", "steps", "epochs", "seconds of training", "training loss at the end", "validation")
    title = f"Where training ended{label}"
    yield spec.make_table(f"learning-{number}-ends", title, heads, table_rows, caption=caption)
    if len(selection) < len(rows):
        yield doc.Paragraph(f"{len(selection)} of {len(rows)} configurations are drawn.")
