"""The section `training` of a report: how good models became over epochs and over seconds, and when they reached their
target. Layer 3.

The section `epochs` of a report: what an epoch, and getting to the target, takes of time, devices and energy.
Layer 3.

The section `learning` of a report: losses over updates, epochs and seconds, and what validation says. Layer 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.time_to_target import TrainingOutcome, summarize_trainings
from scalebench.core import units
from scalebench.core.result import LOWER_IS_BETTER
from scalebench.report import report_data, tables, training_tables
from scalebench.report import training_tables as training_table
from scalebench.report.document import (
    MOST_CURVES,
    Axis,
    Block,
    Cell,
    Cells,
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
    duration,
    groups,
    lines,
    sentences,
    tags,
    thin,
    with_epoch_limits,
)
from scalebench.report.flag_text import number, text
from scalebench.report.report_data import Evidence
from scalebench.report.training_tables import Learning, learning

MOST_GROUPS = 8
MOST_SEEDS = 10  # of a line
DECADE = 10.0  # from the least to the largest figure, above which an axis is logarithmic
SEVERAL = (
    "Lines are means over seeds as far as all seeds went, bands 95 % intervals over three seeds or more; of seeds that "
    "were evaluated after other numbers of updates, the first one. "
)
POINTS = "Taken at the points of the training, between two updates and outside its clock. "


def section(evidence: Evidence) -> Section | None:
    """None where no run trained to a stop and ended well."""
    groups: dict[tuple[str, ...], list[TrainingOutcome]] = {}
    found = [one for one in summarize_trainings(evidence.frame) if one.runs]
    for one in found:
        key = tuple(text(one.first_run[name]) for name in ("model", "dataset", "metric_name", "hardware", "machine"))
        groups.setdefault(key, []).append(one)
    if not groups:
        return None
    machines = len({key[3:] for key in groups}) > 1
    blocks: list[Block] = []
    for index, (key, members) in enumerate(list(groups.items())[:MOST_GROUPS], 1):
        where = f", hardware {key[3]} ({key[4]})" if machines else ""
        blocks += _group(evidence, index, f"{key[0]} on {key[1]}{where}", members)
    if len(groups) > MOST_GROUPS:
        blocks.append(Words(f"Shown are {MOST_GROUPS} of {len(groups)} groups of a model, a data set and a machine."))
    return Section("training", "Training: accuracy and time to target", blocks)


def _group(evidence: Evidence, number: int, title: str, found: Sequence[TrainingOutcome]) -> Iterator[Block]:
    named = training_table.names(found)
    yield from _answers(found, named)
    drawn = [_drawn(evidence, one, named[one.first_run["training_id"]]) for one in found[:MOST_CURVES]]
    yield from _charts(number, title, text(found[0].first_run["metric_name"]), drawn, _targets(found))
    if len(drawn) < len(found):
        yield Words(f"{len(drawn)} of {len(found)} trainings of {title} are drawn.")
    yield training_table.table(f"training-{number}-ends", f"What came of training: {title}", found, named)


def _answers(found: Sequence[TrainingOutcome], named: dict[str, str]) -> Iterator[Words]:
    """For each target which training got to it first."""
    for target in _targets(found):
        aimed = [one for one in found if one.target == target]
        first = training_table.soonest(aimed)
        if first:
            said = training_table.sentence(first[0], named[first[0].first_run["training_id"]])
            yield Words(f"Soonest at the target: {said}.", tags=tags(first[0].first_run))
        if missed := sum(one.reached < one.seeds for one in aimed):
            metric = text(aimed[0].first_run["metric_name"])
            with_seeds = " with every seed" if any(one.seeds > 1 for one in aimed) else ""
            yield Words(f"{missed} of {len(aimed)} trainings did not reach {metric} {target:g}{with_seeds}.")


def _targets(found: Sequence[TrainingOutcome]) -> list[float]:
    return sorted({one.target for one in found if one.target is not None})


def _drawn(evidence: Evidence, one: TrainingOutcome, name: str) -> training_tables.Drawn:
    rows = one.by_seed[:MOST_SEEDS]
    curves = [evidence.result(row["run_id"]).quality.curve for row in rows]
    return training_tables.Drawn(name, tags(one.first_run), curves)


def _charts(
    number: int, title: str, metric: str, drawn: Sequence[training_tables.Drawn], targets: Sequence[float]
) -> Iterator[Chart]:
    several = SEVERAL if any(len(one.curves) > 1 for one in drawn) else ""
    better = f"{metric}, {training_table.goodness(metric)}. "
    told = (
        ("epochs", "Validation", training_tables.validation(metric), training_tables.epochs, f"Validation {better}", targets),
        ("seconds", "Validation", training_tables.validation(metric), training_tables.seconds, f"Validation {better}", targets),
        ("trained", "Samples trained on", training_tables.on_trained(metric), training_tables.epochs, f"Of as many samples that were "
         f"trained on, with dropout off: {better}", ()),
        ("gap", "Generalisation gap", training_tables.gap(metric), training_tables.epochs, f"How much worse {metric} is on validation "
         f"samples than on samples that were trained on; above 0 is worse. ", ()),
    )  # fmt: skip
    for kind, head, of, over, about, levels in told:
        series = [one for each in drawn if (one := training_tables.series(each, of, over)) is not None]
        if series:
            x = Axis("seconds of training" if over is training_tables.seconds else "epochs")
            y = Axis(metric, log=_log(metric, series) and kind != "gap", from_zero=False)
            lines = [*series, *_levels(metric, levels, series, drawn[0].tags["model"])]
            name = f"{head}, {metric} over {x.title}: {title}"
            yield Chart(f"training-{number}-{kind}", name, x, y, lines, "lines", f"{about}{POINTS}{several}".strip())


def _log(metric: str, series: Sequence[Series]) -> bool:
    """Whether these errors go over more than a decade."""
    known = [y for one in series for y in one.y if y is not None]
    return metric.startswith(LOWER_IS_BETTER) and min(known) > 0 and max(known) > DECADE * min(known)


def _levels(metric: str, targets: Sequence[float], series: Sequence[Series], model: str) -> Iterator[Series]:
    """The targets as lines across."""
    places = [float(x) for one in series for x in one.x]
    for target in targets:
        ends = [min(places), max(places)] if max(places) > min(places) else [min(places)]
        name = f"target {metric} {target:g}"
        yield Series(name, ends, [target] * len(ends), tags={"model": model}, style="ideal")


# Column, head of the table, title of the chart (none: too few rows have it), unit.
COSTS = (
    ("device_hours_per_epoch", "device-hours an epoch", "Devices' time of an epoch", "device-hours"),
    ("energy_j_per_epoch", "energy an epoch", "Energy of an epoch", "joules"),
    ("time_to_target_s", "time to target", "", "seconds"),
    ("device_hours_to_target", "device-hours to target", "", "device-hours"),
    ("energy_j_to_target", "energy to target", "", "joules"),
)


def epochs_section(evidence: Evidence) -> Section | None:
    """None where no epoch's time is known."""
    found, words = groups(_across_hardware(evidence.curves), lambda members: any(map(_known, members)))
    blocks: list[Block] = [*words]
    for group in found:
        blocks += [*group.words, *_epochs_charts(group), _table(group)]
    return Section("epochs", "Epochs: time, devices and energy", blocks) if found else None


def _known(curve: Curve) -> bool:
    return any(row["epoch_s"] is not None for row in curve.rows)


def _across_hardware(found: Sequence[Curve]) -> list[Curve]:
    """Seconds may stand beside each other where speedups may not: curves of several machines as one group, each with
    the name of its own."""
    hardware: dict[tuple[str, ...], list[str]] = {}
    for curve in found:
        hardware.setdefault(_elsewhere(curve), []).append(curve.group["hardware"])
    made = []
    for curve in found:
        machines = list(dict.fromkeys(hardware[_elsewhere(curve)]))
        name = f"{curve.name} on {curve.group['hardware']}" if len(machines) > 1 else curve.name
        rows = [with_epoch_limits(row) for row in curve.rows]
        made.append(replace(curve, name=name, group={**curve.group, "hardware": ", ".join(machines)}, rows=rows))
    return made


def _elsewhere(curve: Curve) -> tuple[str, ...]:
    """What it shares with the same work on another machine."""
    return tuple(text for name, text in curve.group.items() if name != "hardware")


def _epochs_charts(group: Group) -> Iterator[Chart]:
    what = "seconds that all samples of the training set take at the measured throughput; less is better"
    several = len({curve.tags["hardware"] for curve in group.curves}) > 1
    more = "machines share this chart, since it is in seconds, and each curve names its own" if several else ""
    yield from _chart(group, "epoch_s", "Epoch", "seconds an epoch", sentences(what, more, bands(group.curves)))
    for column, head, title, unit in COSTS:
        if title:
            yield from _chart(group, column, title, f"{unit} an epoch", sentences(f"{head}, less is better"))


def _chart(group: Group, column: str, title: str, axis: str, caption: str) -> Iterator[Chart]:
    if drawn := lines(group.curves, column):
        axes = devices_axis(drawn), Axis(axis)
        yield Chart(group.id("epochs", column), f"{title}: {group.title}", *axes, drawn, "lines", caption)


def _table(group: Group) -> Table:
    rows = [row for curve in group.curves for row in curve.rows]
    costs = [
        (column, head, unit) for column, head, _, unit in COSTS if any(row.get(column) is not None for row in rows)
    ]
    heads = ["gpus", "epoch (95 %)", "updates an epoch", *(head for _, head, _ in costs)]
    made = [
        Row([cell(curve.name), *_times(row), *(_cost(row, column, unit) for column, _, unit in costs)], curve.tags)
        for curve in group.curves
        for row in curve.rows
    ]
    caption = sentences("less is better in all of them, but of updates", "not measured is empty", bands(group.curves))
    title = f"Epochs: {group.title}"
    return Table(group.id("epochs", "table"), title, ["strategy", *heads], made, frozenset(heads), caption)


def _times(row: Cells) -> list[Cell]:
    updates = row["steps_per_epoch"]
    return [
        cell(str(row["gpus"]), row["gpus"]),
        cell(duration(row, "epoch_s"), row["epoch_s"]),
        Cell("") if updates is None else cell(f"{updates:,}", updates),
    ]


def _cost(row: Cells, column: str, unit: str) -> Cell:
    value = number(row.get(column))
    if value is None:
        return Cell("")
    shown = {"joules": f"{units.format_number(value)} J", "seconds": tables.seconds(value), "device-hours": _hours(value)}
    return cell(shown[unit], value)


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


MOST_POINTS = 300  # of a line
LEARNING_MOST_GROUPS = 8
CAPTION = (
    "Training loss, mean over each block of updates and all ranks, drawn at the block's end; warm-up is in it. "
    "Of several launches of a configuration, the first one. "
    f"Where there are more than {MOST_POINTS} blocks, the lowest and the highest of each stretch are drawn."
)
COLUMNS = ("run", "updates", "epochs", "seconds of training", "training loss at the end", "validation")


def learning_section(evidence: Evidence) -> Section | None:
    """None where no run has a loss."""
    firsts = set(evidence.pooled["run_id"])  # launches of one configuration and seed learn alike
    rows = [row for row in report_data.detailed(evidence) if row["run_id"] in firsts and row["final_loss"] is not None]
    rows = [row for row in rows if row["status"] == "ok"]
    groups: dict[tuple[str, str], list[report_data.Row]] = {}
    for row in rows:
        groups.setdefault((text(row["model"]), text(row["dataset"])), []).append(row)
    if not groups:
        return None
    blocks: list[Block] = []
    for index, (group, members) in enumerate(list(groups.items())[:LEARNING_MOST_GROUPS]):
        blocks += _learning_group(evidence, index, " on ".join(group), members)
    if len(groups) > LEARNING_MOST_GROUPS:
        blocks.append(Words(f"Shown are {LEARNING_MOST_GROUPS} of {len(groups)} pairs of a model and a data set."))
    if said := report_data.left_out(evidence):
        blocks.append(Words(said))
    return Section("learning", "Loss while training", blocks, folded=True)


def _learning_group(evidence: Evidence, number: int, title: str, rows: list[report_data.Row]) -> Iterator[Block]:
    drawn = report_data.first_launches(rows, MOST_CURVES)
    names = report_data.names(rows)
    found = {row["run_id"]: learning(evidence.result(row["run_id"])) for row in drawn}
    epoch = {row["run_id"]: evidence.result(row["run_id"]).workload.train_samples for row in drawn}

    def chart(kind: str, axis: str, over: Callable[[str, Learning], Sequence[float]]) -> Chart:
        series = []
        for row in drawn:
            own = found[row["run_id"]]
            points = thin(own.points(over(row["run_id"], own)), MOST_POINTS)
            series.append(Series(names[row["run_id"]], [x for x, _ in points], [y for _, y in points], tags=tags(row)))
        loss = Axis("training loss", from_zero=False)
        return Chart(
            f"learning-{number}-{kind}", f"Loss over {axis}: {title}", Axis(axis), loss, series, caption=CAPTION
        )

    yield chart("updates", "updates", lambda _, own: own.updates)
    if all(epoch.values()):
        yield chart("epochs", "epochs", lambda run_id, own: [seen / (epoch[run_id] or 1) for seen in own.samples])
    else:
        yield chart("samples", "samples", lambda _, own: own.samples)
    yield chart("seconds", "seconds of training", lambda _, own: own.seconds)
    yield _learning_table(number, title, drawn, names, found, epoch)
    if len(drawn) < len(rows):
        yield Words(f"{len(drawn)} of {len(rows)} configurations of {title} are drawn.")


def _learning_table(
    number: int,
    title: str,
    rows: list[report_data.Row],
    names: dict[str, str],
    found: dict[str, Learning],
    epoch: dict[str, int | None],
) -> Table:
    made = []
    for row in rows:
        own, of_epoch = found[row["run_id"]], epoch[row["run_id"]]
        epochs = own.samples[-1] / of_epoch if of_epoch else None
        metric = f"{text(row['metric_name'])} {row['metric']:.4g}" if row["metric"] is not None else ""
        cells = [
            Cell(names[row["run_id"]], names[row["run_id"]]),
            Cell(f"{own.updates[-1]:,}", own.updates[-1]),
            Cell("" if epochs is None else f"{epochs:.3g}", epochs),
            Cell(units.format_seconds(own.seconds[-1]), own.seconds[-1]),
            Cell(f"{row['final_loss']:.4g}", row["final_loss"]),
            Cell(metric, row["metric"]),
        ]
        made.append(Row(cells, tags(row)))
    return Table(
        f"learning-{number}-ends",
        f"Where training ended: {title}",
        COLUMNS,
        made,
        frozenset(COLUMNS[1:]),
        _about([row["stopped_by"] is not None for row in rows]),
    )


def _about(to_stop: list[bool]) -> str:
    """How long these runs are: whether each trained to a stop."""
    measured = (
        "as long as their figures take to measure, not as long as training would be: a lower loss at the end may only "
        "mean more updates. Their validation figure is taken once, after the last measured block."
    )
    stopped = (
        "as long as train.stop says. Their seconds are without the first update, which compiles, and the validation "
        "figure is that of the last point of the curve, which the section on training draws. The loss at the end is "
        "that of the last whole block."
    )
    if all(to_stop):
        return f"Runs are {stopped}"
    return (
        f"Runs that train to a stop are {stopped} The others are {measured}" if any(to_stop) else f"Runs are {measured}"
    )
