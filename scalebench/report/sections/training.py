"""The sections about training: `training`, how good models became and when they reached their target; `epochs`, what an
epoch and the target take of time, devices and energy; `learning`, the loss during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from scalebench.analysis.rows import generalisation_gap
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.time_to_target import TrainingOutcome, summarize_trainings
from scalebench.core import units
from scalebench.core.result import FINAL_LOSS_STEPS, LOWER_IS_BETTER, CurvePoint
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.flag_text import describe_curve_intervals, to_text
from scalebench.report.report_data import (
    ReportData,
    list_detailed_runs,
    list_left_out_runs,
    name_runs,
    select_first_repeats,
)
from scalebench.report.report_data import Row as RunRow
from scalebench.report.training_tables import (
    MAX_CURVE_POINTS,
    LossSeries,
    compute_losses,
    describe_direction,
    describe_training,
    make_curve_series,
    make_training_table,
    name_trainings,
    sort_by_time_to_target,
)

SeedCurves = tuple[doc.Tags, list[list[CurvePoint]]]  # the metric curves of one configuration, one for each seed

MAX_TRAINING_GROUPS = 8
MAX_SEEDS = 10  # of a line
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
LOSS_COLUMNS = ("run", "steps", "epochs", "seconds of training", "training loss at the end", "validation")


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no run trained to a stop successfully."""
    groups: dict[tuple[str, ...], list[TrainingOutcome]] = {}
    for training in summarize_trainings(report_data.frame):
        if training.runs:
            names = ("model", "dataset", "metric_name", "hardware", "machine")
            groups.setdefault(tuple(to_text(training.first_run[name]) for name in names), []).append(training)
    if not groups:
        return None
    machines = len({key[3:] for key in groups}) > 1
    blocks: list[doc.Block] = []
    for number, (key, members) in enumerate(list(groups.items())[:MAX_TRAINING_GROUPS], 1):
        where = f", hardware {key[3]} ({key[4]})" if machines else ""
        title = f"{key[0]} on {key[1]}{where}" if len(groups) > 1 else ""
        blocks += _make_training_blocks(report_data, number, title, members)
    if len(groups) > MAX_TRAINING_GROUPS:
        text = f"Shown are {MAX_TRAINING_GROUPS} of {len(groups)} groups of a model, a data set and a machine."
        blocks.append(doc.Paragraph(text))
    return doc.Section("training", "Training: accuracy and time to target", blocks)


def _make_training_blocks(
    report_data: ReportData, number: int, title: str, trainings: Sequence[TrainingOutcome]
) -> Iterator[doc.Block]:
    names = name_trainings(trainings)
    targets = sorted({training.target for training in trainings if training.target is not None})
    for target in targets:
        yield from _answer_target([training for training in trainings if training.target == target], names)
    selection = trainings[: doc.MAX_CURVES]
    curves = {
        names[training.first_run["training_id"]]: (
            doc.get_tags(training.first_run),
            [report_data.result(row["run_id"]).quality.curve for row in training.by_seed[:MAX_SEEDS]],
        )
        for training in selection
    }
    yield from _make_training_charts(number, title, to_text(trainings[0].first_run["metric_name"]), curves, targets)
    if len(selection) < len(trainings):
        yield doc.Paragraph(f"{len(selection)} of {len(trainings)} trainings are drawn.")
    yield make_training_table(f"training-{number}-ends", _add_label("Results of training", title), trainings, names)


def _add_label(title: str, label: str) -> str:
    """Return a title that says which group it is about, if there are several."""
    return f"{title}: {label}" if label else title


def _answer_target(trainings: Sequence[TrainingOutcome], names: Mapping[str, str]) -> Iterator[doc.Paragraph]:
    """Say which training reached a target first, and how many did not."""
    soonest = sort_by_time_to_target(trainings)
    if soonest:
        first = soonest[0].first_run
        text = describe_training(soonest[0], names[first["training_id"]])
        yield doc.Paragraph(f"First to reach the target: {text}.", tags=doc.get_tags(first))
    if missed := sum(training.reached < training.seeds for training in trainings):
        metric = f"{to_text(trainings[0].first_run['metric_name'])} {trainings[0].target:g}"
        with_seeds = " with every seed" if any(training.seeds > 1 for training in trainings) else ""
        yield doc.Paragraph(f"{missed} of {len(trainings)} trainings did not reach {metric}{with_seeds}.")


def _make_training_charts(
    number: int, title: str, metric: str, curves: Mapping[str, SeedCurves], targets: Sequence[float]
) -> Iterator[doc.Chart]:
    def get_validation(point: CurvePoint) -> float | None:
        return point.metrics.get(metric)

    def get_on_training_samples(point: CurvePoint) -> float | None:
        return point.train_metrics.get(metric)

    def get_gap(point: CurvePoint) -> float | None:
        return generalisation_gap(metric, get_validation(point), get_on_training_samples(point))

    def get_epochs(point: CurvePoint) -> float:
        return point.epochs

    def get_seconds(point: CurvePoint) -> float:
        return point.train_s

    seeds = SEEDS_CAPTION if any(len(of_seeds) > 1 for _, of_seeds in curves.values()) else ""
    better = f"{metric}, {describe_direction(metric)}. "
    charts = (
        ("epochs", "Validation", get_validation, get_epochs, f"Validation {better}", targets),
        ("seconds", "Validation", get_validation, get_seconds, f"Validation {better}", targets),
        ("trained", "Training samples", get_on_training_samples, get_epochs,
         f"On as many training samples, with dropout off: {better}", ()),
        ("gap", "Generalisation gap", get_gap, get_epochs,
         f"How much worse {metric} is on validation samples than on training samples; above 0 is worse. ", ()),
    )  # fmt: skip
    for kind, heading, get_y, get_x, about, levels in charts:
        lines = [make_curve_series(name, tags, of_seeds, get_y, get_x) for name, (tags, of_seeds) in curves.items()]
        series = [line for line in lines if line is not None]
        if not series:
            continue
        values = [y for line in series for y in line.y if y is not None]
        is_error = metric.startswith(LOWER_IS_BETTER) and min(values) > 0
        y = doc.Axis(metric, log=is_error and kind != "gap" and max(values) > DECADE * min(values), from_zero=False)
        places = [float(place) for line in series for place in line.x]
        ends = sorted({min(places), max(places)})
        model = {"model": next(iter(curves.values()))[0]["model"]}
        for target in levels:
            name = f"target {metric} {target:g}"
            series.append(doc.Series(name, ends, [target] * len(ends), tags=model, style="ideal"))
        x = doc.Axis("seconds of training" if kind == "seconds" else "epochs")
        name = _add_label(f"{heading}, {metric} over {x.title}", title)
        caption = f"{about}{POINTS_CAPTION}{seeds}".strip()
        yield doc.Chart(f"training-{number}-{kind}", name, x, y, series, "lines", caption)


def _merge_hardware(curves: Sequence[Curve]) -> list[Curve]:
    """Put the curves of several machines into one group, each named after its own machine: seconds compare across
    hardware where speedups do not."""
    hardware: dict[tuple[str, ...], list[str]] = {}
    for curve in curves:
        hardware.setdefault(_key_without_hardware(curve), []).append(curve.group["hardware"])
    merged = []
    for curve in curves:
        machines = list(dict.fromkeys(hardware[_key_without_hardware(curve)]))
        name = f"{curve.name} on {curve.group['hardware']}" if len(machines) > 1 else curve.name
        rows = [doc.add_epoch_limits(row) for row in curve.rows]
        merged.append(replace(curve, name=name, group={**curve.group, "hardware": ", ".join(machines)}, rows=rows))
    return merged


def _key_without_hardware(curve: Curve) -> tuple[str, ...]:
    return tuple(text for name, text in curve.group.items() if name != "hardware")


def _describe_epoch_chart(group: doc.CurveGroup) -> str:
    several = len({curve.tags["hardware"] for curve in group.curves}) > 1
    return doc.join_sentences(
        "seconds that all samples of the training set take at the measured throughput; less is better",
        "machines share this chart, since it is in seconds, and each curve names its own" if several else "",
        describe_curve_intervals(group.curves),
    )


def _describe_epoch_table(group: doc.CurveGroup) -> str:
    return doc.join_sentences(
        "less is better in all of them, except for steps",
        "cells without a measurement are empty",
        describe_curve_intervals(group.curves),
    )


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
        spec.Listing("Epochs", EPOCH_HEADS, _describe_epoch_table, always=("epoch_s", "steps_per_epoch")),
    ],
    keep=lambda row: row["epoch_s"] is not None,
    prepare=_merge_hardware,
)  # fmt: skip


def losses_section(report_data: ReportData) -> doc.Section | None:
    """Return None if no run has a loss."""
    firsts = set(report_data.pooled["run_id"])  # repeats of one configuration and seed learn the same
    groups: dict[tuple[str, str], list[RunRow]] = {}
    for row in list_detailed_runs(report_data):
        if row["run_id"] in firsts and row["final_loss"] is not None and row["status"] == "ok":
            groups.setdefault((to_text(row["model"]), to_text(row["dataset"])), []).append(row)
    if not groups:
        return None
    blocks: list[doc.Block] = []
    for number, (group, members) in enumerate(list(groups.items())[:MAX_TRAINING_GROUPS]):
        blocks += _make_loss_blocks(report_data, number, " on ".join(group) if len(groups) > 1 else "", members)
    if len(groups) > MAX_TRAINING_GROUPS:
        blocks.append(
            doc.Paragraph(f"Shown are {MAX_TRAINING_GROUPS} of {len(groups)} pairs of a model and a data set.")
        )
    blocks += list_left_out_runs(report_data)
    return doc.Section("learning", "Loss during training", blocks)


def _make_loss_blocks(report_data: ReportData, number: int, title: str, rows: list[RunRow]) -> Iterator[doc.Block]:
    selection = select_first_repeats(rows, doc.MAX_CURVES)
    names = name_runs(rows)
    losses = {row["run_id"]: compute_losses(report_data.result(row["run_id"])) for row in selection}
    epoch_samples = {row["run_id"]: report_data.result(row["run_id"]).workload.train_samples for row in selection}

    epochs_known, series = all(epoch_samples.values()), []
    for row in selection:
        run, samples = losses[row["run_id"]], epoch_samples[row["run_id"]] or 1
        x_values = [count / samples for count in run.samples] if epochs_known else run.samples
        points = doc.downsample(run.make_points(x_values), MAX_CURVE_POINTS)
        x, y = [x for x, _ in points], [y for _, y in points]
        series.append(doc.Series(names[row["run_id"]], x, y, tags=doc.get_tags(row)))
    kind = "epochs" if epochs_known else "samples"
    loss = doc.Axis("training loss", from_zero=False)
    heading = _add_label(f"Loss over {kind}", title)
    yield doc.Chart(f"learning-{number}-{kind}", heading, doc.Axis(kind), loss, series, caption=LOSS_CAPTION)
    yield _make_loss_table(number, title, selection, names, losses, epoch_samples)
    if len(selection) < len(rows):
        yield doc.Paragraph(f"{len(selection)} of {len(rows)} configurations are drawn.")


def _make_loss_table(
    number: int,
    title: str,
    rows: list[RunRow],
    names: dict[str, str],
    losses: dict[str, LossSeries],
    epoch_samples: dict[str, int | None],
) -> doc.Table:
    table_rows = []
    for row in rows:
        name, run, samples = names[row["run_id"]], losses[row["run_id"]], epoch_samples[row["run_id"]]
        metric = f"{to_text(row['metric_name'])} {row['metric']:.4g}" if row["metric"] is not None else ""
        cells = [
            doc.Cell(name, name),
            doc.Cell(f"{run.steps[-1]:,}", run.steps[-1]),
            doc.format_cell(run.samples[-1] / samples if samples else None, "{:.3g}".format),
            doc.Cell(units.format_seconds(run.seconds[-1]), run.seconds[-1]),
            doc.Cell(f"{row['final_loss']:.4g}", row["final_loss"]),
            doc.Cell(metric, row["metric"]),
        ]
        table_rows.append(doc.Row(cells, doc.get_tags(row)))
    caption = _describe_lengths([row["stopped_by"] is not None for row in rows])
    heading = _add_label("Where training ended", title)
    return doc.Table(f"learning-{number}-ends", heading, LOSS_COLUMNS, table_rows, frozenset(LOSS_COLUMNS[1:]), caption)


def _describe_lengths(to_stop: list[bool]) -> str:
    """Say how long these runs are, from whether each trained to a stop."""
    measured = (
        "as long as their figures take to measure, not as long as training would be: a lower loss at the end may only "
        "mean more steps. Their validation figure is taken once, after the last measured block."
    )
    stopped = (
        "as long as train.stop says. Their seconds are without the first step, which compiles, and the validation "
        "figure is that of the last point of the curve, which the section on training draws. The loss at the end is "
        f"the mean of the last {FINAL_LOSS_STEPS} steps."
    )
    if all(to_stop):
        return f"Runs are {stopped}"
    return (
        f"Runs that train to a stop are {stopped} The others are {measured}" if any(to_stop) else f"Runs are {measured}"
    )
