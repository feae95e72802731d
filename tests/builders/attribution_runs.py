"""Runs whose update is made of known parts: for the ladder, its causes, and the report of both."""

from __future__ import annotations

import dataclasses
from typing import Any

from scalebench.core.result import ProbeRecord, Result
from tests.builders.runs import rank, record, simulated_config

STEPS = 2  # updates in each block
NOISE = 0.002  # of the blocks of the headline, one way and the other
OWN_S, DATA_S, CONTENTION_S = 0.0105, 0.001, 0.0004
LOADING_S, STRAGGLER_S, TRANSFER_S, DRIFT_S = 0.0003, 0.0006, 0.0012, 0.0002  # more of data, and so on
BARE_S, FULL_BARE_S = 0.010, 0.018  # of b samples alone; of B = 20, as two devices together have
BATCH = 10


def blocks(step_s: float, wobble: float = NOISE) -> list[float]:
    return [STEPS * step_s * (1 + wobble * (-1) ** (n // 2)) for n in range(32)]


def series(step_s: float, wobble: float = 0.0) -> list[float]:
    """Blocks of a probe."""
    return [STEPS * step_s * (1 + wobble * (-1) ** n) for n in range(8)]


def alone(
    strategy: str,
    step_s: float,
    batch: int = BATCH,
    data_s: float | None = DATA_S,
    scaling: str = "weak",
    **changes: Any,
) -> Result:
    """One device, of which `data_s` is loading; None: not measured."""
    fixed = [] if data_s is None else series(step_s - data_s)
    probes = ProbeRecord(steps=STEPS, sync_on_s=series(step_s), fixed_batch_s=fixed)
    ranks = [rank(0, blocks(step_s), [STEPS * batch] * 32, probes=probes, threads=1)]
    return one(strategy, 1, ranks, batch, scaling, **changes)


def together(scaling: str = "weak", strategy: str = "ddp", **changes: Any) -> Result:
    """Two devices: of what own and bare take, and all parts. `probes` changes those of both ranks, None has none."""
    held_s = OWN_S - DATA_S + CONTENTION_S
    sync_off_s = held_s + DATA_S + LOADING_S
    sync_on_s = sync_off_s + STRAGGLER_S + TRANSFER_S
    told: dict[str, Any] = {
        "steps": STEPS, "sync_on_s": series(sync_on_s, 0.003), "sync_off_s": series(sync_off_s, 0.002), "fixed_batch_s": series(held_s, 0.001),
        "isolated_sync_repeats": STEPS, "isolated_sync_s": series(0.001, 0.001),
    }  # fmt: skip
    asked = changes.pop("probes", {})
    ranks = []
    for number in range(2):
        # The median of two is half way: the slower one takes two waits longer.
        local_s = [0.01 + 0.00001 * (n % 3) + 2 * STRAGGLER_S * number for n in range(30)]
        probes = None if asked is None else ProbeRecord(**{**told, "local_step_s": [local_s], **asked})
        ranks.append(rank(number, blocks(sync_on_s + DRIFT_S), [STEPS * BATCH] * 32, probes=probes, threads=1))
    return one(strategy, 2, ranks, BATCH, scaling, **changes)


def one(strategy: str, gpus: int, ranks: list[Any], batch: int, scaling: str, **changes: Any) -> Result:
    """With the batch told as `scaling` wants it: the same train settings for all of a strong sweep."""
    train = simulated_config().train
    told = {"global_batch": gpus * batch} if scaling == "strong" else {"batch_per_device": batch}
    train = dataclasses.replace(train, **told)
    made = record(strategy, gpus, ranks=ranks, scaling=scaling, train=train, **changes)
    scale = dataclasses.replace(made.scale, batch_per_device=batch, global_batch=gpus * batch)
    run_id = changes.get("run_id") or f"{strategy}-{gpus}-{batch}-{scaling}-{made.scale.repeat}"
    return dataclasses.replace(made, scale=scale, run_id=run_id)


def weak(**changes: Any) -> tuple[Result, Result, Result]:
    """(run, bare, own)"""
    return together(**changes), alone("bare_torch", BARE_S), alone("ddp", OWN_S)


def strong(**changes: Any) -> tuple[Result, Result, Result, Result]:
    """(run, bare at the full batch, bare and own at the local one)"""
    full = alone("bare_torch", FULL_BARE_S, 2 * BATCH, 2 * DATA_S, "strong")
    return together("strong", **changes), full, alone("bare_torch", BARE_S), alone("ddp", OWN_S)
