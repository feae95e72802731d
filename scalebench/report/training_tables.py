"""Results of trainings: tables and sentences over seeds and rows, and the losses of one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scalebench.analysis.time_to_target import Figure, TrainingOutcome, summarize_trainings
from scalebench.core import units
from scalebench.core.result import CurvePoint, RankRecord, Result
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.flag_text import to_number, to_text
from scalebench.report.report_data import name_runs
from scalebench.report.tables import format_ratio

if TYPE_CHECKING:
    import pandas as pd

MAX_TERMINAL_SENTENCES = 12
BASELINES = ("bare", "self")
CAPTION = (
    "Means over seeds with 95 % intervals by Student's t, if there are three seeds or more and all have the figure. "
    "Seconds are of training, without the first step, which compiles, and without evaluation. The gap is how much "
    "worse the metric is on validation samples than on training samples. Speedup to target is the baseline's time to "
    "target over the run's own, seed by seed; beside it, the speedup in throughput, which does not depend on what was "
    "learned."
)


def name_trainings(trainings: Sequence[TrainingOutcome]) -> dict[str, str]:
    """Map each training_id to a unique name: `ddp_gloo on 2 devices, batch per device 75`."""
    names = name_runs([training.first_run for training in trainings])
    return {training.first_run["training_id"]: names[training.first_run["run_id"]] for training in trainings}


def make_training_table(
    id_: str, title: str, trainings: Sequence[TrainingOutcome], names: Mapping[str, str]
) -> doc.Table:
    """Make a table with a row for each training, over its seeds."""
    has_target = any(training.target is not None for training in trainings)
    metric = to_text(trainings[0].first_run["metric_name"]) or "metric"
    # The columns of figures, with their heads and formats, before the columns of the target and after them.
    before: dict[str, tuple[str, Callable[..., str]]] = {
        "trained_epochs": ("epochs", _format_epochs),
        "trained_s": ("seconds of training", doc.format_duration),
        "metric": (f"{metric} (95 %)", _format_level),
        "generalisation_gap": ("gap", _format_level),
    }
    after: dict[str, tuple[str, Callable[..., str]]] = {}
    if has_target:
        after["epochs_to_target"] = ("epochs to target", _format_epochs)
        after["time_to_target_s"] = ("time to target (95 %)", doc.format_duration)
    for kind in BASELINES:
        if any(training.figures[f"speedup_{kind}"] is not None for training in trainings):
            after |= {f"speedup_target_{kind}": (f"to target over {kind}", format_ratio)} if has_target else {}
            after[f"speedup_{kind}"] = (f"samples/s over {kind}", format_ratio)
    rows = []
    for training in trainings:
        row, rule = training.first_run, to_text(training.first_run["learning_rate_rule"])
        base = f" from {row['base_batch']:,}" if row["base_batch"] is not None and rule != "none" else ""
        values = [names[row["training_id"]], row["gpus"], row["batch_per_device"], row["global_batch"]]
        values += [f"{rule}{base}", doc.format_cell(row["learning_rate"], "{:.4g}".format)]
        values += [_make_figure_cell(training.figures[name], show) for name, (_, show) in before.items()]
        if has_target:
            reached = "" if training.target is None else f"{training.reached} of {training.seeds} seeds"
            values += [doc.format_cell(training.target, "{:g}".format), reached]
        values += [_make_figure_cell(training.figures[name], show) for name, (_, show) in after.items()]
        rows.append((doc.get_tags(row), [*values, ", ".join(training.stopped_by)]))
    heads = ["run", "gpus", "batch per device", "global batch", "rule", "learning rate",
             *(head for head, _ in before.values()), *(["target", "reached"] if has_target else []),
             *(head for head, _ in after.values()), "stopped by"]  # fmt: skip
    return spec.make_table(id_, title, heads, rows, ("rule", "reached", "stopped by"), CAPTION)


def _make_figure_cell(figure: Figure, show: Callable[..., str]) -> doc.Cell:
    """Make a cell of a value with its limits, empty if there is none."""
    return doc.Cell("") if figure is None else doc.Cell(show(figure.value, *figure.limits), figure.value)


def _format_epochs(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3g}"


def _format_level(value: float, low: float | None, high: float | None) -> str:
    """Return `0.00048 [0.00041, 0.00055]`."""
    return f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.3g}, {high:.3g}]"


def list_terminal_sentences(frame: pd.DataFrame) -> list[str]:
    """Say when trainings of several seeds reached their target, the soonest first, those that never did last.

    For the terminal, whose table has a row for each seed.
    """
    trainings = [each for each in summarize_trainings(frame) if each.target is not None and each.seeds > 1]
    names = name_trainings(trainings)
    texts = [
        describe_training(training, names[training.first_run["training_id"]])
        for training in sorted(trainings, key=_time_to_target_key)
    ]
    more = len(texts) - MAX_TERMINAL_SENTENCES
    return texts[:MAX_TERMINAL_SENTENCES] + ([f"{more} more trainings: see the report"] if more > 0 else [])


def describe_training(training: TrainingOutcome, name: str) -> str:
    """Return `ddp_gloo on 2 devices: mse 0.0005 after 12.3 s of training [11.9, 12.7], 4.2 epochs; 3 of 5 seeds reached
    it`."""
    metric = f"{to_text(training.first_run['metric_name']) or 'metric'} {training.target:g}"
    failed = f", {training.failed} failed" if training.failed else ""
    several = training.seeds > 1
    if not training.reached:
        seeds = f" with any of {training.seeds} seeds" if several else ""
        return f"{name}: {metric} was not reached{seeds}{failed}"
    time = _make_figure_cell(training.figures["time_to_target_s"], doc.format_duration).text
    text = f"{name}: {metric} after {time} of training"
    epochs = training.figures["epochs_to_target"]
    text += "" if epochs is None else f", {epochs.value:.3g} epochs"
    return f"{text}; {training.reached} of {training.seeds} seeds reached it{failed}" if several else text


def sort_by_time_to_target(trainings: Iterable[TrainingOutcome]) -> list[TrainingOutcome]:
    """Return the trainings of which every seed reached the target, the soonest first."""
    return sorted((training for training in trainings if training.reached == training.seeds), key=_time_to_target_key)


def _time_to_target_key(training: TrainingOutcome) -> tuple[bool, float]:
    time_s = training.figures["time_to_target_s"]
    return time_s is None, 0.0 if time_s is None else time_s.value


def select_figure_columns(frame: pd.DataFrame) -> dict[str, Callable[[dict[str, Any]], str]]:
    """Return the columns of the terminal's table that any row has a figure for, by their heads."""

    def show(name: str, write: Callable[[float], str] = "{:.3g}".format) -> Callable[[dict[str, Any]], str]:
        return lambda row: "" if (value := to_number(row[name])) is None else write(value)

    def show_time_to_target(row: dict[str, Any]) -> str:
        """Return the time, or that the target was not reached, which is no failure of the run."""
        missed = row["status"] == "ok" and to_number(row["target"]) is not None
        return show("time_to_target_s", units.format_seconds)(row) or ("not reached" if missed else "")

    columns = {"epochs": show("trained_epochs"), "training": show("trained_s", units.format_seconds)}
    metrics = frame.loc[frame["metric"].notna(), "metric_name"].dropna().unique()
    if len(metrics) == 1:
        columns[to_text(metrics[0])] = show("metric")
    elif len(metrics):
        columns["metric"] = lambda row: f"{to_text(row['metric_name'])} {text}" if (text := show("metric")(row)) else ""
    if frame["generalisation_gap"].notna().any():
        columns["gap"] = show("generalisation_gap")
    if frame["target"].notna().any():
        columns["time to target"] = show_time_to_target
    over_bare = frame["speedup_target_bare"]
    for kind in BASELINES:
        speedups = frame[f"speedup_target_{kind}"]
        # Speedups over self are listed only where some row has another speedup over bare.
        is_new = speedups.notna() & (over_bare.isna() | (over_bare != speedups).fillna(True) | (kind == "bare"))
        if is_new.any():
            columns[f"to target over {kind}"] = show(f"speedup_target_{kind}", format_ratio)
            columns[f"samples/s over {kind}"] = show(f"speedup_{kind}", format_ratio)
    return columns


@dataclass
class LossSeries:
    """The losses of a run, one entry for each block of steps: the totals at its end, and the mean loss over it."""

    steps: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of blocks: what lies between them is no training
    losses: list[float | None] = field(default_factory=list)  # None: unknown
    measured: list[int] = field(default_factory=list)  # places of the blocks after warm-up
    curve: list[CurvePoint] = field(default_factory=list)  # of a training that goes to a stop
    _passed: int = 0  # points of the curve before the next block

    def make_points(self, x: Sequence[float]) -> list[tuple[float, float]]:
        """Return (x, loss) for all blocks with a loss."""
        return [(place, loss) for place, loss in zip(x, self.losses, strict=True) if loss is not None]

    def add_block(self, steps: int, samples: int, seconds: float, loss: float | None) -> None:
        self.pass_points(steps)
        self.steps.append(steps + (self.steps[-1] if self.steps else 0))
        self.samples.append(samples + (self.samples[-1] if self.samples else 0))
        self.seconds.append(seconds + (self.seconds[-1] if self.seconds else 0.0))
        self.losses.append(loss)

    def pass_points(self, steps: float) -> None:
        """Advance to the point of the curve after which a block of `steps` fits before the next one.

        Evaluation cuts blocks short. Such blocks are in no series, and the next block begins at the point.
        """
        while self._passed < len(self.curve):
            point, done = self.curve[self._passed], self.steps[-1] if self.steps else 0
            if point.step >= done + steps:
                return
            self._passed += 1
            if point.step == done:
                self.samples[-1] = point.samples  # the last batch of an epoch may be smaller
                continue
            self.steps.append(point.step)
            self.samples.append(point.samples)
            self.seconds.append(max([point.train_s, *self.seconds[-1:]]))
            self.losses.append(None)


def compute_losses(result: Result) -> LossSeries:
    """Combine the losses of all ranks, warm-up included.

    A block takes as long as on the slowest rank, and its loss is the mean weighted by samples. Blocks that not every
    rank finished are left out. The seconds of a training to a stop exclude its first step, which compiles, like those
    of its curve.
    """
    series, ranks = LossSeries(curve=result.quality.curve), result.ranks
    if not ranks:
        return series
    # The record has no sample counts of warm-up blocks: every rank had its share of the batch, as later on.
    shares = [rank.block_samples[0] if rank.block_samples else 1 for rank in ranks]
    steps = ranks[0].warmup_block_steps or 0
    warmup = _iterate_blocks(ranks, "warmup_block_s", "warmup_losses") if steps else iter(())
    for seconds, losses in warmup:
        compiles = bool(series.curve) and not series.steps
        loss = _compute_mean(losses, shares)
        series.add_block(steps, steps * result.scale.samples_per_step, 0.0 if compiles else seconds, loss)
    steps = ranks[0].block_steps or 0
    measured = _iterate_blocks(ranks, "block_s", "block_losses")
    samples_of = zip(*(rank.block_samples for rank in ranks), strict=False)
    for (seconds, losses), samples in zip(measured, samples_of, strict=False):
        series.add_block(steps, sum(samples), seconds, _compute_mean(losses, samples))
        series.measured.append(len(series.steps) - 1)
    series.pass_points(math.inf)
    return series


def _iterate_blocks(ranks: list[RankRecord], times: str, losses: str) -> Iterator[tuple[float, list[float | None]]]:
    """Yield the seconds of the slowest rank, and the losses of all ranks, block by block."""
    series = [getattr(rank, losses) for rank in ranks]
    for number, seconds in enumerate(zip(*(getattr(rank, times) for rank in ranks), strict=False)):
        yield max(seconds), [of_rank[number] if number < len(of_rank) else None for of_rank in series]


def _compute_mean(losses: Sequence[float | None], weights: Sequence[int]) -> float | None:
    weighted = [(loss, weight) for loss, weight in zip(losses, weights, strict=True) if loss is not None and weight]
    return sum(loss * weight for loss, weight in weighted) / sum(weight for _, weight in weighted) if weighted else None
