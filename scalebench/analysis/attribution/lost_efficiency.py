"""Attribution of a run's lost efficiency to parts that add up exactly, from measured step times.

Formulas, which parts merge when, and what usually causes each: docs/attribution.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.attribution.components import (
    LOSS_PARTS,
    Estimates,
    estimate_from_probes,
    estimate_step_s,
    explain_unmeasured_parts,
    find_possible_parts,
    split_lost_time,
)
from scalebench.analysis.attribution.reference_runs import ProbedRepeats, ReferenceRuns, samples_per_device
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import (
    Coefficients,
    combine,
    divide_by_total,
    estimate_around,
    mean_over_repeats,
)
from scalebench.core.stats.estimates import Estimate

OWN_ESTIMATES = ("step", "ideal", "bare", "self")  # of each repeat, also where the others are of one for all


@dataclass(frozen=True)
class Part:
    """The part of a step that is lost to one cause, or to several that could not be separated."""

    names: tuple[str, ...]  # of LOSS_PARTS
    step_s: Estimate  # seconds of one step; negative if something is gained
    share: Estimate  # of the step: points of efficiency
    # What of its seconds was measured in one repeat for all of them; None if every repeat has its own probes.
    shared_s: Estimate | None = None


@dataclass(frozen=True)
class Attribution:
    """The difference between an ideal and the measured step, in parts. Their shares add up to `lost`."""

    run_id: str
    gpus: int
    step_s: float  # as measured
    ideal_s: float  # a device's share of the step on one device, at the baseline's batch
    lost: Estimate  # 1 - efficiency against bare at the full batch
    parts: tuple[Part, ...]
    missing: dict[str, str] = field(default_factory=dict)  # part -> why it has no estimate of its own
    against: str = "bare"  # self: there is no bare run, and what is lost is against the strategy on one device
    repeats: int = 1

    def part(self, name: str) -> Part | None:
        """Return the part that includes `name`, by itself or with others."""
        return next((part for part in self.parts if name in part.names), None)


def attribute_run(result: Result, references: ReferenceRuns, probed: ProbedRepeats | None = None) -> Attribution | None:
    """Attribute the lost efficiency of one run; without a bare reference, against the strategy itself on one device.

    What a run without probes needs of them is taken from the repeat that `probed` finds. None if there is nothing to
    explain: a run that is not ok, the baseline itself, no baseline.
    """
    references = references.or_self()
    full = references.bare_full
    if full is None or result.status != "ok":
        return None
    probed = probed or ProbedRepeats(())
    estimates = _collect_estimates(result, references, probed)
    possible, absent = find_possible_parts(result, references)
    if not {"ideal", "step"} <= set(estimates) or not possible:
        return None
    if result.scale.gpus == 1:
        estimates.pop("self", None)  # it is the measured step itself
    parts = [
        Part(
            names,
            combine(terms, estimates),
            divide_by_total(terms, estimates, "step"),
            None if probed.find(result) is None else combine(_without(terms, OWN_ESTIMATES), estimates),
        )
        for names, terms in split_lost_time(possible, set(estimates))
    ]
    speedup, interval = throughput.speedup(result, full)
    efficiency = throughput.scale_to_efficiency(interval, result.scale.gpus)
    lost, limits = throughput.lost_share(speedup / result.scale.gpus if speedup is not None else None, efficiency)
    assert lost is not None  # both throughputs are measured
    unmeasured = explain_unmeasured_parts(probed.find(result) or result, references, set(estimates), possible)
    return Attribution(
        result.run_id, result.scale.gpus, estimates["step"].value, estimates["ideal"].value,
        estimate_around(lost, limits), tuple(parts), {**absent, **unmeasured}, references.against,
    )  # fmt: skip


def _without(terms: Coefficients, names: Collection[str]) -> Coefficients:
    return {name: factor for name, factor in terms.items() if name not in names}


def _collect_estimates(result: Result, references: ReferenceRuns, probed: ProbedRepeats) -> Estimates:
    """Return all that was measured, in seconds of one device's share of a step."""
    samples = samples_per_device(result)
    levels = {"ideal": references.bare_full, "bare": references.bare_local, "self": references.self_local}
    shared = probed.find(result)
    estimates = estimate_from_probes(shared or result) if result.scale.gpus > 1 else {}
    times = {name: estimate_step_s(run, samples) for name, run in levels.items() if run is not None}
    times["step"] = estimate_step_s(result, samples * result.scale.gpus)
    if shared is not None and "probed" in estimates:
        times["probed_step"] = estimate_step_s(shared, samples * result.scale.gpus)
    estimates |= {name: time for name, time in times.items() if time is not None}
    # Loading that one device needs too is no contention: it is that of the highest measured one-device run.
    last = next((run for name, run in reversed(levels.items()) if run is not None and name in estimates), None)
    loading = None if last is None else step_breakdown.data_loading(probed.find(last) or last)
    if last is not None and loading is not None:
        estimates["self_data"] = combine({"data": samples / samples_per_device(last)}, {"data": loading})
    return estimates


def pool_repeats(repeats: Sequence[Attribution]) -> Attribution:
    """Average the attributions of the repeats of one configuration. Parts that one repeat merges are merged in all.

    Of a part that was measured in one repeat for all, the interval has both: how the repeats differ in the others, and
    the noise of its blocks in that one.
    """
    first = repeats[0]
    if len(repeats) == 1:
        return first
    parts = []
    for names in _merge_overlapping([part.names for repeat in repeats for part in repeat.parts]):
        included = [[part for part in repeat.parts if part.names[0] in names] for repeat in repeats]
        shared = [part.shared_s for part in included[0] if part.shared_s is not None]
        seconds = _pool([sum(part.step_s.value for part in some) for some in included], shared)
        per_step = math.fsum(1 / repeat.step_s for repeat in repeats) / len(repeats)
        shared_shares = [combine({"seconds": per_step}, {"seconds": estimate}) for estimate in shared]
        shares = _pool([sum(part.share.value for part in some) for some in included], shared_shares)
        parts.append(Part(names, seconds, shares))
    return Attribution(
        first.run_id,
        first.gpus,
        mean_over_repeats([repeat.step_s for repeat in repeats]).value,
        mean_over_repeats([repeat.ideal_s for repeat in repeats]).value,
        mean_over_repeats([repeat.lost.value for repeat in repeats]),
        tuple(parts),
        {name: reason for repeat in reversed(repeats) for name, reason in repeat.missing.items()},
        first.against if all(repeat.against == first.against for repeat in repeats) else "bare or self",
        len(repeats),
    )


def _pool(values: Sequence[float], shared: Sequence[Estimate]) -> Estimate:
    """Return the mean over repeats of values that each contain the `shared` estimates."""
    own = mean_over_repeats([value - math.fsum(estimate.value for estimate in shared) for value in values])
    terms = {str(number): estimate for number, estimate in enumerate([own, *shared])}
    return combine(dict.fromkeys(terms, 1.0), terms)


def _merge_overlapping(groups: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Merge groups of names that share a name, until no name is in two groups."""
    merged: list[set[str]] = []
    for names in groups:
        touched = [group for group in merged if group & set(names)]
        merged = [group for group in merged if not group & set(names)] + [set(names).union(*touched)]
    ordered = [tuple(name for name in LOSS_PARTS if name in group) for group in merged]
    return sorted(ordered, key=lambda names: LOSS_PARTS.index(names[0]))
