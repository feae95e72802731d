"""Estimate how long runs will take: from their settings and step times, then from how long similar runs took."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

from scalebench.core.spec import MeasureSpec, RunSpec, has_stop
from scalebench.core.stats.steady_state import MIN_BLOCKS
from scalebench.measure.progress import RankProgress
from scalebench.measure.stopping_rule import MIN_REPEAT_BLOCKS, MIN_WARMUP_STEPS
from scalebench.measure.timing import choose_block_s
from scalebench.runner.max_batch import estimate_try_counts
from scalebench.sweeps.pace import PaceEntry, StepEstimate, estimate_step
from scalebench.workloads import datasets

Range = tuple[float, float]  # the least and the most seconds
SETUP_S = {"none": 0.3, "torch": 4.0, "tensorflow": 8.0}  # rough start-up of one worker, for estimates only
PROBE_PHASES = 3.5  # all probes take so many times measure.probe_s
FIRST_LOOK_BLOCKS = 64  # measured blocks before the first look at whether they are enough
# Where steps are slow their number decides how long the probes take: on one device and on several; the fewest and the
# most where a step is longer than measure.probe_s; and those for the facts that each run records of its training.
PROBE_STEPS, PROBE_STEPS_WITH_SYNC, SLOW_PROBE_STEPS, FACT_STEPS = 55, 65, (6, 12), 4
MINUTES_FROM_S, HOURS_FROM_S = 90.0, 5400.0  # in which units durations are written
RANGE_MINUTES_FROM_S = 600.0  # `111 to 132 s`
EVALUATE_SHARE = 1 / 3  # of a training step, as the forward pass has a third of its FLOPs


def estimate_s(spec: RunSpec, step: StepEstimate | None = None) -> Range:
    """Return the (least, most) seconds of a run: start-up of the framework, and its phases with steps of that length.
    Without a `step` the phases last as long as they are set to; slow steps and evaluation come on top. A search for the
    largest batch is several starts.

    A training to a stop takes as long as the stop says. Most is infinite where its duration is unknown: without seconds
    and without the length of a step."""
    stop, start_s = spec.config.train.stop, _start_s(spec, step)
    low_s, high_s = (0.0, 0.0) if step is None else (step.low_s, step.high_s)
    if has_stop(stop) and spec.repeat_settings.search == "none":
        least_s, most_s = _training_s(spec, low_s), _training_s(spec, high_s)
        is_certain = stop.target is None and (low_s > 0 or (stop.epochs, stop.steps) == (None, None))
        start_s += _probes_range_s(spec, high_s)[1]
        return start_s + (least_s if is_certain else 0.0), start_s + most_s
    steps_s = [low_s, high_s]
    if low_s < spec.repeat_settings.probe_s < high_s:  # the probes of slower steps are fewer, and take less time
        steps_s += [spec.repeat_settings.probe_s, 1.001 * spec.repeat_settings.probe_s]
    totals = [_sum_ranges(estimate_phases(spec, step_s).values()) for step_s in steps_s]
    least_s, most_s = start_s + min(least for least, _ in totals), start_s + max(most for _, most in totals)
    if spec.repeat_settings.search == "none":
        return least_s, most_s
    fewest, most = estimate_try_counts(spec.config, spec.gpus)
    return fewest * least_s, most * most_s


def estimate_phases(spec: RunSpec, step_s: float) -> dict[str, Range]:
    """Return the range of seconds of each phase of a measured run, in order, with steps of that length; 0: unknown."""
    return {
        "warmup": _warmup_range_s(spec.config.measure, step_s),
        "measure": _measure_range_s(spec, step_s),
        "evaluate": _evaluate_range_s(spec, step_s),
        "probes": _probes_range_s(spec, step_s),
    }


def estimate_left_s(spec: RunSpec, ranks: Sequence[RankProgress], now_s: float) -> float | None:
    """Return the seconds that a run will still take, by the steps of rank 0 so far; None where they do not tell it: in
    other phases, in a search and in a training to a target. `now_s` is in seconds since the epoch, as are its reports.
    """
    first, stop = min(ranks, key=lambda progress: progress.rank, default=None), spec.config.train.stop
    if first is None or not first.step_s or spec.repeat_settings.search != "none" or stop.target is not None:
        return None
    phases = {name: statistics.fmean(times) for name, times in estimate_phases(spec, first.step_s).items()}
    if has_stop(stop):
        phases = {first.phase: _training_s(spec, first.step_s), "probes": phases["probes"]}
    if first.phase not in phases or math.isinf(phases[first.phase]):
        return None
    later = list(phases)[list(phases).index(first.phase) + 1 :]
    left_s = max(first.step_s, phases[first.phase] - first.elapsed_s)
    return max(0.0, left_s - max(0.0, now_s - first.at_s)) + sum(phases[name] for name in later)


def _sum_ranges(ranges: Iterable[Range]) -> Range:
    least_s, most_s = zip(*ranges, strict=True)
    return sum(least_s), sum(most_s)


def _start_s(spec: RunSpec, step: StepEstimate | None) -> float:
    """Return the seconds of starting, and of compiling in the first step."""
    known_s = None if step is None else step.start_s
    start_s = SETUP_S.get(spec.config.strategy.framework, 4.0) if known_s is None else known_s
    return start_s + (0.0 if step is None else step.first_step_s)


def _warmup_range_s(settings: MeasureSpec, step_s: float) -> Range:
    if step_s <= 0:
        return 0.0, settings.warmup_max_s
    max_steps = max(settings.warmup_steps, settings.warmup_max_steps, 1)
    in_time = max(MIN_WARMUP_STEPS, math.ceil(settings.warmup_max_s / step_s))
    least_s = min(max(settings.warmup_steps, MIN_BLOCKS), in_time, max_steps) * step_s
    return least_s, max(least_s, min(settings.warmup_max_s, max_steps * step_s))


def _measure_range_s(spec: RunSpec, step_s: float) -> Range:
    settings = spec.repeat_settings
    if step_s <= 0:
        return settings.min_s, settings.max_s
    block_s = max(choose_block_s(spec.device, step_s, settings.block_s), step_s)
    most_s = max(settings.max_s, min(MIN_REPEAT_BLOCKS * block_s, settings.max_s * spec.repeats))
    most_s = max(most_s, math.ceil(most_s / block_s) * block_s)
    return min(max(settings.min_s, FIRST_LOOK_BLOCKS * block_s), most_s), most_s


def _evaluate_range_s(spec: RunSpec, step_s: float) -> Range:
    dataset = spec.config.dataset
    if not spec.repeat_settings.evaluate or spec.config.script.path is not None:
        return 0.0, 0.0
    samples = dataset.size - datasets.count_train_samples(dataset)
    seconds = samples / spec.global_batch * step_s * EVALUATE_SHARE
    return seconds, seconds


def _probes_range_s(spec: RunSpec, step_s: float) -> Range:
    settings, facts_s = spec.repeat_settings, FACT_STEPS * step_s
    if not settings.probes:
        return facts_s, facts_s
    if step_s > settings.probe_s:
        return SLOW_PROBE_STEPS[0] * step_s, SLOW_PROBE_STEPS[1] * step_s
    steps = PROBE_STEPS if spec.gpus == 1 else PROBE_STEPS_WITH_SYNC
    seconds = facts_s + max(PROBE_PHASES * settings.probe_s, steps * step_s)
    return seconds, seconds


def _training_s(spec: RunSpec, step_s: float) -> float:
    """Return the seconds of a training to its stop, with evaluations; infinite where they are unknown."""
    stop, unit_length = spec.config.train.stop, _training_length(spec)
    seconds = math.inf if stop.seconds is None else stop.seconds
    if unit_length[0] != "samples" or step_s <= 0:
        return seconds
    return min(seconds, unit_length[1] / spec.global_batch * step_s)


class TimeEstimate:
    """Estimates the seconds that runs will take: from those of the sweep that have ended, else from step times here."""

    def __init__(self, pace: Sequence[PaceEntry] = ()) -> None:
        """`pace` holds the step times of earlier runs on this machine."""
        self._pace = pace
        self._steps: dict[str, StepEstimate | None] = {}  # by fingerprint, since a network takes time to be sized
        self._durations_s: list[tuple[RunSpec, float]] = []

    def step(self, spec: RunSpec) -> StepEstimate | None:
        """Return the estimated step time of a run; None where nothing is known of it."""
        if spec.fingerprint not in self._steps:
            self._steps[spec.fingerprint] = estimate_step(spec, self._pace)
        return self._steps[spec.fingerprint]

    def range_s(self, spec: RunSpec) -> Range:
        """Return the (least, most) seconds of a run, before any run of the sweep has ended."""
        return estimate_s(spec, self.step(spec))

    def record_duration(self, spec: RunSpec, duration_s: float) -> None:
        """Record how long a run took."""
        self._durations_s.append((spec, duration_s))

    def expected_s(self, spec: RunSpec) -> float:
        """Return the expected seconds of a run; 0 for one that cannot happen here.

        This is the mean over finished runs with the same strategy and model (with the same device count if there are
        any), trainings to a stop in proportion to their length; else the a-priori estimate, scaled by how far earlier
        estimates were off.
        """
        if not spec.can_start:
            return 0.0
        similar = [
            (other, _scale_to_length(spec, other, duration_s))
            for other, duration_s in self._durations_s
            if _duration_key(other) == _duration_key(spec)
        ]
        same_gpus = [duration_s for other, duration_s in similar if other.gpus == spec.gpus]
        if similar:
            return statistics.fmean(same_gpus or [duration_s for _, duration_s in similar])
        ended = [(self._midpoint_s(other), took_s) for other, took_s in self._durations_s if self._is_bounded(other)]
        factor = sum(took_s for _, took_s in ended) / sum(estimated_s for estimated_s, _ in ended) if ended else 1.0
        return factor * self._midpoint_s(spec)

    def has_basis(self, spec: RunSpec) -> bool:
        """Return whether expected_s is more than a guess, as it is for a training by epochs before a similar one has
        ended."""
        similar = (_duration_key(other) == _duration_key(spec) for other, _ in self._durations_s)
        return not spec.can_start or self._is_bounded(spec) or any(similar)

    def total_s(self, specs: Iterable[RunSpec]) -> float:
        """Return the expected seconds of all these runs and of the pauses before them."""
        return sum(self.expected_s(spec) + spec.config.measure.cool_down_s * spec.can_start for spec in specs)

    def _is_bounded(self, spec: RunSpec) -> bool:
        return math.isfinite(self.range_s(spec)[1])

    def _midpoint_s(self, spec: RunSpec) -> float:
        """Return the middle of the estimate at the likely length of a step; without an upper limit, the most that a
        throughput measurement takes."""
        step = self.step(spec)
        likely = None if step is None else dataclasses.replace(step, low_s=step.likely_s, high_s=step.likely_s)
        settings, (least_s, most_s) = spec.repeat_settings, estimate_s(spec, likely)
        return (least_s + most_s) / 2 if math.isfinite(most_s) else least_s + settings.warmup_max_s + settings.max_s


def format_about(seconds: float) -> str:
    """Format an estimate as `about 3 min`."""
    return f"about {_format_number(max(1.0, seconds), *_choose_unit(seconds, MINUTES_FROM_S))}"


def format_range(least_s: float, most_s: float) -> str:
    """Format an estimate as `4 to 30 s`, or `50 s to 4 min`; where there is no upper limit, say so."""
    least, most = (_choose_unit(limit_s, RANGE_MINUTES_FROM_S) for limit_s in (least_s, most_s))
    if math.isinf(most_s):
        return f"{_format_number(least_s, *least)} and a training of unknown length"
    first = _format_number(least_s, *least)
    return f"{first.removesuffix(f' {most[1]}')} to {_format_number(most_s, *most)}"


def _choose_unit(seconds: float, minutes_from_s: float) -> tuple[float, str]:
    return (1.0, "s") if seconds < minutes_from_s else (60.0, "min") if seconds < HOURS_FROM_S else (3600.0, "h")


def _format_number(seconds: float, size: float, unit: str) -> str:
    return f"{seconds / size:.{1 if unit == 'h' else 0}f} {unit}"


def _duration_key(spec: RunSpec) -> tuple[str, str, str, bool]:
    config = spec.config
    return config.strategy.name, config.model.name, _training_length(spec)[0], spec.repeat_settings.probes


def _training_length(spec: RunSpec) -> tuple[str, float]:
    """Return the unit by which the training is limited, and its limit in that unit; a target may be met any time."""
    stop, dataset = spec.config.train.stop, spec.config.dataset
    if not has_stop(stop):
        return "throughput", 1.0
    counts = [] if stop.steps is None else [float(stop.steps * spec.global_batch)]
    if stop.epochs is not None:
        counts.append(stop.epochs * datasets.count_train_samples(dataset))
    return ("samples", min(counts)) if counts else ("seconds", stop.seconds or 1.0)


def _scale_to_length(spec: RunSpec, other: RunSpec, duration_s: float) -> float:
    """Return the duration of `other`, scaled to the length of the training of `spec`."""
    if _training_length(spec)[1] == _training_length(other)[1]:
        return duration_s
    overhead_s = min(_start_s(other, None) + _probes_range_s(other, 0.0)[1], duration_s)
    return overhead_s + (duration_s - overhead_s) * _training_length(spec)[1] / _training_length(other)[1]
