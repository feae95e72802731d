"""Estimate how long runs will take: from their settings before any has run, then from how long similar runs took."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from scalebench.analysis.identity import duration_key
from scalebench.core.spec import RunSpec, has_stop
from scalebench.runner.max_batch import estimate_try_counts
from scalebench.workloads import datasets

SETUP_S = {"none": 0.3, "torch": 4.0, "tensorflow": 8.0}  # rough start-up of one worker, for estimates only
PROBE_PHASES = 3.5  # all probes take so many times measure.probe_s


def estimate_s(spec: RunSpec) -> tuple[float, float]:
    """Return the (least, most) seconds of a run: start-up of the framework, measuring and probes as set; at most also
    all of the time that warm-up has. Slow steps, evaluation and compilation come on top. A search for the largest batch
    is several starts.

    A training to a stop takes as long as the stop says in seconds. Without seconds, most is infinite: the duration is
    unknown before a similar training has ended."""
    settings, stop, overhead_s = spec.repeat_settings, spec.config.train.stop, _overhead_s(spec)
    if has_stop(stop) and settings.search == "none":
        ends_by_time_only = (stop.epochs, stop.steps, stop.target) == (None, None, None)
        most_s = overhead_s + (math.inf if stop.seconds is None else stop.seconds)
        return most_s if ends_by_time_only else overhead_s, most_s
    fewest, most = estimate_try_counts(spec.config, spec.gpus) if settings.search == "max_batch" else (1, 1)
    least_s = fewest * (overhead_s + settings.min_s)
    return least_s, most * (overhead_s + settings.warmup_max_s + settings.max_s)


def _overhead_s(spec: RunSpec) -> float:
    """Return the seconds of a run that are not spent in its steps."""
    settings = spec.repeat_settings
    probes_s = PROBE_PHASES * settings.probe_s if settings.probes else 0.0
    return SETUP_S.get(spec.config.strategy.framework, 4.0) + probes_s


class TimeEstimate:
    """Estimates the seconds that runs of a sweep will take, from those that have ended."""

    def __init__(self) -> None:
        self._durations_s: list[tuple[RunSpec, float]] = []

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
        ended = [(_midpoint_s(other), duration_s) for other, duration_s in self._durations_s if _is_bounded(other)]
        factor = sum(took_s for _, took_s in ended) / sum(estimated_s for estimated_s, _ in ended) if ended else 1.0
        return factor * _midpoint_s(spec)

    def has_basis(self, spec: RunSpec) -> bool:
        """Return whether expected_s is more than a guess, as it is for a training by epochs before a similar one has
        ended."""
        similar = (_duration_key(other) == _duration_key(spec) for other, _ in self._durations_s)
        return not spec.can_start or _is_bounded(spec) or any(similar)

    def total_s(self, specs: Iterable[RunSpec]) -> float:
        """Return the expected seconds of all these runs and of the pauses before them."""
        return sum(self.expected_s(spec) + spec.config.measure.cool_down_s * spec.can_start for spec in specs)


def format_about(seconds: float) -> str:
    """Format an estimate as `about 3 min`."""
    if seconds < 90:
        return f"about {max(1, round(seconds)):d} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def format_range(least_s: float, most_s: float) -> str:
    """Format an estimate as `4 to 30 s`; where there is no upper limit, say so."""
    if math.isinf(most_s):
        return f"{least_s:.0f} s and a training of unknown length"
    return f"{least_s:.0f} to {most_s:.0f} s"


def _duration_key(spec: RunSpec) -> tuple[str, str, str, bool]:
    return *duration_key(spec.config, _training_length(spec)[0]), spec.repeat_settings.probes


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
    overhead_s = min(_overhead_s(other), duration_s)
    return overhead_s + (duration_s - overhead_s) * _training_length(spec)[1] / _training_length(other)[1]


def _is_bounded(spec: RunSpec) -> bool:
    return math.isfinite(estimate_s(spec)[1])


def _midpoint_s(spec: RunSpec) -> float:
    """Return the middle of the estimate; without an upper limit, the most that a throughput measurement takes."""
    settings, (least_s, most_s) = spec.repeat_settings, estimate_s(spec)
    return (least_s + most_s) / 2 if math.isfinite(most_s) else least_s + settings.warmup_max_s + settings.max_s
