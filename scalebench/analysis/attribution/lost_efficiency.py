"""Attribution of a configuration's lost efficiency to parts that add up exactly, from measured step times: the runs on
one device that it is measured against, what is measured of a step, how lost time is split, and why a part is missing.

All seconds are of one step of one device's share of the work. Formulas, which parts merge when, and what usually causes
each: docs/explain/attribution.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from scalebench.analysis import step_breakdown
from scalebench.analysis.identity import Baselines, identify
from scalebench.analysis.throughput import Measurement, ratio_in_rounds
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import Coefficients, combine, divide_by_total, rate_to_seconds
from scalebench.core.stats.estimates import Estimate, estimate_mean, scale_estimate
from scalebench.core.stats.log_means import mean_over_repeats

LOSS_PARTS = ("batch", "wrapper", "contention", "data", "imbalance", "communication", "drift")
PROBED_PARTS = ("contention", "data", "imbalance", "communication", "drift")
LEVEL_OF_PART = {"batch": "bare", "wrapper": "self"}  # part -> the one-device step that includes it
OTHER_RUNS = ("ideal", "bare", "self")  # steps of the runs on one device, in the order in which parts are added
Estimates = dict[str, Estimate]
Split = list[tuple[tuple[str, ...], Coefficients]]

NO_OTHER_DEVICE = "one device has no other to share with, to wait for or to exchange with"
SAME_BATCH = "the baseline has the batch of a device too"
NO_WRAPPER = "the strategy is its own baseline"
NO_BARE_RUN = (
    "there is no bare run: what is lost is against the strategy itself on one device, and this part is not in it"
)
INDEPENDENT_REPLICAS = "replicas that exchange nothing do not wait for each other"


def samples_per_device(result: Result) -> float:
    """Return the samples of a step on one device; not an integer if the devices' shares differ by one."""
    return result.scale.samples_per_step / result.scale.gpus


@dataclass(frozen=True)
class ReferenceRuns:
    """Runs on one device; None where there is none. `full` is the run's global batch in strong scaling, else the batch
    of a device, as `local` is always."""

    bare_full: Result | None
    bare_local: Result | None
    self_local: Result | None
    self_full: Result | None = None
    against: str = "bare"


class ReferenceRunFinder:
    """All good one-device runs among `results`, to look up what a run is measured against."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._results = {result.run_id: result for result in results}
        self._baselines = {
            local_batch: Baselines([identify(result, local_batch) for result in self._results.values()])
            for local_batch in (False, True)
        }

    def find(self, result: Result) -> ReferenceRuns:
        """Return the baselines that the frame uses, and in strong scaling the nearest ones at the local batch."""
        has_local_batch = result.scale.scaling == "strong" and result.scale.gpus > 1
        runs: list[Result | None] = []
        for local_batch in (False, has_local_batch):
            run, baselines = identify(result, local_batch), self._baselines[local_batch]
            both = baselines.find_bare(run), baselines.find_self(run)
            runs += [None if baseline is None else self._results[baseline.run_id] for baseline in both]
        bare, own, local_bare, local_own = runs
        return ReferenceRuns(bare, local_bare, local_own, own)


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


def estimate_step_s(result: Result, samples: float) -> Estimate | None:
    """Return the seconds that `samples` take, from throughput; None if that was not measured."""
    rate = Measurement(result).throughput
    return None if rate is None else rate_to_seconds(rate, samples)


def measure_repeat(result: Result, references: ReferenceRuns) -> MeasuredRepeat | None:
    """Collect what attribution needs of a run; without a bare reference, against the strategy itself on one device.

    None if there is nothing to explain: a run that is not ok, the baseline itself, no baseline.
    """
    if references.bare_full is None:
        own_full, own_local = references.self_full, references.self_local
        references = ReferenceRuns(own_full, own_local, own_local, own_full, "self")
    if references.bare_full is None or result.status != "ok":
        return None
    # All that was measured, in seconds of one device's share of a step.
    samples, loading_run = samples_per_device(result), None
    estimates = estimate_from_probes(result) if result.scale.gpus > 1 else {}
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
    if loading_run is not None and loading is not None:  # loading that a single device needs as well is not contention
        estimates["self_data"] = scale_estimate(loading, samples / samples_per_device(loading_run))
    possible, absent = find_possible_parts(result, references)
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
    split = split_lost_time(first.possible, measured)
    parts = [_make_part(names, terms, repeats, probed) for names, terms in split]
    ideal_s = [each.estimates["ideal"].value for each in repeats]
    lost = mean_over_repeats([1 - ideal / each.step_s for ideal, each in zip(ideal_s, repeats, strict=True)])
    missing = dict(first.absent)
    for each in reversed(repeats):
        reasons = explain_unmeasured_parts(each.result, each.references, set(each.estimates), each.possible)
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
    others = {name: factor for name, factor in terms.items() if name in OTHER_RUNS}

    def sum_terms(repeat: MeasuredRepeat) -> float:
        """Return the seconds of the part in one repeat; without probes of its own, those of the probed ones."""
        if all(name in repeat.estimates for name in terms):
            return combine(terms, repeat.estimates).value
        seconds = statistics.fmean(combine(own, each.estimates).value for each in probed)
        if not others:
            return seconds
        longer_s = repeat.step_s - statistics.fmean(each.step_s for each in probed)
        return seconds + longer_s + combine(others, repeat.estimates).value

    seconds = list(map(sum_terms, repeats))
    shares = [value / each.step_s for value, each in zip(seconds, repeats, strict=True)]
    estimates, spread_s, spread = probed[0].estimates, mean_over_repeats(seconds), mean_over_repeats(shares)
    if not others and len(repeats) == 1:
        spread_s, spread = combine(own, estimates), divide_by_total(own, estimates, "step")
    elif len(probed) == 1 < len(repeats) and set(own) - {"step"}:
        # All repeats share the probes of one process, so that their spread does not hold the error of these probes.
        probes = {"probes": combine({**own, "step": -1.0} if others else own, estimates)}
        spread_s = combine({"repeats": 1.0, "probes": 1.0}, {"repeats": spread_s, **probes})
        spread = combine({"repeats": 1.0, "probes": 1 / probed[0].step_s}, {"repeats": spread, **probes})
    return Part(names, _move(spread_s, statistics.fmean(seconds)), _move(spread, statistics.fmean(shares)))


def _move(estimate: Estimate, value: float) -> Estimate:
    """Return another value with limits as far off as those of an estimate."""
    if not estimate.has_limits:
        return Estimate(value)
    return Estimate(value, value - (estimate.value - estimate.low), value + (estimate.high - estimate.value))


def estimate_from_probes(result: Result) -> Estimates:
    """Return what the probes of a step measured, by name.

    `data`, `imbalance` and `exposed` are the frame's columns. `fixed_batch` is the step that they add to: one batch
    over and over, without gradient synchronization where that can be switched off; it is called `fed` where samples
    are read within the step. `probed` is the step with everything, which is the sum of that step, `data` and `exposed`.
    """
    estimates = {}
    for name, column in {"data": "data_s", "imbalance": "imbalance_s", "exposed": "sync_exposed_s"}.items():
        if figure := step_breakdown.figure(result, column):
            estimates[name] = figure
    blocks = step_breakdown.variant_blocks(result)
    without = next((name for name in ("fixed_batch_s", "sync_off_s", "sync_on_s") if name in blocks), None)
    if without is None or "sync_on_s" not in blocks:
        return estimates  # the imbalance at most: the others need such blocks too
    base, probed = estimate_mean(blocks[without]), estimate_mean(blocks["sync_on_s"])
    steps = {"fixed_batch" if "data" in estimates else "fed": base, "probed": probed}
    return estimates | {name: step for name, step in steps.items() if step is not None}


def split_lost_time(possible: Sequence[str], measured: Collection[str]) -> Split:
    """Split the lost time, `step` - `ideal`, into parts: their names and the estimates that each is made of.

    A part has several names if what would separate them was not measured. The parts add up to the lost time, whatever
    was measured. `possible` are the parts that the run can have, in the order of LOSS_PARTS; `measured` the names of
    the estimates.
    """
    parts: Split = []
    # Runs on one device, from the ideal step up: a part whose run was not measured merges with the next one.
    merged: list[str] = []
    below = "ideal"
    for name, level in LEVEL_OF_PART.items():
        merged += [name] if name in possible else []
        if name in possible and level in measured:
            parts.append((tuple(merged), {level: 1.0, below: -1.0}))
            merged, below = [], level
    # Parts that the probes measured by themselves.
    probed: Split = []
    if "data" in possible and {"data", "fixed_batch"} <= set(measured):
        probed.append((("data",), {"data": 1.0} | ({"self_data": -1.0} if "self_data" in measured else {})))
    waits = {"imbalance": 1.0} if "imbalance" in possible and "imbalance" in measured else {}
    if waits:
        probed.append((("imbalance",), waits))
    if "communication" in possible and "exposed" in measured:
        is_merged = "imbalance" in possible and not waits
        names = ("imbalance", "communication") if is_merged else ("communication",)
        probed.append((names, {"exposed": 1.0, **{name: -factor for name, factor in waits.items()}}))
    # All other parts share the rest of the step with probes, or of the step itself.
    top = ["step"]
    if "probed" in measured:
        base = "fixed_batch" if "fixed_batch" in measured else "fed"
        top = [name for name in (base, "data", "exposed") if name in measured]  # whose sum is `probed`
        parts += [(("drift",), {"step": 1.0, "probed": -1.0})] if "drift" in possible else []
    separate = {name for names, _ in (*parts, *probed) for name in names}
    merged += [name for name in possible if name not in LEVEL_OF_PART and name not in separate]
    if not merged:
        raise ValueError(f"no part of {', '.join(possible)} is left for the rest")
    rest = dict.fromkeys(top, 1.0)
    for terms in ({below: 1.0}, *(terms for _, terms in probed)):
        for name, factor in terms.items():
            rest[name] = rest.get(name, 0.0) - factor
    parts += [*probed, (tuple(merged), {name: factor for name, factor in rest.items() if factor != 0})]
    return sorted(parts, key=lambda part: LOSS_PARTS.index(part[0][0]))


def find_possible_parts(result: Result, references: ReferenceRuns) -> tuple[list[str], dict[str, str]]:
    """Return the parts that a run can have at all, and why it cannot have the others."""
    absent, scale = {}, result.scale
    if scale.gpus == 1:
        absent = dict.fromkeys(("batch", *PROBED_PARTS), NO_OTHER_DEVICE)
    elif scale.scaling != "strong":
        absent["batch"] = SAME_BATCH
    bare, own = references.bare_local, references.self_local
    if bare is None or own is None:
        is_own_baseline = scale.framework == "none" and scale.strategy == scale.baseline_bare
    else:
        is_own_baseline = bare.run_id == own.run_id or identify(bare).strategy_key == identify(own).strategy_key
    if references.against == "self":
        absent["wrapper"] = NO_BARE_RUN
    elif is_own_baseline:
        absent["wrapper"] = NO_WRAPPER
    if scale.independent:
        absent |= dict.fromkeys(("imbalance", "communication"), INDEPENDENT_REPLICAS)
    return [name for name in LOSS_PARTS if name not in absent], absent


def explain_unmeasured_parts(
    result: Result, references: ReferenceRuns, measured: Collection[str], possible: Sequence[str]
) -> dict[str, str]:
    """Return why possible parts could not be separated from others, with the run that would help if there is one."""
    missing = {}
    if "batch" in possible and references.bare_local is None:
        missing["batch"] = _explain_missing_run(result, result.scale.baseline_bare or result.scale.strategy)
    if "wrapper" in possible and references.self_local is None:
        missing["wrapper"] = _explain_missing_run(result, result.scale.strategy)
    if "contention" not in possible:
        return missing
    if "probed" not in measured:
        reason = f"no probes of a step ({step_breakdown.explain_missing_probes(result)})"
        return missing | dict.fromkeys((name for name in PROBED_PARTS if name in possible), reason)
    reasons = step_breakdown.unmeasured_reasons(result)
    if "fixed_batch" not in measured:
        missing["data"] = reasons.get("data", "too few blocks for a figure")
    elif "self_data" not in measured:
        missing["data"] = "what one device loads was not measured: data holds all loading, and contention less by one's"
    if "communication" in possible and "exposed" not in measured:
        missing["communication"] = reasons.get("exposed", "too few blocks for a figure")
    if "imbalance" in possible and "imbalance" not in measured:
        missing["imbalance"] = reasons.get("imbalance", reasons.get("exposed", "too few steps for a figure"))
    return missing


def _explain_missing_run(result: Result, strategy: str) -> str:
    batch = samples_per_device(result)
    if not batch.is_integer():
        return (
            f"{result.scale.global_batch} samples on {result.scale.gpus} devices are {batch:.4g} each, a batch that no "
            "run on one device can have"
        )
    strong = result.scale.scaling == "strong" and result.scale.gpus > 1
    value = "attribution" if strong else "auto"
    return (
        f"no good run of {strategy} on one device with a batch of {batch:.0f} is among these: baseline={value} adds it "
        f"in a sweep, by itself strategy={strategy} gpus=1 scaling=weak train.batch_per_device={batch:.0f}"
    )
