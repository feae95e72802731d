"""Trials of the ladder on an injected clock: strong scaling, four runs of known parts each, and their truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from scalebench.analysis.attribution.components import PARTS
from scalebench.analysis.attribution.figures import Figure
from scalebench.analysis.attribution.ladder import Ladder, ladder
from scalebench.core.result import Result
from tests.truth.simulated_group import BATCH, Noise, Times, _blocks, _median, arrays, run, spec_of, truths
from tests.truth.simulated_group import UPDATES as DRAWN

UPDATES = 50_000  # more than a run can have
# Of the bare strategy at the full and at the local batch, of the strategy alone, and of the group.
FULL = Times(step_s=0.0016, loading_s=0.0003)
BARE = Times(step_s=0.0010, loading_s=0.0002)
OWN = Times(step_s=0.0011, loading_s=0.0002)
GROUP = Times(step_s=0.0013, loading_s=0.0003, exchange_s=0.0004, straggler_s=0.0005)


def trial(ranks: int, noise: Noise, seed: int) -> tuple[Ladder, int]:
    """(the ladder of four runs, each of a seed of its own; updates of a probe's block of the group)."""
    quiet, probed = spec_of(1, probes=False), spec_of(1)
    full = _named(run(quiet, FULL, noise, UPDATES, 4 * seed), "bare", "full", ranks)
    bare = _named(run(quiet, BARE, noise, UPDATES, 4 * seed + 1), "bare", "local")
    own = _named(run(probed, OWN, noise, UPDATES, 4 * seed + 2), "own", "own")
    together = _named(run(spec_of(ranks), GROUP, noise, UPDATES, 4 * seed + 3), "own", "group")
    together = replace(together, scale=replace(together.scale, scaling="strong"))
    found = ladder(together, full, bare, own)
    probes = together.ranks[0].probes
    assert found is not None and probes is not None and probes.steps is not None
    return found, probes.steps


def _named(result: Result, strategy: str, run_id: str, devices: int = 1) -> Result:
    """`devices`: as many devices' batch on the one that it has."""
    batch = result.scale.global_batch * devices
    ranks = [replace(one, block_samples=[count * devices for count in one.block_samples]) for one in result.ranks]
    spec = {**result.spec, "strategy": {**result.spec["strategy"], "name": strategy}}
    scale = replace(result.scale, strategy=strategy, baseline_bare="bare", global_batch=batch)
    return replace(result, run_id=run_id, ranks=ranks, spec=spec, scale=scale)


def truth(ranks: int, noise: Noise, steps: int) -> tuple[dict[str, float], float]:
    """(seconds of each part, of the whole update), by their definitions. `steps` are the updates of a probe's block."""
    alone = {name: BATCH / truths(times, noise, 1, steps, steps)["throughput"] for name, times in
             (("full", FULL), ("bare", BARE), ("own", OWN))}  # fmt: skip
    loading_s = truths(OWN, noise, 1, steps, steps)["data_s"]
    group = truths(GROUP, noise, ranks, steps, steps)
    own, _, _ = arrays(GROUP, noise, ranks, DRAWN, np.random.default_rng(99))
    held_s, update_s = _median(_blocks(own, steps)), BATCH * ranks / group["throughput"]
    found = {
        "batch": alone["bare"] - alone["full"] / ranks,
        "overhead": alone["own"] - alone["bare"],
        "contention": held_s + loading_s - alone["own"],
        "data": group["data_s"] - loading_s,
        "imbalance": group["imbalance_s"],
        "transfer": group["sync_exposed_s"] - group["imbalance_s"],
        "drift": update_s - held_s - group["data_s"] - group["sync_exposed_s"],
    }
    return found, update_s


def coverage(ranks: int, noise: Noise, trials: int) -> tuple[Counter[str], dict[str, float]]:
    """(trials whose interval holds the truth, mean half-width in points of efficiency) by part: of its seconds, of its
    share, and of all that is lost. The parts add up in every one."""
    known: dict[int, tuple[dict[str, float], float]] = {}
    held: Counter[str] = Counter()
    widths: dict[str, float] = {}
    for seed in range(trials):
        found, steps = trial(ranks, noise, seed)
        if steps not in known:
            known[steps] = truth(ranks, noise, steps)
        parts_s, update_s = known[steps]
        assert [part.names for part in found.parts] == [(name,) for name in PARTS]
        assert abs(sum(part.share.value for part in found.parts) - found.lost.value) < 1e-12
        for part in found.parts:
            name = part.names[0]
            held[f"{name}_s"] += holds(part.step_s, parts_s[name])
            held[name] += holds(part.share, parts_s[name] / update_s)
            widths[name] = widths.get(name, 0.0) + _half(part.share) / trials
        held["lost"] += holds(found.lost, sum(parts_s.values()) / update_s)
        widths["lost"] = widths.get("lost", 0.0) + _half(found.lost) / trials
    return held, widths


def holds(one: Figure, value: float) -> bool:
    return one.low is not None and one.high is not None and one.low - 1e-12 <= value <= one.high + 1e-12


def _half(one: Figure) -> float:
    return float("inf") if one.low is None or one.high is None else (one.high - one.low) / 2


def told(case: str, trials: int, held: Counter[str], widths: dict[str, Any]) -> str:
    shares = [f"{name} {held[name] / trials:.3f} (+-{100 * widths[name]:.2g} points)" for name in widths]
    return f"{case}: {', '.join(shares)}; seconds { ({n: held[n] / trials for n in held if n.endswith('_s')}) }"
