"""Estimate how long runs take: from how long similar runs of the sweep took, else from their settings and step times.

The plan, the time left, `sweep.max_minutes`, and the time limits of jobs all rest on these estimates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from scalebench.analysis.identity import planned_curve_key
from scalebench.core.spec import SWEEP_REPEATS, RunSpec, has_stop
from scalebench.core.stats.steady_state import MIN_BLOCKS
from scalebench.measure.progress import RankProgress
from scalebench.measure.stopping_rule import MIN_REPEAT_BLOCKS, MIN_WARMUP_STEPS
from scalebench.measure.timing import choose_block_s
from scalebench.runner.max_batch import estimate_launches
from scalebench.sweeps.pace import Pace, PaceEntry, find_pace
from scalebench.sweeps.plan import SweepRun
from scalebench.workloads import datasets

Range = tuple[float, float]  # the least and the most seconds
SETUP_S = {"none": 0.3, "torch": 4.0, "tensorflow": 8.0}  # rough start-up of one worker, for estimates only
PROBE_PHASES = 3.5  # all probes take so many times measure.probe_s
FIRST_LOOK_BLOCKS = 64  # measured blocks before the first look at whether they are enough
# Where steps are slow their number decides how long the probes take: on one device and on several; the fewest and the
# most where a step is longer than measure.probe_s; and those for the facts that each run records of its training.
PROBE_STEPS, PROBE_STEPS_WITH_SYNC, SLOW_PROBE_STEPS, FACT_STEPS = 55, 65, (6, 12), 4
EVALUATE_SHARE = 1 / 3  # of a training step, as the forward pass has a third of its FLOPs
UNITS = ((5400.0, 3600.0, "h"), (90.0, 60.0, "min"), (0.0, 1.0, "s"))  # from so many seconds on, size, name
UNKNOWN = "unknown until a run shows the pace"


def estimate_s(spec: RunSpec, pace: Pace | None = None) -> Range:
    """Return the (least, most) seconds of a run: its start, and its phases with steps of that pace, else as long as
    they are set to. A search for the largest batch is several starts.

    A training to a stop takes as long as the stop says. Most is infinite where its duration is unknown: without seconds
    and without the length of a step."""
    stop, search = spec.config.train.stop, spec.repeat_settings.search
    step_s, start_s = 0.0, SETUP_S.get(spec.config.strategy.framework, 4.0)
    if pace is not None:
        step_s, start_s = pace.step_s, pace.start_s
    phases = estimate_phases(spec, step_s)
    if has_stop(stop) and search == "none":
        training_s, probes_s = _training_s(spec, step_s), phases["probes"][1]
        is_certain = stop.target is None and (step_s > 0 or (stop.epochs, stop.steps) == (None, None))
        return start_s + probes_s + (training_s if is_certain else 0.0), start_s + probes_s + training_s
    least_s, most_s = (start_s + sum(limits) for limits in zip(*phases.values(), strict=True))
    fewest, most = (1, 1) if search == "none" else estimate_launches(spec)
    return fewest * least_s, most * most_s


def estimate_phases(spec: RunSpec, step_s: float) -> dict[str, Range]:
    """Return the range of seconds of each phase of a measured run, in order, with steps of that length; 0: unknown."""
    settings, dataset = spec.repeat_settings, spec.config.dataset
    block_s = max(choose_block_s(spec.device, step_s, settings.block_s), step_s) if step_s > 0 else settings.block_s
    # Of slow steps at least five warm up, and few are measured; as many of all repeats together as fit.
    max_steps = max(settings.warmup_steps, settings.warmup_max_steps, 1)
    in_time = max(MIN_WARMUP_STEPS, math.ceil(settings.warmup_max_s / step_s)) if step_s > 0 else 0
    least_warmup_s = min(max(settings.warmup_steps, MIN_BLOCKS), in_time, max_steps) * step_s
    warmup_s = min(settings.warmup_max_s, max_steps * step_s) if step_s > 0 else settings.warmup_max_s
    most_s = settings.max_s
    if step_s > 0:
        most_s = max(most_s, min(MIN_REPEAT_BLOCKS * block_s, settings.max_s * spec.repeats))
        most_s = max(most_s, math.ceil(most_s / block_s) * block_s)
    first_look_s = FIRST_LOOK_BLOCKS * block_s if step_s > 0 else 0.0
    evaluate_s = probes_s = 0.0
    if settings.evaluate and spec.config.script.path is None:
        samples = dataset.size - datasets.count_train_samples(dataset)
        evaluate_s = samples / spec.global_batch * step_s * EVALUATE_SHARE
    least_probes_s = most_probes_s = FACT_STEPS * step_s
    if settings.probes and step_s > settings.probe_s:
        least_probes_s, most_probes_s = (steps * step_s for steps in SLOW_PROBE_STEPS)
    elif settings.probes:
        steps = PROBE_STEPS if spec.gpus == 1 else PROBE_STEPS_WITH_SYNC
        probes_s = max(PROBE_PHASES * settings.probe_s, steps * step_s)
    return {
        "warmup": (least_warmup_s, max(least_warmup_s, warmup_s)),
        "measure": (min(max(settings.min_s, first_look_s), most_s), most_s),
        "evaluate": (evaluate_s, evaluate_s),
        "probes": (least_probes_s + probes_s, most_probes_s + probes_s),
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


def _training_s(spec: RunSpec, step_s: float) -> float:
    """Return the seconds of a training to its stop, with evaluations; infinite where they are unknown. A target may be
    met at any time before."""
    stop, batch = spec.config.train.stop, spec.global_batch
    steps = [] if stop.steps is None else [float(stop.steps)]
    if stop.epochs is not None:
        steps.append(stop.epochs * datasets.count_train_samples(spec.config.dataset) / batch)
    seconds = math.inf if stop.seconds is None else stop.seconds
    return min(seconds, *(count * step_s for count in steps)) if step_s > 0 and steps else seconds


class TimeEstimate:
    """Estimates the seconds that runs will take: from those of the sweep that have ended, else from step times here."""

    def __init__(self, entries: Sequence[PaceEntry] = ()) -> None:
        """`entries` hold the step times of earlier runs on this machine."""
        self._entries = entries
        self._paces: dict[str, Pace | None] = {}  # by fingerprint, since a network takes time to be sized
        self._took_s: list[tuple[RunSpec, float]] = []

    def pace(self, spec: RunSpec) -> Pace | None:
        """Return the pace of a run; None where nothing is known of it."""
        if spec.fingerprint not in self._paces:
            self._paces[spec.fingerprint] = find_pace(spec, self._entries)
        return self._paces[spec.fingerprint]

    def range_s(self, spec: RunSpec) -> Range:
        """Return the (least, most) seconds of a run, before any run of the sweep has ended."""
        return estimate_s(spec, self.pace(spec))

    def record_duration(self, spec: RunSpec, duration_s: float) -> None:
        """Record how long a run took."""
        self._took_s.append((spec, duration_s))

    def expected_s(self, spec: RunSpec) -> float:
        """Return the expected seconds of a run with the pause before it; 0 for one that cannot happen here.

        This is the mean over finished runs with the same strategy, model and end of the training, with the same device
        count if there are any; else the middle of the range, and where that has no upper limit, the most that a
        measurement takes."""
        if not spec.can_start:
            return 0.0
        similar = self._find_similar(spec)
        similar = [other for other in similar if other[0].gpus == spec.gpus] or similar
        least_s, most_s = self.range_s(spec)
        if similar:
            expected_s = statistics.fmean(took_s for _, took_s in similar)
        elif math.isinf(most_s):
            expected_s = least_s + spec.repeat_settings.warmup_max_s + spec.repeat_settings.max_s
        else:
            expected_s = (least_s + most_s) / 2
        return expected_s + spec.config.measure.cool_down_s

    def has_basis(self, spec: RunSpec) -> bool:
        """Return whether expected_s is more than a guess, as it is for a training by epochs before a similar one has
        ended."""
        return not spec.can_start or math.isfinite(self.range_s(spec)[1]) or bool(self._find_similar(spec))

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
        return f"{_format(least_s, *_choose_unit(least_s))} or more, {UNKNOWN}"
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
    """Return the runs of `rest` that fit into `left_s` seconds; the least informative are left out.

    From the least informative on: repeats beyond the third; then configurations, with all repeats that they still have
    before them, since one without three repeats allows no verdict. First those on device counts between the ends of a
    curve, then the last curves of the sweep, several devices before one. Of the last configuration as many repeats are
    kept as fit. `planned` are all runs of the sweep, which decide the ends of the curves. Runs without a cost always
    fit: those that cannot happen here, and those with an earlier result.
    """
    costs_s = {run: cost_s(run) for run in rest}
    selected = dict(costs_s)
    dropped: list[SweepRun] = []
    for group in _group_from_least_informative(rest, planned):
        if sum(selected.values()) <= left_s:
            break
        dropped = [run for run in group if costs_s[run] > 0] or dropped
        for run in dropped:
            selected.pop(run, None)
    if not any(selected.values()):
        for run in dropped:
            if sum(selected.values()) + costs_s[run] <= left_s:
                selected[run] = costs_s[run]
    return [run for run in rest if run in selected]


def _group_from_least_informative(rest: Sequence[SweepRun], planned: Sequence[SweepRun]) -> list[list[SweepRun]]:
    """Return the runs of `rest` in groups that are left out together."""
    curves = {run.spec.fingerprint: planned_curve_key(run.spec.config) for run in planned}
    counts: dict[str, list[int]] = {}
    for run in planned:
        counts.setdefault(curves[run.spec.fingerprint], []).extend([run.spec.gpus] * run.spec.can_start)
    curve_numbers = {curve: number for number, curve in enumerate(counts)}
    run_numbers = {fingerprint: number for number, fingerprint in enumerate(curves)}
    groups: dict[tuple[bool, int, bool, int, bool, int], list[SweepRun]] = {}
    for run in rest:
        curve, repeat, gpus = curves[run.spec.fingerprint], run.spec.config.repeat, run.spec.gpus
        is_needed, is_end = (
            repeat < SWEEP_REPEATS,
            gpus in (min(counts[curve], default=0), max(counts[curve], default=0)),
        )
        place = (is_end, -curve_numbers[curve], gpus == 1, -run_numbers[run.spec.fingerprint])
        groups.setdefault((is_needed, 0 if is_needed else -repeat, *place), []).append(run)
    return [groups[order] for order in sorted(groups)]
