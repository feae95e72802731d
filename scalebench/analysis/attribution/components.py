"""What the ladder of an update is made of: measured seconds, and how the lost time divides among the parts. Layer 1.

All are of one update of one device's share of the work, b samples. Formulas: docs/attribution.md.

Which parts of the lost efficiency a run can have at all, and why one has no figure of its own. Layer 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence

from scalebench.analysis import throughput, update_breakdown
from scalebench.analysis.attribution.figures import Figure, Terms, figure, inverse
from scalebench.analysis.baselines import comparison_key
from scalebench.core.result import ProbeRecord, Result
from scalebench.core.stats.estimates import mean_interval

PARTS = ("batch", "overhead", "contention", "data", "imbalance", "transfer", "drift")
ONE_DEVICE = {"batch": "bare", "overhead": "own"}  # part -> the rung that it ends on
Figures = dict[str, Figure]
Split = list[tuple[tuple[str, ...], Terms]]


def share_of_device(result: Result) -> float:
    """Samples of an update on one device, b; no whole number where they differ by one."""
    return result.scale.global_batch / result.scale.gpus


def of_updates(result: Result, samples: float) -> Figure | None:
    """Seconds that `samples` take, from throughput; None where that was not measured."""
    rate, interval = throughput.throughput(result)
    return None if rate is None else inverse(rate, interval, samples)


def of_probes(result: Result) -> Figures:
    """What the probes of an update tell: `data`, `straggler` and `exposed` as the frame's columns have them; the level
    that they stand on, `held` (one batch over and over) or `fed` where samples are read within the update, without the
    exchange where that can be switched off, else with it; and `probed`, the level that all of them make up.

    `probed` has the interval of its own blocks, since its parts took turns and are no independent figures.
    """
    columns = {
        "data": update_breakdown.data,
        "imbalance": update_breakdown.straggler_wait,
        "exposed": update_breakdown.exposed,
    }
    intervals = {name: column(result) for name, column in columns.items()}
    found = {name: figure(one.value, one) for name, one in intervals.items() if one is not None}
    base = "held" if "data" in found else "fed"
    off = "sync_off_s" if "exposed" in found else "sync_on_s"
    low = "fixed_batch_s" if base == "held" else off
    level = _level(result, [lambda probes: getattr(probes, low)])
    pieces: list[Callable[[ProbeRecord], Sequence[float]]] = [lambda probes: getattr(probes, low)]
    if base == "held":
        pieces.append(lambda probes: _difference(getattr(probes, off), probes.fixed_batch_s))
    if "exposed" in found:
        pieces.append(lambda probes: _difference(probes.sync_on_s, probes.sync_off_s))
    whole = _level(result, pieces)
    if level is None or whole is None:
        return found  # the straggler wait at the most: the others stand on such blocks too
    # Blocks that only some conditions have count in their own figures.
    value = math.fsum([level.value, *(found[name].value for name in ("data", "exposed") if name in found)])
    moved = value - whole.value
    limits = (None if one is None else one + moved for one in (whole.low, whole.high))
    return {**found, base: level, "probed": Figure(value, *limits)}


def split(wanted: Sequence[str], known: Collection[str]) -> Split:
    """The time that is lost, `update` - `ideal`, by parts: their names (several where a rung between them is not known)
    and the figures that they are made of. They add up to the whole, whatever is known.

    `wanted` are the parts that there can be at all, of PARTS, in its order; `known` the figures that were measured.
    """
    told = _told(wanted, known)
    climbed, waiting, below = _climb([name for name in wanted if name in ONE_DEVICE], known)
    waiting += [name for name in wanted if name not in ONE_DEVICE and not any(name in names for names, _ in told)]
    reached: dict[str, float] = {"update": 1.0}
    if "probed" in known:
        base = "held" if "held" in known else "fed"
        reached = {name: 1.0 for name in (base, "data", "exposed") if name in known}
    left = _minus(reached, [{below: 1.0}, *(terms for names, terms in told if names != ("drift",))])
    if waiting:
        found = [*climbed, (tuple(waiting), left), *told]
    else:  # nothing that it could be named: the last of the named ones holds it
        raise ValueError(f"no part of {', '.join(wanted)} is left for the rest")
    return sorted(found, key=lambda part: PARTS.index(part[0][0]))


def _told(wanted: Sequence[str], known: Collection[str]) -> Split:
    """Parts that the probes tell by themselves."""
    found: Split = []
    if "data" in wanted and {"data", "held"} <= set(known):
        found.append((("data",), {"data": 1.0, "own_data": -1.0} if "own_data" in known else {"data": 1.0}))
    straggles = "imbalance" in wanted and "imbalance" in known
    if straggles:
        found.append((("imbalance",), {"imbalance": 1.0}))
    if "transfer" in wanted and "exposed" in known:
        names = tuple(name for name in ("imbalance", "transfer") if name in wanted)
        found.append((("transfer",), {"exposed": 1.0, "imbalance": -1.0}) if straggles else (names, {"exposed": 1.0}))
    if "drift" in wanted and "probed" in known:
        found.append((("drift",), {"update": 1.0, "probed": -1.0}))
    return found


def _climb(wanted: Sequence[str], known: Collection[str]) -> tuple[Split, list[str], str]:
    """(parts between the rungs of one device, names above the last of these that is known, that rung)."""
    found: Split = []
    waiting: list[str] = []
    below = "ideal"
    for name in wanted:
        waiting.append(name)
        if (rung := ONE_DEVICE[name]) in known:
            found.append((tuple(waiting), {rung: 1.0, below: -1.0}))
            waiting, below = [], rung
    return found, waiting, below


def _minus(terms: Terms, others: Sequence[Terms]) -> Terms:
    found = dict(terms)
    for other in others:
        for name, factor in other.items():
            found[name] = found.get(name, 0.0) - factor
    return {name: factor for name, factor in found.items() if factor != 0}


def _level(result: Result, pieces: Sequence[Callable[[ProbeRecord], Sequence[float]]]) -> Figure | None:
    """Of each piece the median rank's, block by block, added up; seconds of one update."""
    probes = [rank.probes for rank in result.ranks if rank.probes is not None]
    if result.status != "ok" or not probes or len(probes) < len(result.ranks) or not probes[0].steps:
        return None
    series = [[statistics.median(block) for block in zip(*map(piece, probes), strict=False)] for piece in pieces]
    blocks = [sum(block) / probes[0].steps for block in zip(*series, strict=False)]
    interval = mean_interval(blocks) if len(blocks) > 1 else None
    return None if interval is None else figure(interval.value, interval)


def _difference(more: Sequence[float], less: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(more, less, strict=False)]


ALONE = "one device has nobody to share with, to wait for or to exchange with"
SAME_BATCH = "the baseline has the batch of a device too"
NO_WRAPPER = "the strategy is its own baseline"
NO_BARE = "there is no bare run: what is lost is against the strategy itself on one device, and this part is not in it"
APART = "replicas that exchange nothing do not wait for each other"
IN_PROBES = ("contention", "data", "imbalance", "transfer", "drift")


def wanted(
    result: Result, bare_local: Result | None, own: Result | None, against: str
) -> tuple[list[str], dict[str, str]]:
    """(parts that there can be, why there cannot be the others)."""
    absent = {}
    if result.scale.gpus == 1:
        absent = dict.fromkeys(("batch", *IN_PROBES), ALONE)
    elif result.scale.scaling != "strong":
        absent["batch"] = SAME_BATCH
    if against == "self":
        absent["overhead"] = NO_BARE
    elif _one_strategy(result, bare_local, own):
        absent["overhead"] = NO_WRAPPER
    if not result.scale.lockstep:
        absent |= dict.fromkeys(("imbalance", "transfer"), APART)
    return [name for name in PARTS if name not in absent], absent


def reasons(
    result: Result, bare_local: Result | None, own: Result | None, known: Collection[str], parts: Sequence[str]
) -> dict[str, str]:
    """Why parts that there are could not be told from others; with the run that would help, where one would."""
    found = {}
    if "batch" in parts and bare_local is None:
        found["batch"] = _no_run(result, result.scale.baseline_bare or result.scale.strategy)
    if "overhead" in parts and own is None:
        found["overhead"] = _no_run(result, result.scale.strategy)
    if "contention" not in parts:
        return found
    if "probed" not in known:
        return found | dict.fromkeys((name for name in IN_PROBES if name in parts), _no_probes(result))
    told = update_breakdown.reasons(result)
    if "held" not in known:
        found["data"] = told.get("data", "too few blocks for a figure")
    elif "own_data" not in known:
        found["data"] = "what one device loads was not measured: data holds all loading, and contention less by one's"
    if "transfer" in parts and "exposed" not in known:
        found["transfer"] = told.get("exposed", "too few blocks for a figure")
    if "imbalance" in parts and "imbalance" not in known:
        found["imbalance"] = told.get("imbalance", told.get("exposed", "too few updates for a figure"))
    return found


def _one_strategy(result: Result, bare_local: Result | None, own: Result | None) -> bool:
    if bare_local is None or own is None:
        return result.scale.framework == "none" and result.scale.strategy == result.scale.baseline_bare
    return bare_local.run_id == own.run_id or comparison_key(bare_local, True) == comparison_key(own, True)


def _no_run(result: Result, strategy: str) -> str:
    batch = share_of_device(result)
    if not batch.is_integer():
        return (
            f"{result.scale.global_batch} samples on {result.scale.gpus} devices are {batch:.4g} each, a batch that no "
            "run on one device can have"
        )
    strong = result.scale.scaling == "strong" and result.scale.gpus > 1
    value = "ladder" if strong else "auto"
    return (
        f"no good run of {strategy} on one device with a batch of {batch:.0f} is among these: baseline={value} adds it "
        f"in a sweep, by itself strategy={strategy} gpus=1 scaling=weak train.batch_per_device={batch:.0f}"
    )


def _no_probes(result: Result) -> str:
    asked = result.spec.get("measure", {}).get("probes")
    words = {None: "the record is of an older version", False: "measure.probes=false"}
    return f"no probes of an update ({words.get(asked, 'a rank has none')}): measure.probes=true takes it apart"
