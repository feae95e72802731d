"""What each figure is by its definition (probed.py), from a million updates of the simulated group."""

from __future__ import annotations

import numpy as np

from scalebench.stats import FloatArray
from tests.truth.group import BATCH, UNTIL, Times, arrays
from tests.truth.noise import Noise

UPDATES = 1_000_000


def truths(times: Times, noise: Noise, ranks: int, steps: int, part_steps: int) -> dict[str, float]:
    """By the names of probed.COLUMNS, and throughput in samples per second; `steps` and `part_steps` are the updates of
    a probe's block, which the median over ranks is taken of."""
    own, loading, exchange = arrays(times, noise, ranks, UPDATES, np.random.default_rng(99))
    alone = own + loading
    on = alone.max(axis=0) + (exchange if ranks > 1 else 0.0)
    # What other blocks saw: draws that come so much later, as the blocks of a round do.
    fixed = np.roll(own, steps + 1, axis=1)
    forward, backward, whole = (
        share * np.roll(own, at * part_steps, axis=1) for at, share in enumerate(UNTIL.values())
    )
    found = {
        "throughput": BATCH * ranks / on.mean(),
        "data_s": _median(_blocks((alone if ranks > 1 else on[None]) - fixed, steps)),
        "copy_s": _median(_blocks(loading, steps)) * times.copy_s / times.loading_s,
        "forward_s": _median(_blocks(forward, part_steps)),
        "backward_s": _median(_blocks(backward - forward, part_steps)),
        "optimizer_s": _median(_blocks(whole - backward, part_steps)),
    }
    if ranks > 1:
        found["sync_isolated_s"] = exchange.mean()
        found["sync_exposed_s"] = _median(_blocks(on - np.roll(alone, steps + 1, axis=1), steps))
        found["straggler_wait_s"] = (alone.max(axis=0) - np.median(alone, axis=0)).mean()
    return {name: float(value) for name, value in found.items()}


def _blocks(seconds: FloatArray, steps: int) -> FloatArray:
    """(ranks, updates) -> (ranks, blocks): means of so many updates each."""
    ranks, updates = seconds.shape
    found: FloatArray = seconds[:, : updates // steps * steps].reshape(ranks, -1, steps).mean(axis=2)
    return found


def _median(of_ranks: FloatArray) -> float:
    return float(np.median(of_ranks, axis=0).mean())
