"""Estimate how long runs take: as long as similar runs of the sweep took, else as their settings say, which holds where
a step takes less than about a second. The plan, the time left, `sweep.max_minutes` and limits of jobs rest on it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from scalebench.analysis.identity import planned_curve_key
from scalebench.core.spec import SWEEP_REPEATS, RunSpec, has_stop
from scalebench.runner.max_batch import estimate_launches
from scalebench.sweeps.plan import SweepRun

Range = tuple[float, float]  # the least and the most seconds
SETUP_S = {"none": 0.3, "torch": 4.0, "tensorflow": 8.0}  # rough start-up of one worker, for estimates only
PROBE_PHASES = 3.5  # all probes take so many times measure.probe_s
UNITS = ((5400.0, 3600.0, "h"), (90.0, 60.0, "min"), (0.0, 1.0, "s"))  # from so many seconds on, size, name


def estimate_s(spec: RunSpec) -> Range:
    """Return the (least, most) seconds of a run, as long as its settings say. A search for the largest batch is several
    starts. Most is infinite for a training to a stop without seconds."""
    stop, settings = spec.config.train.stop, spec.repeat_settings
    fixed_s = SETUP_S.get(spec.config.strategy.framework, 4.0) + PROBE_PHASES * settings.probe_s * settings.probes
    if has_stop(stop) and settings.search == "none":
        most_s = fixed_s + (math.inf if stop.seconds is None else stop.seconds)
        is_certain = (stop.target, stop.epochs, stop.steps) == (None, None, None)
        return most_s if is_certain else fixed_s, most_s
    fewest, most = (1, 1) if settings.search == "none" else estimate_launches(spec)
    least_s = fixed_s + min(settings.min_s, settings.max_s)
    return fewest * least_s, most * (fixed_s + settings.warmup_max_s + settings.max_s)


class TimeEstimate:
    """Estimates the seconds that runs will take, from those of the sweep that have ended."""

    def __init__(self) -> None:
        self._took_s: list[tuple[RunSpec, float]] = []

    def record_duration(self, spec: RunSpec, duration_s: float) -> None:
        """Record how long a run took."""
        self._took_s.append((spec, duration_s))

    def expected_s(self, spec: RunSpec) -> float:
        """Return the expected seconds of a run; 0 for one that cannot happen here.

        This is the mean over finished runs with the same strategy, model and end of the training, with the same device
        count if there are any; else the middle of the range, and where that has no upper limit, the most that a
        measurement takes."""
        if not spec.can_start:
            return 0.0
        similar = self._find_similar(spec)
        similar = [other for other in similar if other[0].gpus == spec.gpus] or similar
        least_s, most_s = estimate_s(spec)
        if similar:
            expected_s = statistics.fmean(took_s for _, took_s in similar)
        elif math.isinf(most_s):
            expected_s = least_s + spec.repeat_settings.warmup_max_s + spec.repeat_settings.max_s
        else:
            expected_s = (least_s + most_s) / 2
        return expected_s

    def has_basis(self, spec: RunSpec) -> bool:
        """Return whether expected_s is more than a guess, as it is for a training by epochs before a similar one has
        ended."""
        return not spec.can_start or math.isfinite(estimate_s(spec)[1]) or bool(self._find_similar(spec))

    def _find_similar(self, spec: RunSpec) -> list[tuple[RunSpec, float]]:
        def key(each: RunSpec) -> tuple[object, ...]:
            config = each.config
            end = (config.train.stop, config.dataset.size) if has_stop(config.train.stop) else None
            return config.strategy.name, config.model.name, end, each.repeat_settings.probes

        return [other for other in self._took_s if key(other[0]) == key(spec)]


def format_about(seconds: float) -> str:
    """Format an estimate as `about 3 min`."""
    return f"about {_format(max(1.0, seconds), *_choose_unit(seconds))}"


def format_range(least_s: float, most_s: float) -> str:
    """Format an estimate as `4 to 30 s`, in the unit of the most."""
    if math.isinf(most_s):
        return f"{_format(least_s, *_choose_unit(least_s))} or more, unknown until a run has ended"
    size, unit = _choose_unit(most_s)
    least, most = _format(least_s, size, unit), _format(most_s, size, unit)
    return most if least == most else f"{least.removesuffix(f' {unit}')} to {most}"


def _choose_unit(seconds: float) -> tuple[float, str]:
    return next((size, name) for from_s, size, name in UNITS if seconds >= from_s)


def _format(seconds: float, size: float, unit: str) -> str:
    number = seconds / size
    return f"{number:.{1 if size > 1 and number < 10 else 0}f} {unit}"


def select_affordable(
    rest: Sequence[SweepRun], planned: Sequence[SweepRun], cost_s: Callable[[SweepRun], float], left_s: float
) -> list[SweepRun]:
    """Return the runs of `rest` that fit into `left_s` seconds, the most informative ones.

    Least informative are repeats beyond the third, then device counts between the ends of a curve, the last curves of
    the sweep, and several devices before one. `planned` are all runs of the sweep, which decide the ends of the curves.
    Runs without a cost always fit: those that cannot happen here, and those with an earlier result.
    """
    counts: dict[object, list[int]] = {}
    for run in planned:
        counts.setdefault(planned_curve_key(run.spec.config), []).extend([run.spec.gpus] * run.spec.can_start)
    curves, configurations = list(counts), list(dict.fromkeys(run.spec.fingerprint for run in planned))

    def place(run: SweepRun) -> tuple[int, ...]:
        """Return what sorts the most informative runs first."""
        gpus, repeat, curve = run.spec.gpus, run.spec.config.repeat, planned_curve_key(run.spec.config)
        is_between = gpus not in (min(counts[curve], default=0), max(counts[curve], default=0))
        further = repeat if repeat >= SWEEP_REPEATS else 0
        return further, is_between, curves.index(curve), gpus != 1, configurations.index(run.spec.fingerprint), repeat

    selected, left_s = set(), max(left_s, 0.0)
    for run in sorted(rest, key=place):
        if (needed_s := cost_s(run)) <= left_s:
            selected.add(run)
            left_s -= needed_s
    return [run for run in rest if run in selected]
