"""What came of trainings, as a table and in sentences. Layer 3.

What the terminal tells of trainings to a stop: how good the models became, and when, in a table below that of the
throughput, which fills a window by itself. Layer 3.

The losses of a run over its updates, samples and seconds of training, warm-up too. Layer 3.

Curves of a training's metrics over its seeds: what the section `training` draws. Layer 3.

What a training to a stop came to, of one run, as the terminal's details tell it. Layer 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis import training_columns
from scalebench.analysis.time_to_target import Figure, TrainingOutcome, summarize_trainings, mean_of_levels
from scalebench.core import units
from scalebench.core.result import LOWER_IS_BETTER, CurvePoint, RankRecord, Result, first_point_at_target
from scalebench.core.stats.estimates import Estimate
from scalebench.report import report_data, tables
from scalebench.report.document import Cell, Row, Series, Table, tags, thin
from scalebench.report.flag_text import number, text

if TYPE_CHECKING:
    import pandas as pd

MOST_SENTENCES = 12
FIRST = ("run", "gpus", "batch per device", "global batch", "rule", "learning rate")
COMPARED = ("bare", "self")
CAPTION = (
    "Means over seeds with 95 % intervals by Student's t, where there are three seeds or more and all have the figure. "
    "Seconds are of training: the first update, which compiles, and evaluation are not in them. The gap is how much "
    "worse the metric is on validation samples than on samples that were trained on. Speedup to target is the "
    "baseline's time to target over the run's own, seed by seed; beside it, the speedup in throughput, which knows "
    "nothing of what was learned."
)


def names(found: Sequence[TrainingOutcome]) -> dict[str, str]:
    """training_id -> `ddp_gloo on 2 devices, batch per device 75`: what tells it from the others here."""
    told = report_data.names(report_data.plain([one.first_run for one in found]))
    return {one.first_run["training_id"]: told[one.first_run["run_id"]] for one in found}


def table(id: str, title: str, found: Sequence[TrainingOutcome], named: Mapping[str, str]) -> Table:
    metric = text(found[0].first_run["metric_name"]) or "metric"
    kinds = [kind for kind in COMPARED if any(one.figures[f"speedup_{kind}"][0] is not None for one in found)]
    targets = any(one.target is not None for one in found)
    aimed = ["target", "reached", "epochs to target", "time to target (95 %)"] if targets else []
    ratios = [f"{what} {kind}" for kind in kinds for what in _ratio_heads(targets)]
    heads = [*FIRST, "epochs", "seconds of training", f"{metric} (95 %)", "gap", *aimed, *ratios, "stopped by"]
    rows = []
    for one in found:
        cells = [*_setting(one, named), *_ends(one), *(_aimed(one) if targets else [])]
        cells += [_ratio(one.figures[name]) for kind in kinds for name in _ratio_columns(kind, targets)]
        rows.append(Row([*cells, _cell(", ".join(one.stopped_by))], tags(one.first_run)))
    return Table(id, title, heads, rows, frozenset(heads[1:-1]) - {"rule", "reached"}, CAPTION)


def sentences(frame: pd.DataFrame) -> list[str]:
    """For the terminal, whose table has a row a seed: when trainings of several seeds got to their target, the soonest
    first; those that never did last."""
    found = [one for one in summarize_trainings(frame) if one.target is not None and one.seeds > 1]
    named = names(found)
    made = [sentence(one, named[one.first_run["training_id"]]) for one in sorted(found, key=_soonest)]
    more = [f"{len(made) - MOST_SENTENCES} more trainings: see the report"] if len(made) > MOST_SENTENCES else []
    return made[:MOST_SENTENCES] + more


def sentence(one: TrainingOutcome, name: str) -> str:
    """`ddp_gloo on 2 devices: mse 0.0005 after 12.3 s of training [11.9, 12.7], 4.2 epochs; 3 of 5 seeds reached it`"""
    metric = f"{text(one.first_run['metric_name']) or 'metric'} {one.target:g}"
    if not one.reached:
        seeds = f" with any of {one.seeds} seeds" if one.seeds > 1 else ""
        return f"{name}: {metric} was not reached{seeds}{_failed(one)}"
    said = f"{name}: {metric} after {_duration(one.figures['time_to_target_s'])} of training"
    epochs = one.figures["epochs_to_target"][0]
    return f"{said}, {epochs:.3g} epochs{_by_seeds(one)}" if epochs is not None else f"{said}{_by_seeds(one)}"


def goodness(metric: str) -> str:
    return "lower is better" if metric.startswith(LOWER_IS_BETTER) else "higher is better"


def soonest(found: Iterable[TrainingOutcome]) -> list[TrainingOutcome]:
    """Those of which every seed got to the target, the soonest first."""
    return sorted((one for one in found if one.reached == one.seeds), key=_soonest)


def _soonest(one: TrainingOutcome) -> tuple[bool, float]:
    time_s = one.figures["time_to_target_s"][0]
    return time_s is None, time_s or 0.0


def _by_seeds(one: TrainingOutcome) -> str:
    return f"; {_reached(one)} seeds reached it{_failed(one)}" if one.seeds > 1 else ""


def _failed(one: TrainingOutcome) -> str:
    return f", {one.failed} failed" if one.failed else ""


def _reached(one: TrainingOutcome) -> str:
    return f"{one.reached} of {one.seeds}"


def _setting(one: TrainingOutcome, named: Mapping[str, str]) -> list[Cell]:
    row = one.first_run
    rule = text(row["learning_rate_rule"])
    base = f" from {row['base_batch']:,}" if row["base_batch"] is not None and rule != "none" else ""
    rate = row["learning_rate"]
    return [
        _cell(named[row["training_id"]]),
        Cell(str(row["gpus"]), row["gpus"]),
        *(Cell(f"{row[name]:,}", row[name]) for name in ("batch_per_device", "global_batch")),
        _cell(f"{rule}{base}"),
        Cell("" if rate is None else f"{rate:.4g}", rate),
    ]


def _ends(one: TrainingOutcome) -> list[Cell]:
    epochs, gap = one.figures["trained_epochs"][0], one.figures["generalisation_gap"]
    return [
        Cell("" if epochs is None else f"{epochs:.3g}", epochs),
        _seconds(one.figures["trained_s"]),
        Cell(level(one.figures["metric"]), one.figures["metric"][0]),
        Cell(level(gap), gap[0]),
    ]


def _aimed(one: TrainingOutcome) -> list[Cell]:
    epochs = one.figures["epochs_to_target"][0]
    return [
        Cell("" if one.target is None else f"{one.target:g}", one.target),
        _cell("" if one.target is None else f"{_reached(one)} seeds"),
        Cell("" if epochs is None else f"{epochs:.3g}", epochs),
        _seconds(one.figures["time_to_target_s"]),
    ]


def _ratio_heads(targets: bool) -> list[str]:
    return ["to target over", "samples/s over"] if targets else ["samples/s over"]


def _ratio_columns(kind: str, targets: bool) -> list[str]:
    return [f"speedup_target_{kind}", f"speedup_{kind}"] if targets else [f"speedup_{kind}"]


def _ratio(figure: Figure) -> Cell:
    value, interval = figure
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Cell(tables.ratio({"x": value, "x_low": low, "x_high": high}, "x"), value)


def _seconds(figure: Figure) -> Cell:
    return Cell("" if figure[0] is None else _duration(figure), figure[0])


def _duration(figure: Figure) -> str:
    value, interval = figure
    assert value is not None
    return units.format_duration(interval or Estimate(value, value, value))


def level(figure: Figure) -> str:
    """`0.00048 [0.00041, 0.00055]`"""
    value, interval = figure
    if value is None:
        return ""
    return f"{value:.4g}" if interval is None else f"{value:.4g} [{interval.low:.3g}, {interval.high:.3g}]"


def _cell(shown: str) -> Cell:
    return Cell(shown, shown or None)


Shown = Callable[[dict[str, Any]], str]
SPEEDUPS = {"bare": "to target over bare", "self": "to target over self"}


def summary(frame: pd.DataFrame) -> RichTable | None:
    """Strategy by devices: length, metric, gap, time to target and how many times sooner that is, beside the speedup in
    throughput. None where no run trained to a stop."""
    trained = frame[frame["stopped_by"].notna()]
    if not len(trained):
        return None
    (_, varying), shown = tables.shared(trained), columns(trained)
    table = RichTable(box=box.SIMPLE_HEAD, collapse_padding=True)
    for name in [*varying, "strategy"]:
        table.add_column(name)
    for name in ("gpus", *shown):
        table.add_column(Text(name), justify="right")
    table.add_column("stopped by")
    for row in trained.sort_values(tables.ORDER).to_dict("records"):
        cells = [tables.setting(row[name]) for name in [*varying, "strategy", "gpus"]]
        table.add_row(*map(Text, [*cells, *(of(row) for of in shown.values()), text(row["stopped_by"])]))
    return table


def columns(frame: pd.DataFrame) -> dict[str, Shown]:
    """What to show of each row, by the column's head: as far as any row has it."""
    found: dict[str, Shown] = {"epochs": partial(_figure, "trained_epochs"), "training": _trained_s}
    metrics = frame.loc[frame["metric"].notna(), "metric_name"].dropna().unique()
    if len(metrics):
        found |= {"metric": _metric} if len(metrics) > 1 else {text(metrics[0]): partial(_figure, "metric")}
    if frame["generalisation_gap"].notna().any():
        found["gap"] = partial(_figure, "generalisation_gap")
    if frame["target"].notna().any():
        found["time to target"] = _time_to_target
    for kind, head in SPEEDUPS.items():
        if _tells_more(frame, f"speedup_target_{kind}"):
            found[head] = partial(_learned_columns_ratio, f"speedup_target_{kind}")
            found[f"samples/s over {kind}"] = partial(_learned_columns_ratio, f"speedup_{kind}")
    return found


def _tells_more(frame: pd.DataFrame, name: str) -> bool:
    """Whether a row has it, and another one than the speedup over bare."""
    known = frame[frame[name].notna()]
    over_bare = known["speedup_target_bare"]
    if name == "speedup_target_bare":
        return len(known) > 0
    return bool((over_bare.isna() | (over_bare != known[name]).fillna(True)).any())


def _figure(name: str, row: dict[str, Any]) -> str:
    value = number(row[name])
    return "" if value is None else f"{value:.3g}"


def _trained_s(row: dict[str, Any]) -> str:
    value = number(row["trained_s"])
    return "" if value is None else units.format_seconds(value)


def _metric(row: dict[str, Any]) -> str:
    value = _figure("metric", row)
    return f"{text(row['metric_name'])} {value}" if value else ""


def _time_to_target(row: dict[str, Any]) -> str:
    """Also that it never got there, which is no fault of the run."""
    value = number(row["time_to_target_s"])
    if value is not None:
        return units.format_seconds(value)
    return "not reached" if row["status"] == "ok" and number(row["target"]) is not None else ""


def _learned_columns_ratio(name: str, row: dict[str, Any]) -> str:
    value = number(row[name])
    return "" if value is None else f"{value:.2f}"


@dataclass
class Learning:
    """A block of updates each: where training stood at its end, and the mean loss over it; None: no loss is known."""

    updates: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of blocks: what lies between them is no training
    losses: list[float | None] = field(default_factory=list)
    course: list[CurvePoint] = field(default_factory=list)  # of a training that goes to a stop
    _met: int = 0  # points of the course that lie behind

    def points(self, over: Sequence[float]) -> list[tuple[float, float]]:
        """(`over`, loss) where there is one."""
        return [(x, loss) for x, loss in zip(over, self.losses, strict=True) if loss is not None]

    def _add(self, updates: int, samples: int, seconds: float, loss: float | None) -> None:
        self._to_points(updates)
        self.updates.append(updates + (self.updates[-1] if self.updates else 0))
        self.samples.append(samples + (self.samples[-1] if self.samples else 0))
        self.seconds.append(seconds + (self.seconds[-1] if self.seconds else 0.0))
        self.losses.append(loss)

    def _to_points(self, room: float) -> None:
        """On to the points of the course that leave no room for a block of so many updates. The blocks that these
        points cut short are in no series, and the next one begins at the point."""
        while self._met < len(self.course):
            point, at = self.course[self._met], self.updates[-1] if self.updates else 0
            if point.step >= at + room:
                return
            self._met += 1
            if point.step == at:
                self.samples[-1] = point.samples  # the last batch of an epoch may be a smaller one
                continue
            self.updates.append(point.step)
            self.samples.append(point.samples)
            self.seconds.append(max([point.train_s, *self.seconds[-1:]]))
            self.losses.append(None)


def learning(result: Result) -> Learning:
    """Of all ranks together: a block takes as long as on the slowest, its loss is the mean weighted by samples, as
    `quality.final_loss` is. Blocks that not every rank finished are left out. Seconds of a training that goes to a stop
    are without its first update, which compiles, as those of its curve are."""
    found, ranks = Learning(course=result.quality.curve), result.ranks
    if not ranks:
        return found
    # How many samples a warm-up block had is not kept: every rank had its share of the batch, as later on.
    shares = [rank.block_samples[0] if rank.block_samples else 1 for rank in ranks]
    steps = ranks[0].warmup_block_steps or 0
    warmup = _blocks(ranks, "warmup_block_s", "warmup_losses") if steps else iter(())
    for seconds, losses in warmup:
        compiles = bool(found.course) and not found.updates
        found._add(steps, steps * result.scale.global_batch, 0.0 if compiles else seconds, _mean(losses, shares))
    steps = ranks[0].block_steps or 0
    measured = _blocks(ranks, "block_s", "block_losses")
    samples_of = zip(*(rank.block_samples for rank in ranks), strict=False)
    for (seconds, losses), samples in zip(measured, samples_of, strict=False):
        found._add(steps, sum(samples), seconds, _mean(losses, samples))
    found._to_points(math.inf)
    return found


def _blocks(ranks: list[RankRecord], times: str, losses: str) -> Iterator[tuple[float, list[float | None]]]:
    """Seconds of the slowest, and the ranks' losses."""
    for block, seconds in enumerate(zip(*(getattr(rank, times) for rank in ranks), strict=False)):
        series = [getattr(rank, losses) for rank in ranks]
        yield max(seconds), [own[block] if block < len(own) else None for own in series]


def _mean(losses: Sequence[float | None], weights: Sequence[int]) -> float | None:
    known = [(loss, weight) for loss, weight in zip(losses, weights, strict=True) if loss is not None and weight]
    return sum(loss * weight for loss, weight in known) / sum(weight for _, weight in known) if known else None


MOST_POINTS = 300  # of a line
Over = Callable[[CurvePoint], float]
Of = Callable[[CurvePoint], float | None]


class Drawn(NamedTuple):
    """One configuration: its name, and the curve of each of its seeds."""

    name: str
    tags: Mapping[str, str]
    curves: Sequence[Sequence[CurvePoint]]


def epochs(point: CurvePoint) -> float:
    return point.epochs


def seconds(point: CurvePoint) -> float:
    return point.train_s


def validation(metric: str) -> Of:
    return lambda point: point.metrics.get(metric)


def on_trained(metric: str) -> Of:
    """On samples that were trained on."""
    return lambda point: point.train_metrics.get(metric)


def gap(metric: str) -> Of:
    """How much worse it is on what it has not seen."""
    return lambda point: training_columns.generalisation_gap(metric, point.metrics.get(metric), point.train_metrics.get(metric))


def series(drawn: Drawn, of: Of, over: Over) -> Series | None:
    """Means over the seeds as far as all of them went, with limits from three seeds on; of one seed its curve. None
    where nothing is known."""
    x: list[float] = []
    found: list[Figure] = []
    for points in _together(drawn.curves):
        values = [value for point in points if (value := of(point)) is not None]
        if len(values) == len(points):
            x.append(sum(map(over, points)) / len(points))
            found.append(mean_of_levels(values))
    if not x:
        return None
    kept = [int(place) for place, _ in thin([(float(k), value) for k, (value, _) in enumerate(found)], MOST_POINTS)]
    low, high = ([None if i is None else (i.low, i.high)[end] for k in kept for i in [found[k][1]]] for end in (0, 1))
    limited = any(limit is not None for limit in low)
    return Series(
        drawn.name,
        [x[k] for k in kept],
        [found[k][0] for k in kept],
        low if limited else (),
        high if limited else (),
        drawn.tags,
        "points" if len(kept) == 1 else "line",
    )


def _together(curves: Sequence[Sequence[CurvePoint]]) -> list[list[CurvePoint]]:
    """Points of all seeds after the same number of updates. Those that were evaluated by the clock have few of them:
    then those of the first seed."""
    by_step = [{point.step: point for point in curve} for curve in curves]
    steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
    if 2 * len(steps) < min(map(len, by_step), default=0):
        return [[point] for point in curves[0]]
    return [[points[step] for points in by_step] for step in steps]


Facts = list[tuple[str, str]]


def rows(result: Result) -> Facts:
    """How long it was, how good the model became, when it reached its target; nothing of a run that measured its
    throughput."""
    curve = result.quality.curve
    if not curve:
        return []
    found = [("training", _length(result, curve[-1]))]
    if said := _level(result.quality.metric_name or "", curve[-1]):
        found.append(("validation", said))
    if said := _target(result):
        found.append(("target", said))
    return [*found, ("evaluation", _evaluation(curve))]


def _length(result: Result, last: CurvePoint) -> str:
    first_s, by = result.quality.first_step_s, result.quality.stopped_by
    words = f"{last.epochs:.3g} epochs, {last.step:,} updates, {units.format_seconds(last.train_s)}"
    words += "" if first_s is None else f" and {units.format_seconds(first_s)} for the first update, which compiles"
    return words if by is None else f"{words}; stopped by {by}"


def _level(metric: str, last: CurvePoint) -> str:
    value, gap = (
        last.metrics.get(metric),
        training_columns.generalisation_gap(metric, last.metrics.get(metric), last.train_metrics.get(metric)),
    )
    if value is None:
        return ""
    if gap is None:
        return f"{metric} {value:.4g}"
    return f"{metric} {value:.4g}, {abs(gap):.3g} {'worse' if gap >= 0 else 'better'} than on samples trained on"


def _target(result: Result) -> str:
    target = (result.spec.get("train", {}).get("stop") or {}).get("target")
    metric = result.quality.metric_name or ""
    if target is None:
        return ""
    at = first_point_at_target(result.quality.curve, metric, target)
    if at is None:
        return f"{metric} {target:g} was not reached"
    return f"{metric} {target:g} after {units.format_seconds(at.train_s)} of training, {at.epochs:.3g} epochs"


def _evaluation(curve: list[CurvePoint]) -> str:
    points = f"{len(curve):,} {'point' if len(curve) == 1 else 'points'}"
    return f"{points}, {units.format_seconds(sum(point.evaluate_s for point in curve))}, outside the training's seconds"
