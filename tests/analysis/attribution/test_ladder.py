"""The ladder of one run and of several launches: known parts come back, and add up to what the frame says is lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import load, throughput, update_breakdown
from scalebench.analysis.attribution.components import ALONE, APART, NO_BARE, NO_WRAPPER, PARTS, SAME_BATCH
from scalebench.analysis.attribution.figures import Figure
from scalebench.analysis.attribution.ladder import Ladder, Part, ladder, pooled
from scalebench.core.result import Result
from tests.builders.attribution_runs import (
    BARE_S,
    CONTENTION_S,
    DATA_S,
    DRIFT_S,
    FULL_BARE_S,
    LOADING_S,
    OWN_S,
    STRAGGLER_S,
    TRANSFER_S,
    alone,
    strong,
    together,
    weak,  # fmt: skip
)
from tests.builders.runs import record

SUM = 1e-12
NEAR_S = 1e-9
UPDATE_S = OWN_S + CONTENTION_S + LOADING_S + STRAGGLER_S + TRANSFER_S + DRIFT_S
KNOWN_S = {
    "batch": BARE_S - FULL_BARE_S / 2, "overhead": OWN_S - BARE_S, "contention": CONTENTION_S, "data": LOADING_S,
    "imbalance": STRAGGLER_S, "transfer": TRANSFER_S, "drift": DRIFT_S,
}  # fmt: skip


def of_strong(lacking: str = "", **changes: Any) -> Ladder:
    """`lacking`: bare, own: without those of the local batch."""
    result, full, bare, own = strong(**changes)
    found = ladder(result, full, None if "bare" in lacking else bare, None if "own" in lacking else own)
    assert found is not None
    return found


def seconds(one: Ladder) -> dict[tuple[str, ...], float]:
    return {part.names: part.step_s.value for part in one.parts}


def adds_up(one: Ladder) -> bool:
    whole_s, shares = (sum(getattr(part, name).value for part in one.parts) for name in ("step_s", "share"))
    return abs(whole_s - (one.step_s - one.ideal_s)) < SUM and abs(shares - one.lost.value) < SUM


def test_each_known_part_comes_back() -> None:
    found = of_strong()
    assert seconds(found) == pytest.approx({(name,): KNOWN_S[name] for name in PARTS}, abs=NEAR_S)
    shares = {part.names[0]: part.share.value for part in found.parts}
    assert shares == pytest.approx({name: KNOWN_S[name] / UPDATE_S for name in PARTS}, abs=1e-7)
    assert found.lost.value == pytest.approx(1 - FULL_BARE_S / 2 / UPDATE_S)
    assert (found.missing, found.against, found.launches) == ({}, "bare", 1) and adds_up(found)


def test_weak_scaling_has_no_part_of_the_batch() -> None:
    found = ladder(*_weak())
    assert found is not None and adds_up(found)
    assert seconds(found) == pytest.approx({(name,): KNOWN_S[name] for name in PARTS[1:]}, abs=NEAR_S)
    assert found.missing == {"batch": SAME_BATCH}


def _weak(**changes: Any) -> tuple[Result, Result, Result, Result]:
    result, bare, own = weak(**changes)
    return result, bare, bare, own


def test_what_is_lost_is_the_frames() -> None:
    result, bare, own = weak()
    found = ladder(result, bare, bare, own)
    assert found is not None
    cells = load.frame([result, bare, own], [Path()] * 3).to_dict("records")[0]
    ends = [found.lost.value, found.lost.low, found.lost.high]
    assert ends == [pytest.approx(1 - cells[f"efficiency_bare{end}"], abs=SUM) for end in ("", "_high", "_low")]
    columns = {"imbalance": "imbalance_s"}
    for name, column in columns.items():
        part = found.part(name)
        assert part is not None and part.step_s.value == cells[column]
    data, own_data = found.part("data"), update_breakdown.data(own)
    assert data is not None and own_data is not None
    assert data.step_s.value == pytest.approx(cells["data_s"] - own_data.value, abs=SUM)
    exposed = sum(part.step_s.value for part in found.parts if part.names[0] in ("imbalance", "transfer"))
    assert exposed == pytest.approx(cells["sync_exposed_s"], abs=SUM)


@pytest.mark.parametrize(
    ("lacking", "merged", "words"),
    [
        ("bare", ("batch", "overhead"), "baseline=ladder adds it in a sweep, by itself strategy=bare_torch gpus=1"),
        ("own", ("overhead", "contention"), "strategy=ddp gpus=1 scaling=weak train.batch_per_device=10"),
        ("bare own", ("batch", "overhead", "contention"), "no good run of bare_torch"),
    ],
)
def test_without_a_run_at_the_local_batch_its_neighbours_merge(lacking: str, merged: Any, words: str) -> None:
    found = of_strong(lacking)
    assert seconds(found)[merged] == pytest.approx(sum(KNOWN_S[name] for name in merged), abs=NEAR_S)
    assert words in " ".join(found.missing.values()) and adds_up(found)


def test_the_loading_of_the_rung_below_is_no_contention() -> None:
    """Without the strategy's own run, that of bare; of the full batch its share."""
    assert seconds(of_strong("own"))["overhead", "contention"] == pytest.approx(
        OWN_S - BARE_S + CONTENTION_S, abs=NEAR_S
    )
    assert seconds(of_strong("bare own"))["data",] == pytest.approx(LOADING_S, abs=NEAR_S)


def test_the_plain_rungs_where_one_devices_loading_is_not_known() -> None:
    result, full, bare, _ = strong()
    found = ladder(result, full, bare, alone("ddp", OWN_S, data_s=None))
    assert found is not None and adds_up(found)
    assert seconds(found)["data",] == pytest.approx(DATA_S + LOADING_S, abs=NEAR_S)
    assert seconds(found)["contention",] == pytest.approx(CONTENTION_S - DATA_S, abs=NEAR_S)
    assert "all loading" in found.missing["data"]


@pytest.mark.parametrize(
    ("probes", "merged"),
    [
        (None, ("contention", "data", "imbalance", "transfer", "drift")),
        ({"sync_off_s": [], "reasons": {"exposed": "weights are one copy"}}, ("contention", "transfer")),
        ({"fixed_batch_s": [], "reasons": {"data": "read within"}}, ("contention", "data")),
        ({"local_step_s": []}, ("imbalance", "transfer")),
    ],
)
def test_what_was_not_probed_merges_with_its_reason(probes: Any, merged: tuple[str, ...]) -> None:
    found = of_strong(probes=probes)
    assert merged in seconds(found) and adds_up(found)
    reasons = [] if probes is None else list(probes.get("reasons", {}).values())
    assert set(found.missing) & set(merged) and set(reasons) <= set(found.missing.values())


def test_without_probes_the_settings_say_why() -> None:
    assert found_words(False) == "no probes of an update (measure.probes=false): measure.probes=true takes it apart"
    assert "older version" in found_words(None) and "a rank has none" in found_words(True)


def found_words(asked: bool | None) -> str:
    result, bare, _, own = _weak(probes=None)
    result.spec["measure"] = {} if asked is None else {"probes": asked}
    found = ladder(result, bare, bare, own)
    assert found is not None
    return found.missing["drift"]


def test_one_device_has_overhead_alone() -> None:
    own = alone("ddp", OWN_S)
    found = ladder(own, alone("bare_torch", BARE_S), alone("bare_torch", BARE_S), own)
    assert found is not None and adds_up(found)
    assert seconds(found) == {("overhead",): pytest.approx(OWN_S - BARE_S, abs=NEAR_S)}
    assert found.missing == dict.fromkeys(("batch", *PARTS[2:]), ALONE)


def test_the_baseline_itself_has_none() -> None:
    bare = alone("bare_torch", BARE_S, baseline="bare_torch")
    assert ladder(bare, bare, bare, bare) is None
    assert ladder(record(status="failed", block_s=None), bare, bare, bare) is None
    assert ladder(together(), None, None, None) is None
    other = alone("bare_torch", BARE_S, baseline="bare_torch", run_id="elsewhere")
    assert ladder(other, bare, bare, other) is None  # the same strategy: nothing on top of it


def test_without_a_bare_run_the_strategy_itself_is_the_baseline() -> None:
    result, _, _, own = strong()
    full = alone("ddp", FULL_BARE_S, 20, scaling="strong")
    found = ladder(result, None, None, own, full)
    assert found is not None and adds_up(found)
    assert (found.against, found.missing["overhead"]) == ("self", NO_BARE)
    assert seconds(found)["batch",] == pytest.approx(OWN_S - FULL_BARE_S / 2, abs=NEAR_S)
    assert found.lost.value == pytest.approx(1 - FULL_BARE_S / 2 / UPDATE_S)
    assert ladder(own, None, None, own, own) is None


def test_a_strategy_that_is_its_own_baseline_has_no_overhead() -> None:
    own = alone("simulated", OWN_S, baseline="simulated")
    result = together(strategy="simulated", baseline="simulated")
    found = ladder(result, own, own, own)
    assert found is not None and adds_up(found)
    assert found.missing["overhead"] == NO_WRAPPER and found.part("overhead") is None
    assert seconds(found)["contention",] == pytest.approx(CONTENTION_S, abs=NEAR_S)


def test_replicas_that_exchange_nothing_wait_for_nobody() -> None:
    result, bare, own = weak(lockstep=False, probes={"sync_off_s": [], "local_step_s": [], "reasons": {"exposed": APART}})
    found = ladder(result, bare, bare, own)
    assert found is not None and adds_up(found)
    assert [part.names for part in found.parts] == [("overhead",), ("contention",), ("data",), ("drift",)]
    assert found.missing["imbalance"] == found.missing["transfer"] == APART


def test_a_batch_that_no_device_can_have() -> None:
    result, full, _, _ = strong()
    result = dataclasses.replace(result, scale=dataclasses.replace(result.scale, global_batch=21))
    found = ladder(result, full, None, None)
    assert found is not None and "21 samples on 2 devices are 10.5 each" in found.missing["batch"]


def test_intervals_are_those_of_what_a_part_is_made_of() -> None:
    """Overhead of two headlines, drift of a headline and of the probes' blocks together."""
    result, bare, own = weak()
    found = ladder(result, bare, bare, own)
    assert found is not None
    limits = [throughput.throughput(one)[1] for one in (bare, own)]
    reach = sum(((10 / one.low - 10 / one.high) / 2) ** 2 for one in limits if one) ** 0.5
    part = found.part("overhead")
    assert part is not None and part.step_s.low is not None and part.step_s.high is not None
    assert (part.step_s.high - part.step_s.low) / 2 == pytest.approx(reach, rel=1e-3)
    assert all(one.share.low is not None for one in found.parts)


def test_too_few_blocks_give_parts_without_limits() -> None:
    result, bare, own = weak()
    for one in own.ranks:
        one.block_s, one.block_samples = one.block_s[:5], one.block_samples[:5]
    found = ladder(result, bare, bare, own)
    assert found is not None and adds_up(found)
    none = {part.names[0] for part in found.parts if part.step_s.low is None}
    assert none == {"overhead", "contention"}


def launch(values: dict[tuple[str, ...], float], run_id: str = "a", missing: Any = None) -> Ladder:
    parts = tuple(Part(names, Figure(value), Figure(value / 10, 0, 1)) for names, value in values.items())
    total = sum(values.values())
    return Ladder(run_id, 2, 10.0, 10.0 - total, Figure(total / 10), parts, missing or {})


def test_launches_are_one_observation_each() -> None:
    found = pooled([launch({("data",): value, ("drift",): 1.0}) for value in (1.0, 2.0, 6.0)])
    data = found.part("data")
    assert data is not None and data.step_s.value == 3.0 and found.launches == 3 and adds_up(found)
    # sd 2.6458, t(0.975, 2) = 4.302653
    assert data.step_s.high == pytest.approx(3 + 4.302653 * 2.645751 / 3**0.5, rel=1e-6)
    assert found.lost.value == pytest.approx(0.4) and found.lost.low is not None and found.lost.low < 0.4
    drift = found.part("drift")
    assert drift is not None and drift.share == Figure(*[pytest.approx(0.1)] * 3)


def test_two_launches_have_no_limits_and_one_is_itself() -> None:
    one = launch({("data",): 1.0})
    assert pooled([one]) is one
    two = pooled([one, launch({("data",): 2.0})])
    assert two.parts == (Part(("data",), Figure(1.5), Figure(pytest.approx(0.15))),)


def test_a_rung_that_one_launch_lacks_merges_in_all() -> None:
    whole = launch({("overhead",): 1.0, ("contention",): 2.0, ("data",): 3.0}, "first")
    lacks = launch({("overhead", "contention"): 4.0, ("data",): 3.0}, "second", {"overhead": "no run"})
    found = pooled([whole, lacks, whole])
    assert seconds(found) == {("overhead", "contention"): pytest.approx(10 / 3), ("data",): 3.0}
    assert (found.run_id, found.missing) == ("first", {"overhead": "no run"}) and adds_up(found)


FEWER = st.fixed_dictionaries(
    {},
    optional={
        "sync_on_s": st.lists(st.floats(1e-4, 1.0), max_size=9),
        "sync_off_s": st.lists(st.floats(1e-4, 1.0), max_size=9),
        "fixed_batch_s": st.lists(st.floats(1e-4, 1.0), max_size=9),
        "local_step_s": st.just([]),
        "steps": st.sampled_from([None, 1, 7]),
    },
)


@given(FEWER, st.sampled_from(["", "bare", "own", "bare own"]), st.booleans())
def test_parts_always_add_up_to_what_is_lost(probes: dict[str, Any], lacking: str, lockstep: bool) -> None:
    found = of_strong(lacking, probes=probes, lockstep=lockstep)
    scale = 1 + sum(abs(part.share.value) for part in found.parts)
    assert abs(sum(part.share.value for part in found.parts) - found.lost.value) < 1e-11 * scale
    assert len({name for part in found.parts for name in part.names}) == (7 if lockstep else 5)
    assert pooled([found, found, found]).lost.value == pytest.approx(found.lost.value)
