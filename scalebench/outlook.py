"""How long runs will take: by their settings before any has run, then by how long others like them took. Layer 1."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from scalebench.spec import RunSpec

SETUP_S = {"none": 0.3, "torch": 4.0, "tensorflow": 8.0}  # rough start-up of one worker, for estimates only
PROBES = 3.5  # times measure.probe_s


def estimate_s(spec: RunSpec) -> tuple[float, float]:
    """(least, most) seconds of a run: start-up by framework, measuring and probes as set, and at the most all of the
    time that warm-up has. Updates that are slow, evaluation, and what is compiled on the way come on top."""
    settings = spec.config.measure
    other_s = SETUP_S.get(spec.config.strategy.framework, 4.0) + (PROBES * settings.probe_s if settings.probes else 0.0)
    return other_s + settings.min_s, other_s + settings.warmup_max_s + settings.max_s


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
        cannot run here."""
        if spec.unsupported is not None:
            return 0.0
        alike = [(other, took_s) for other, took_s in self._took if _kind(other) == _kind(spec)]
        same = [took_s for other, took_s in alike if other.gpus == spec.gpus]
        if alike:
            return statistics.fmean(same or [took_s for _, took_s in alike])
        ended = [(_middle(other), took_s) for other, took_s in self._took]
        factor = sum(took_s for _, took_s in ended) / sum(middle for middle, _ in ended) if ended else 1.0
        return factor * _middle(spec)

    def rest_s(self, rest: Iterable[RunSpec]) -> float:
        """Of all of them, and of the pauses before them."""
        return sum(self.expected_s(s) + s.config.measure.cool_down_s * (s.unsupported is None) for s in rest)


def in_words(seconds: float) -> str:
    """`about 3 min`; rough, as every outlook is."""
    if seconds < 90:
        return f"about {max(1, round(seconds)):d} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _kind(spec: RunSpec) -> tuple[str, str]:
    return spec.config.strategy.name, spec.config.model.name


def _middle(spec: RunSpec) -> float:
    return sum(estimate_s(spec)) / 2
