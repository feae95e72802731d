"""Where the lost efficiency went: a ladder of measured update times whose rungs add up exactly. Layer 1.

Formulas, what merges when, and what each part usually comes from: docs/attribution.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scalebench.analysis import throughput, update_breakdown
from scalebench.analysis.attribution import components
from scalebench.analysis.attribution.components import PARTS as PARTS
from scalebench.analysis.attribution.components import Figures, of_probes, of_updates, share_of_device, split
from scalebench.analysis.attribution.figures import Figure, combined, figure, over_launches, share
from scalebench.core.result import Result


@dataclass(frozen=True)
class Part:
    """What of an update is lost to one cause, or to several that could not be told apart."""

    names: tuple[str, ...]  # of PARTS
    step_s: Figure  # seconds of one update; negative where something is gained
    share: Figure  # of the update: points of efficiency


@dataclass(frozen=True)
class Ladder:
    """From an update that scales perfectly to the one that was measured. The shares of its parts add up to `lost`."""

    run_id: str
    gpus: int
    step_s: float  # of an update as measured
    ideal_s: float  # of a device's share of it on one device alone, at the batch of the baseline
    lost: Figure  # 1 - efficiency against bare at the full batch
    parts: tuple[Part, ...]
    missing: dict[str, str] = field(default_factory=dict)  # part -> why it has no figure of its own
    against: str = "bare"  # self: there is no bare run, and what is lost is against the strategy on one device
    launches: int = 1

    def part(self, name: str) -> Part | None:
        """The one that holds `name`, alone or with others."""
        return next((part for part in self.parts if name in part.names), None)


def ladder(
    result: Result, bare_full: Result | None, bare_local: Result | None, own: Result | None, full: Result | None = None
) -> Ladder | None:
    """Of one run against one-device runs: bare at its global batch in strong scaling, else at the batch of a device
    (`bare_full`), bare and the same strategy at the batch of a device (`bare_local`, `own`; in weak scaling
    `bare_local` is `bare_full`). Without a bare run, against the strategy itself at the full batch (`full`).

    None where there is nothing to explain: a run that is not ok, the baseline itself, no baseline.
    """
    against = "bare" if bare_full is not None else "self"
    if bare_full is None:
        bare_full, bare_local = full, own
    if bare_full is None or result.status != "ok":
        return None
    figures = _figures(result, bare_full, bare_local, own)
    wanted, reasons = components.wanted(result, bare_local, own, against)
    if not {"ideal", "update"} <= set(figures) or not wanted:
        return None
    if result.scale.gpus == 1:
        figures.pop("own", None)  # it is the update itself
    parts = [
        Part(names, combined(terms, figures), share(terms, figures, "update"))
        for names, terms in split(wanted, set(figures))
    ]
    speedup, interval = throughput.speedup(result, bare_full)
    efficiency = throughput.per_device(interval, result.scale.gpus)
    value, limits = throughput.lost(speedup / result.scale.gpus if speedup is not None else None, efficiency)
    assert value is not None  # both throughputs are known
    merged = components.reasons(result, bare_local, own, set(figures), wanted)
    return Ladder(
        result.run_id, result.scale.gpus, figures["update"].value, figures["ideal"].value, figure(value, limits),
        tuple(parts), {**reasons, **merged}, against,
    )  # fmt: skip


def _figures(result: Result, bare_full: Result, bare_local: Result | None, own: Result | None) -> Figures:
    """All that was measured, in seconds of one device's share of an update."""
    samples = share_of_device(result)
    rungs = {"ideal": bare_full, "bare": bare_local, "own": own}
    found = of_probes(result) if result.scale.gpus > 1 else {}
    times = {name: of_updates(one, samples) for name, one in rungs.items() if one is not None}
    times["update"] = of_updates(result, samples * result.scale.gpus)
    found.update({name: one for name, one in times.items() if one is not None})
    # What loads beside it is no contention: the loading of the run that stands one rung below.
    last = next((one for name, one in reversed(rungs.items()) if one is not None and name in found), None)
    loading = None if last is None else update_breakdown.data(last)
    if last is not None and loading is not None:
        factor = samples / share_of_device(last)
        found["own_data"] = combined({"data": factor}, {"data": figure(loading.value, loading)})
    return found


def pooled(launches: Sequence[Ladder]) -> Ladder:
    """Launches of one configuration as one ladder. A rung that one of them lacks is merged in all."""
    first = launches[0]
    if len(launches) == 1:
        return first
    parts = []
    for names in _common([part.names for one in launches for part in one.parts]):
        mine = [[part for part in one.parts if part.names[0] in names] for one in launches]
        seconds = over_launches([sum(part.step_s.value for part in some) for some in mine])
        shares = over_launches([sum(part.share.value for part in some) for some in mine])
        parts.append(Part(names, seconds, shares))
    return Ladder(
        first.run_id,
        first.gpus,
        over_launches([one.step_s for one in launches]).value,
        over_launches([one.ideal_s for one in launches]).value,
        over_launches([one.lost.value for one in launches]),
        tuple(parts),
        {name: reason for one in reversed(launches) for name, reason in one.missing.items()},
        first.against if all(one.against == first.against for one in launches) else "bare or self",
        len(launches),
    )


def _common(groups: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Names that any of `groups` holds together, together in all."""
    found: list[set[str]] = []
    for names in groups:
        touched = [group for group in found if group & set(names)]
        found = [group for group in found if not group & set(names)] + [set(names).union(*touched)]
    ordered = [tuple(name for name in PARTS if name in group) for group in found]
    return sorted(ordered, key=lambda names: PARTS.index(names[0]))
