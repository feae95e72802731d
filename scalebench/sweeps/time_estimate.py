"""How long runs will take: by their settings before any has run, then by how long others like them took. Layer 1."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from scalebench.core.spec import RunSpec, goes_to_stop
from scalebench.runner.max_batch import try_counts
from scalebench.workloads import datasets

SETUP_S = {"none": 0.3, "torch": 4.0, "tensorflow": 8.0}  # rough start-up of one worker, for estimates only
PROBES = 3.5  # times measure.probe_s


def estimate_s(spec: RunSpec) -> tuple[float, float]:
    """(least, most) seconds of a run: start-up by framework, measuring and probes as set, and at the most all of the
    time that warm-up has. Updates that are slow, evaluation, and what is compiled on the way come on top. A search for
    the largest batch is so many launches.

    A training that goes to a stop lasts as long as that says in seconds; without, most is infinite: nobody knows before
    one like it has ended."""
    settings, stop, other_s = spec.config.measure, spec.config.train.stop, _other_s(spec)
    if goes_to_stop(stop) and settings.search == "none":
        surely = (stop.epochs, stop.steps, stop.target) == (None, None, None)
        most_s = other_s + (math.inf if stop.seconds is None else stop.seconds)
        return most_s if surely else other_s, most_s
    fewest, most = try_counts(spec.config, spec.gpus) if settings.search == "max_batch" else (1, 1)
    return fewest * (other_s + settings.min_s), most * (other_s + settings.warmup_max_s + settings.max_s)


def _other_s(spec: RunSpec) -> float:
    """What there is beside the updates of the training."""
    settings = spec.config.measure
    probes_s = PROBES * settings.probe_s if settings.probes else 0.0
    return SETUP_S.get(spec.config.strategy.framework, 4.0) + probes_s


class Outlook:
    """What is still to come of a sweep, in seconds."""

    def __init__(self) -> None:
        self._took: list[tuple[RunSpec, float]] = []

    def took(self, spec: RunSpec, seconds: float) -> None:
        """A run has ended after so long."""
        self._took.append((spec, seconds))

    def expected_s(self, spec: RunSpec) -> float:
        """Of one run: the mean of those of the same strategy and model that have ended, of as many devices if there
        are such; else the middle of its estimate, times what the others took over the middle of theirs. 0 for one that
        cannot run here. Trainings to a stop count by how long they are to be."""
        if not spec.starts:
            return 0.0
        alike = [(other, _like(spec, other, took_s)) for other, took_s in self._took if _kind(other) == _kind(spec)]
        same = [took_s for other, took_s in alike if other.gpus == spec.gpus]
        if alike:
            return statistics.fmean(same or [took_s for _, took_s in alike])
        ended = [(_middle(other), took_s) for other, took_s in self._took if _bounded(other)]
        factor = sum(took_s for _, took_s in ended) / sum(middle for middle, _ in ended) if ended else 1.0
        return factor * _middle(spec)

    def knows(self, spec: RunSpec) -> bool:
        """Whether expected_s is more than a guess: not so of a training by epochs before one like it has ended."""
        return not spec.starts or _bounded(spec) or any(_kind(o) == _kind(spec) for o, _ in self._took)

    def rest_s(self, rest: Iterable[RunSpec]) -> float:
        """Of all of them, and of the pauses before them."""
        return sum(self.expected_s(s) + s.config.measure.cool_down_s * s.starts for s in rest)


def in_words(seconds: float) -> str:
    """`about 3 min`; rough, as every outlook is."""
    if seconds < 90:
        return f"about {max(1, round(seconds)):d} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def between(least_s: float, most_s: float) -> str:
    """`4 to 30 s`, or what is known of it."""
    if math.isinf(most_s):
        return f"{least_s:.0f} s and a training of unknown length"
    return f"{least_s:.0f} to {most_s:.0f} s"


def _kind(spec: RunSpec) -> tuple[str, str, str]:
    return spec.config.strategy.name, spec.config.model.name, _work(spec)[0]


def _work(spec: RunSpec) -> tuple[str, float]:
    """What a training goes by, and how much of it at the most; a target alone may come at any time."""
    stop, dataset = spec.config.train.stop, spec.config.dataset
    if not goes_to_stop(stop):
        return "throughput", 1.0
    counts = [] if stop.steps is None else [float(stop.steps * spec.global_batch)]
    if stop.epochs is not None:
        counts.append(stop.epochs * datasets.count_train_samples(dataset))
    return ("samples", min(counts)) if counts else ("seconds", stop.seconds or 1.0)


def _like(spec: RunSpec, other: RunSpec, took_s: float) -> float:
    """What `other` took, for as much work as `spec` has."""
    if _work(spec)[1] == _work(other)[1]:
        return took_s
    other_s = min(_other_s(other), took_s)
    return other_s + (took_s - other_s) * _work(spec)[1] / _work(other)[1]


def _bounded(spec: RunSpec) -> bool:
    return math.isfinite(estimate_s(spec)[1])


def _middle(spec: RunSpec) -> float:
    """Where nothing bounds it: as long as one that measures its throughput, at the most."""
    settings, (least_s, most_s) = spec.config.measure, estimate_s(spec)
    return (least_s + most_s) / 2 if math.isfinite(most_s) else least_s + settings.warmup_max_s + settings.max_s
