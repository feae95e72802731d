"""Attribution of a configuration's lost efficiency to parts that add up exactly, from measured step times.

Formulas, which parts merge when, and what usually causes each: docs/explain/attribution.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.analysis import step_breakdown
from scalebench.analysis.attribution import components
from scalebench.analysis.attribution.components import LEVEL_OF_PART, OTHER_RUNS, Estimates, estimate_step_s
from scalebench.analysis.attribution.reference_runs import ReferenceRuns, samples_per_device
from scalebench.analysis.throughput import Measurement, ratio_in_rounds
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import Coefficients, combine, divide_by_total
from scalebench.core.stats.estimates import Estimate, scale_estimate
from scalebench.core.stats.log_means import mean_over_repeats


@dataclass(frozen=True)
class Part:
    """The part of a step that is lost to one cause, or to several that could not be separated."""

    names: tuple[str, ...]  # of LOSS_PARTS
    step_s: Estimate  # seconds of one step; negative if something is gained
    share: Estimate  # of the step: points of efficiency


@dataclass(frozen=True)
class Attribution:
    """The difference between an ideal and the measured step, in parts. Their shares add up to `lost`."""

    run_id: str
    gpus: int
    step_s: float  # as measured
    ideal_s: float  # a device's share of the step on one device, at the baseline's batch
    lost: Estimate  # 1 - efficiency against bare at the full batch
    parts: tuple[Part, ...]
    missing: dict[str, str]  # part -> why it has no estimate of its own
    against: str  # bare; self where there is no bare run, and what is lost is against the strategy on one device
    repeats: int

    def part(self, name: str) -> Part | None:
        """Return the part that includes `name`, by itself or with others."""
        return next((part for part in self.parts if name in part.names), None)


@dataclass(frozen=True)
class MeasuredRepeat:
    """One repeat of a configuration: what was measured of it and of the runs that it is compared with."""

    result: Result
    references: ReferenceRuns
    estimates: Estimates  # seconds of one device's share of a step
    possible: list[str]  # parts that it can have
    absent: dict[str, str]  # why it cannot have the others

    @property
    def step_s(self) -> float:
        return self.estimates["step"].value


def measure_repeat(result: Result, references: ReferenceRuns) -> MeasuredRepeat | None:
    """Collect what attribution needs of a run; without a bare reference, against the strategy itself on one device.

    None if there is nothing to explain: a run that is not ok, the baseline itself, no baseline.
    """
    references = references.or_self()
    if references.bare_full is None or result.status != "ok":
        return None
    # All that was measured, in seconds of one device's share of a step.
    samples, loading_run = samples_per_device(result), None
    estimates = components.estimate_from_probes(result) if result.scale.gpus > 1 else {}
    step = estimate_step_s(result, samples * result.scale.gpus)
    for name, run in zip(OTHER_RUNS, (references.bare_full, references.bare_local, references.self_local), strict=True):
        time = None if run is None else estimate_step_s(run, samples)
        if run is None or time is None:
            continue
        # Where both took turns, the ratio is that within rounds: so the loss is that of the frame's efficiency.
        ratio = ratio_in_rounds(Measurement(result).round_rates, Measurement(run).round_rates)
        if step is not None and ratio is not None:
            time = _move(time, step.value * ratio / result.scale.gpus)
        estimates[name], loading_run = time, run
    loading = None if loading_run is None else step_breakdown.figure(loading_run, "data_s")
    if loading_run is not None and loading is not None:  # loading that a single device needs as well is no contention
        estimates["self_data"] = scale_estimate(loading, samples / samples_per_device(loading_run))
    possible, absent = components.find_possible_parts(result, references)
    if step is None or "ideal" not in estimates or not possible:
        return None
    if result.scale.gpus == 1:
        estimates.pop("self", None)  # it is the measured step itself
    return MeasuredRepeat(result, references, {**estimates, "step": step}, possible, absent)


def attribute_run(result: Result, references: ReferenceRuns) -> Attribution | None:
    """Attribute the lost efficiency of one repeat; None as for `measure_repeat`."""
    repeat = measure_repeat(result, references)
    return None if repeat is None else attribute_repeats([repeat])


def attribute_repeats(repeats: Sequence[MeasuredRepeat]) -> Attribution:
    """Attribute the lost efficiency of a configuration from one or more repeats, in the order of their start.

    A part is the mean over repeats. `batch`, `wrapper`, `contention` and the loss compare processes, so their limits
    are over repeats, by Student's t, and one repeat has none. The other parts compare conditions of one process. Of a
    single repeat their limits are over its blocks; if only one of several was probed, also over the step times of all.
    A repeat without probes gets the probed parts of the others, and the rest of its step time goes to the part that
    compares processes. A one-device run that one repeat lacks is missing for all. Repeats with another kind of baseline
    than the first one (bare, or the strategy itself) are left out.
    """
    first, against = repeats[0], repeats[0].references.against
    repeats = [each for each in repeats if each.possible == first.possible and each.references.against == against]
    probed = [each for each in repeats if "probed" in each.estimates] or repeats
    measured = set(first.estimates) | set(probed[0].estimates)
    # A step of a run has to be there in all repeats, what probes measure in all probed ones.
    for name in [*measured]:
        if any(name not in each.estimates for each in (repeats if name in ("step", *OTHER_RUNS) else probed)):
            measured.remove(name)
    split = components.split_lost_time(first.possible, measured)
    parts = [_make_part(names, terms, repeats, probed) for names, terms in split]
    ideal_s = [each.estimates["ideal"].value for each in repeats]
    lost = mean_over_repeats([1 - ideal / each.step_s for ideal, each in zip(ideal_s, repeats, strict=True)])
    missing = dict(first.absent)
    for each in reversed(repeats):
        reasons = components.explain_unmeasured_parts(each.result, each.references, set(each.estimates), each.possible)
        missing |= {name: reason for name, reason in reasons.items() if each in probed or name in LEVEL_OF_PART}
    return Attribution(
        first.result.run_id, first.result.scale.gpus, statistics.fmean(each.step_s for each in repeats),
        statistics.fmean(ideal_s), lost, tuple(parts), missing, against, len(repeats),
    )  # fmt: skip


def _make_part(
    names: tuple[str, ...], terms: Coefficients, repeats: Sequence[MeasuredRepeat], probed: Sequence[MeasuredRepeat]
) -> Part:
    """Make a part from its value in each repeat, in which all parts add up to what that repeat loses."""
    own = {name: factor for name, factor in terms.items() if name not in OTHER_RUNS}
    seconds = [_part_s(terms, own, each, probed) for each in repeats]
    shares = [value / each.step_s for value, each in zip(seconds, repeats, strict=True)]
    estimates, is_within = probed[0].estimates, len(own) == len(terms)
    spread_s, spread = mean_over_repeats(seconds), mean_over_repeats(shares)
    if is_within and len(repeats) == 1:
        spread_s, spread = combine(own, estimates), divide_by_total(own, estimates, "step")
    elif len(probed) == 1 < len(repeats) and set(own) - {"step"}:
        # All repeats share the probes of one process, so that their spread does not hold the error of these probes.
        probes = {"probes": combine(own if is_within else {**own, "step": -1.0}, estimates)}
        spread_s = combine({"repeats": 1.0, "probes": 1.0}, {"repeats": spread_s, **probes})
        spread = combine({"repeats": 1.0, "probes": 1 / probed[0].step_s}, {"repeats": spread, **probes})
    return Part(names, _move(spread_s, statistics.fmean(seconds)), _move(spread, statistics.fmean(shares)))


def _part_s(terms: Coefficients, own: Coefficients, repeat: MeasuredRepeat, probed: Sequence[MeasuredRepeat]) -> float:
    """Return the seconds of a part in one repeat; without probes of its own, those of the probed ones."""
    if all(name in repeat.estimates for name in terms):
        return combine(terms, repeat.estimates).value
    seconds = statistics.fmean(combine(own, each.estimates).value for each in probed)
    if len(own) == len(terms):
        return seconds
    others = {name: factor for name, factor in terms.items() if name in OTHER_RUNS}
    longer_s = repeat.step_s - statistics.fmean(each.step_s for each in probed)
    return seconds + longer_s + combine(others, repeat.estimates).value


def _move(estimate: Estimate, value: float) -> Estimate:
    """Return another value with limits as far off as those of an estimate."""
    if not estimate.has_limits:
        return Estimate(value)
    return Estimate(value, value - (estimate.value - estimate.low), value + (estimate.high - estimate.value))
