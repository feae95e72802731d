"""The ladder of real processes, which sleep as the simulated strategy does, against what they really slept.

Bare, the strategy alone and its group are runs of the simulated strategy, whose steps, loading, exchange and straggler
differ.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.analysis.attribution.components import PARTS
from scalebench.analysis.attribution.ladder import Ladder, ladder
from scalebench.core.json_files import read_json
from scalebench.core.spec import TrainSpec
from scalebench.core.stats.estimates import FloatArray
from scalebench.runner.parent import run
from tests.builders.runs import in_parallel, simulated_spec
from tests.truth.attribution_trials import holds
from tests.truth.sleeping_worker import EXCHANGE_S

pytestmark = [pytest.mark.truth, pytest.mark.slow]

TRIALS = 20
# Of 20 intervals at 95 %, fewer than 17 hold the truth once in sixty times (binomial).
ENOUGH = 17
BATCH, DEVICES, SIZE = 10, 2, 80  # samples of a device; of the data set, of which 60 are trained: whole batches
STRAGGLER_S = 0.020
# Run -> devices, samples, options, whether probes are needed.
RUNS: dict[str, tuple[int, int, dict[str, Any], bool]] = {
    "full": (1, BATCH * DEVICES, {"step_s": 0.050, "loading_s": 0.016}, False),
    "bare": (1, BATCH, {"step_s": 0.032, "loading_s": 0.008}, False),
    "own": (1, BATCH, {"step_s": 0.038, "loading_s": 0.008}, True),
    "group": (
        DEVICES, BATCH * DEVICES,
        {"step_s": 0.044, "loading_s": 0.014, "straggler_rank": 1, "straggler_s": STRAGGLER_S,
         "sync_s": EXCHANGE_S, "message_bytes": 1000}, True,
    ),
}  # fmt: skip
MEASURE = {
    "warmup_steps": 16, "warmup_max_s": 2.0, "block_s": 0.05, "min_s": 1.0, "max_s": 8.0, "target": 0.05,
    "probe_s": 4.0, "evaluate": False,
}  # fmt: skip
NEAR = 0.03  # of an update: how far the median trial may lie off, since the harness takes time beside the sleeps


def one(folder: Path, trial: int) -> Ladder:
    found = {}
    for name, (devices, batch, options, probes) in RUNS.items():
        scaling, train = ("strong", TrainSpec(global_batch=batch)) if devices > 1 else ("weak", TrainSpec(batch))
        measure = {**MEASURE, "probes": probes}
        spec = simulated_spec(devices, options, measure, seed=trial, size=SIZE, scaling=scaling, train=train)
        found[name] = run(spec, folder / f"{name}{trial}", module="tests.truth.sleeping_worker")
        assert found[name].status == "ok", found[name].reason
    told = ladder(found["group"], found["full"], found["bare"], found["own"])
    assert told is not None
    return told


class Slept:
    """What was slept in all trials of a run together, drawn anew for each of many updates."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rng = folder, np.random.default_rng(0)

    def __call__(self, name: str, rank: int, asked_s: float) -> FloatArray:
        words = [read_json(self._folder / f"{name}{trial}/slept{rank}.json") for trial in range(TRIALS)]
        return self._rng.choice(np.concatenate([word[f"{asked_s:.6f}"] for word in words]), 100_000)


def truths(slept: Slept) -> tuple[dict[str, float], float]:
    """(seconds of each part, of an update)"""
    options = {name: told[2] for name, told in RUNS.items()}
    alone_s = {name: float(sum(slept(name, 0, options[name][key]).mean() for key in ("step_s", "loading_s")))
               for name in ("full", "bare", "own")}  # fmt: skip
    loading_s = slept("own", 0, options["own"]["loading_s"]).mean()
    step_s = options["group"]["step_s"]
    own = np.array([slept("group", rank, step_s + STRAGGLER_S * rank) for rank in (0, 1)])
    alone = own + np.array([slept("group", rank, options["group"]["loading_s"]) for rank in (0, 1)])
    together_s, exchange_s = alone.max(axis=0).mean(), slept("group", 0, EXCHANGE_S).mean()
    found = {  # the median of two ranks is their mean
        "batch": alone_s["bare"] - alone_s["full"] / DEVICES,
        "overhead": alone_s["own"] - alone_s["bare"],
        "contention": own.mean() + loading_s - alone_s["own"],
        "data": alone.mean() - own.mean() - loading_s,
        "imbalance": together_s - alone.mean(),
        "transfer": exchange_s,
        "drift": 0.0,
    }
    return {name: float(value) for name, value in found.items()}, float(together_s + exchange_s)


def test_what_was_slept_lies_in_the_intervals(tmp_path: Path) -> None:
    ladders = list(in_parallel(partial(one, tmp_path), range(TRIALS), at_once=4).values())
    truth, update_s = truths(Slept(tmp_path))
    held, off = {}, {}
    for number, name in enumerate(PARTS):
        parts = [each.parts[number] for each in ladders]
        assert all(part.names == (name,) for part in parts)
        share = truth[name] / update_s
        held[name] = min(
            sum(holds(part.step_s, truth[name]) for part in parts), sum(holds(part.share, share) for part in parts)
        )
        off[name] = float(np.median([part.share.value for part in parts])) - share
        print(f"{name}: {100 * share:.2f} points in {held[name]} of {TRIALS}, median off by {100 * off[name]:+.2f}")
    for each in ladders:
        assert abs(sum(part.share.value for part in each.parts) - each.lost.value) < 1e-12
    assert min(held.values()) >= ENOUGH, held
    assert max(map(abs, off.values())) < NEAR, off
