"""How the lost time divides among the parts, whatever was measured; and what the probes tell."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import update_breakdown
from scalebench.analysis.attribution.components import PARTS, of_probes, of_updates, share_of_device, split
from tests.builders.attribution_runs import STEPS, alone, series, together

EVERYTHING = ("ideal", "update", "bare", "own", "own_data", "held", "data", "imbalance", "exposed", "probed")
OPTIONAL = ("bare", "own", "own_data", "imbalance", "exposed")
LEVELS: tuple[tuple[str, ...], ...] = (("held", "data", "probed"), ("fed", "probed"), ())
APART = tuple(name for name in PARTS if name not in ("imbalance", "transfer"))


def known_sets() -> list[frozenset[str]]:
    """All that can be known together: exposed sync only where there is a level to stand on."""
    some = [names for n in range(6) for names in itertools.combinations(OPTIONAL, n)]
    sets = [frozenset({"ideal", "update", *names, *level}) for names in some for level in LEVELS]
    return [one for one in sets if "probed" in one or not one & {"exposed", "own_data"}]


def test_everything_measured_gives_each_part_by_its_definition() -> None:
    assert split(PARTS, EVERYTHING) == [
        (("batch",), {"bare": 1, "ideal": -1}),
        (("overhead",), {"own": 1, "bare": -1}),
        (("contention",), {"held": 1, "own_data": 1, "own": -1}),
        (("data",), {"data": 1, "own_data": -1}),
        (("imbalance",), {"imbalance": 1}),
        (("transfer",), {"exposed": 1, "imbalance": -1}),
        (("drift",), {"update": 1, "probed": -1}),
    ]


@pytest.mark.parametrize(
    ("lacking", "merged"),
    [
        ({"bare"}, ("batch", "overhead")),
        ({"own"}, ("overhead", "contention")),
        ({"bare", "own"}, ("batch", "overhead", "contention")),
        ({"imbalance"}, ("imbalance", "transfer")),
        ({"exposed"}, ("contention", "transfer")),
        ({"exposed", "imbalance"}, ("contention", "imbalance", "transfer")),
        ({"held", "data", "imbalance", "exposed", "probed"}, ("contention", "data", "imbalance", "transfer", "drift")),
    ],
)
def test_neighbours_of_a_rung_that_is_missing_merge(lacking: set[str], merged: tuple[str, ...]) -> None:
    names = [part for part, _ in split(PARTS, set(EVERYTHING) - lacking)]
    assert merged in names and sum(len(part) for part in names) == len(PARTS)


def test_samples_read_within_the_update_are_in_contention() -> None:
    known = (set(EVERYTHING) - {"held", "data", "own_data"}) | {"fed"}
    assert (("contention", "data"), {"fed": 1, "own": -1}) in split(PARTS, known)


def test_loading_of_one_device_that_is_not_known_gives_the_plain_rungs() -> None:
    found = dict(split(PARTS, set(EVERYTHING) - {"own_data"}))
    assert found["contention",] == {"held": 1, "own": -1} and found["data",] == {"data": 1}


@pytest.mark.parametrize("wanted", [PARTS, PARTS[1:], PARTS[2:], APART, ("batch", *PARTS[2:]), ("overhead",)])
def test_parts_are_each_named_once_and_add_up(wanted: tuple[str, ...]) -> None:
    """Whatever is known: all sets of it."""
    told = {"ideal", "update"} if wanted == ("overhead",) else {*EVERYTHING, "fed"}
    told -= {"exposed", "imbalance"} if wanted == APART else set()
    for known in {one & told for one in known_sets()}:
        values = {name: 1.37 * n**1.5 + 0.1 for n, name in enumerate(sorted(known))}
        if "probed" in known:  # the level that these make up
            values["probed"] = sum(values[name] for name in ("held", "fed", "data", "exposed") if name in known)
        found = split(wanted, known)
        assert sorted(name for names, _ in found for name in names) == sorted(wanted)
        total = sum(factor * values[name] for _, terms in found for name, factor in terms.items())
        assert total == pytest.approx(values["update"] - values["ideal"], abs=1e-9)


@given(st.sampled_from(known_sets()))
def test_parts_stand_in_their_order(known: frozenset[str]) -> None:
    firsts = [PARTS.index(names[0]) for names, _ in split(PARTS, known)]
    assert firsts == sorted(firsts)


def test_what_probes_tell_is_what_the_frame_has() -> None:
    result = together()
    found, columns = of_probes(result), update_breakdown.cells(result, 0.01)
    for name, column in {"data": "data_s", "imbalance": "imbalance_s", "exposed": "sync_exposed_s"}.items():
        one = found[name]
        assert (one.value, one.low, one.high) == tuple(columns[f"{column}{end}"] for end in ("", "_low", "_high"))
    assert found["probed"].value == pytest.approx(
        sum(found[name].value for name in ("held", "data", "exposed")), abs=1e-12
    )


def test_the_level_of_all_probes_has_the_interval_of_their_blocks_together() -> None:
    """Blocks of which one condition is slow when another is quick: their sum hardly scatters."""
    slow, quick = [series(0.010, 0.01), series(0.010, -0.01)]
    found = of_probes(together(probes={"sync_on_s": slow, "sync_off_s": quick, "fixed_batch_s": slow}))
    assert found["probed"].value == pytest.approx(0.010)
    low, high = found["data"].low, found["data"].high
    assert low is not None and high is not None and high - low > 1e-5
    assert found["probed"].high == pytest.approx(of_probes(together(probes={"sync_on_s": slow}))["probed"].high)


def test_a_level_is_that_of_the_median_rank() -> None:
    result = together()
    for number, one in enumerate(result.ranks):
        assert one.probes is not None
        one.probes.fixed_batch_s = series(0.01 + 0.002 * number)
    assert of_probes(result)["held"].value == pytest.approx(0.011)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"sync_off_s": []}, {"held", "data", "imbalance", "probed"}),
        ({"fixed_batch_s": []}, {"fed", "imbalance", "exposed", "probed"}),
        ({"sync_off_s": [], "fixed_batch_s": [], "local_step_s": []}, {"fed", "probed"}),
        ({"sync_on_s": [], "sync_off_s": [], "fixed_batch_s": []}, {"imbalance"}),
        ({"sync_on_s": [0.01], "sync_off_s": [0.01], "fixed_batch_s": [0.01]}, {"imbalance"}),
        ({"steps": None, "local_step_s": []}, set()),
    ],
)
def test_what_was_not_probed_is_not_told(changes: dict[str, object], names: set[str]) -> None:
    assert set(of_probes(together(probes=changes))) == names


def test_without_the_switch_the_level_is_that_with_the_exchange_on() -> None:
    on, fixed = series(0.012), series(0.010)
    found = of_probes(together(probes={"sync_off_s": [], "sync_on_s": on, "fixed_batch_s": fixed}))
    assert found["held"].value == pytest.approx(0.010) and found["probed"].value == pytest.approx(0.012)
    found = of_probes(together(probes={"fixed_batch_s": []}))
    assert found["fed"].value == pytest.approx(found["probed"].value - found["exposed"].value)


def test_blocks_that_only_some_conditions_have_count_in_their_own() -> None:
    found = of_probes(together(probes={"sync_on_s": series(0.02, 0.05)[:3]}))
    one = found["probed"]
    assert one.value == pytest.approx(sum(found[name].value for name in ("held", "data", "exposed")), abs=1e-12)
    assert one.low is not None and one.high is not None and one.low + one.high == pytest.approx(2 * one.value)


def test_a_rank_without_probes() -> None:
    result = together()
    result.ranks[1].probes = None
    assert of_probes(result) == {}


def test_no_probes_tell_nothing() -> None:
    assert of_probes(together(probes=None)) == {}


def test_seconds_of_a_devices_share() -> None:
    result = alone("ddp", 0.01, batch=8)
    found = of_updates(result, 4)
    assert share_of_device(result) == 8 and found is not None
    assert found.value == pytest.approx(0.005) and found.low is not None and found.low < 0.005
    assert result.ranks[0].block_steps == STEPS
