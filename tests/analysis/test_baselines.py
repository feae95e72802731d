"""The nearest of many candidates, found without looking at each of them: as by looking at each."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.analysis.baselines import Baselines, Candidates, start_time
from scalebench.analysis.identity import comparison_key, placement_of
from scalebench.core.result import Result
from scalebench.core.spec import HardwareSpec
from tests.builders.runs import record

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER_TO_TRAIN = (
    "momentum", "weight_decay", "accumulate", "learning_rate_rule", "base_batch", "schedule", "warmup_epochs",
    "decay_epochs", "decay", "evaluate_epochs", "evaluate_s", "evaluate_samples", "stop",
)  # fmt: skip
PLACES = [
    HardwareSpec("cpu"),
    HardwareSpec("cpu", device_ids=[1]),
    HardwareSpec("cpu", bind="far"),
    HardwareSpec("cpu", environment={"A": "1"}),
    HardwareSpec("cpu", environment={"A": "2"}, bind="far"),
]


def run(strategy: str, place: int, repeat: int, minute: int, name: int, gpus: int = 1) -> Result:
    made = record(strategy, gpus, block_s=None, hardware=PLACES[place], repeat=repeat)
    made.run_id, made.started_at = f"run-{name}", (START + timedelta(minutes=minute)).isoformat()
    return made


RUNS = st.builds(
    run, st.sampled_from(["ddp", "bare_torch"]), st.integers(0, 4), st.integers(0, 2), st.integers(0, 6),
    st.integers(0, 9), st.sampled_from([1, 2]),
)  # fmt: skip


def nearest(result: Result, candidates: list[Result], bare: bool) -> Result | None:
    """As it was first written down: the least of all distances, the first of those that are equal."""
    alone = bare and result.scale.gpus == 1 and result.scale.baseline_bare == result.scale.strategy

    def distance(candidate: Result) -> tuple[Any, ...]:
        theirs, mine = placement_of(candidate), placement_of(result)
        unlike = [] if alone else [a != b for a, b in zip(theirs, mine, strict=True)]
        apart_s = abs((start_time(candidate) - start_time(result)).total_seconds())
        itself, same_repeat = candidate.run_id == result.run_id, candidate.scale.repeat == result.scale.repeat
        return unlike, theirs[0] != (), theirs[1] != "numa", theirs[2], not itself, not same_repeat, apart_s

    return min(candidates, key=distance, default=None)


@settings(max_examples=200, deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=12), RUNS, st.booleans())
def test_the_nearest_is_the_one_with_the_least_distance(rows: list[Result], asking: Result, bare: bool) -> None:
    found: Candidates[Result] = Candidates()
    for row in rows:
        found.add(row)
    assert found.nearest(asking, bare) is nearest(asking, rows, bare)
    found.add(asking)
    assert found.nearest(asking, bare) is nearest(asking, [*rows, asking], bare), "one that came later counts too"


def old_key(result: Result, strategy: bool) -> str:
    tree = copy.deepcopy(result.spec)
    for key in ("gpus", "repeat", "resume", "baseline", "dry_run", "debug", "measure", "sweep"):
        tree.pop(key, None)
    tree.get("dataset", {}).pop("cache", None)
    for key in ("device_ids", "bind", "environment", "layout", "interface", "stage", "max_jobs", "slurm"):
        tree.get("hardware", {}).pop(key, None)
    for key in LATER_TO_TRAIN:
        tree.get("train", {}).pop(key, None)
    chosen = tree.pop("strategy", {})
    kept: list[Any] = [tree, result.scale.device, sorted({gpu.name or "" for gpu in result.machine.gpus})]
    if result.scale.device == "cpu":
        kept.append(result.machine.cpu_model)
    if strategy:
        kept.append([chosen.get("name"), chosen.get("options")])
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_key_is_what_it_was(device: str) -> None:
    one, bare, old = record(), record("bare_torch"), record()
    old.spec = {"strategy": {"name": "ddp"}, "seed": 1}
    for result in (one, bare, old):
        result.scale.device = device
        for strategy in (True, False):
            assert comparison_key(result, strategy) == old_key(result, strategy)
    assert comparison_key(one, False) == comparison_key(bare, False) != comparison_key(old, False)


def test_trainings_are_compared_with_trainings_alone() -> None:
    plain, one, other, later = record(), record(), record(), record()
    one.spec["train"]["stop"]["epochs"] = other.spec["train"]["stop"]["epochs"] = 3.0
    other.spec["train"]["evaluate_epochs"] = 0.5
    later.spec["train"]["evaluate_epochs"] = 0.5
    keys = [comparison_key(result, False) for result in (plain, one, other)]
    assert len(set(keys)) == 3
    assert comparison_key(later, False) == keys[0], "it has no points"


def test_a_run_without_candidates_has_no_baseline() -> None:
    nothing: Baselines[Result] = Baselines.among([])
    assert nothing.find_self(record()) is None and nothing.find_bare(record()) is None
