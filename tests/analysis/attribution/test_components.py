"""Splitting lost time into parts, whatever was measured, and the estimates that come from probes."""

import itertools

import pytest

from scalebench.analysis.attribution.components import (
    LOSS_PARTS,
    estimate_from_probes,
    split_lost_time,
)
from tests.builders.attribution_runs import probe_series, two_device_run

ALL = ("ideal", "step", "bare", "self", "self_data", "fixed_batch", "data", "imbalance", "exposed", "probed")
OPTIONAL = ("bare", "self", "self_data", "imbalance", "exposed")
LEVELS = (("fixed_batch", "data", "probed"), ("fed", "probed"), ())
INDEPENDENT = tuple(name for name in LOSS_PARTS if name not in ("imbalance", "communication"))


def possible_measurements():
    """Return all sets of names that can be measured together: exposed sync only with a level that it adds to."""
    optional = [names for n in range(6) for names in itertools.combinations(OPTIONAL, n)]
    sets = [frozenset({"ideal", "step", *names, *level}) for names in optional for level in LEVELS]
    return [names for names in sets if "probed" in names or not names & {"exposed", "self_data"}]


def test_each_part_has_its_definition_if_everything_was_measured():
    assert split_lost_time(LOSS_PARTS, ALL) == [
        (("batch",), {"bare": 1, "ideal": -1}),
        (("wrapper",), {"self": 1, "bare": -1}),
        (("contention",), {"fixed_batch": 1, "self_data": 1, "self": -1}),
        (("data",), {"data": 1, "self_data": -1}),
        (("imbalance",), {"imbalance": 1}),
        (("communication",), {"exposed": 1, "imbalance": -1}),
        (("drift",), {"step": 1, "probed": -1}),
    ]
    # Samples that are read within the step count as contention.
    measured = (set(ALL) - {"fixed_batch", "data", "self_data"}) | {"fed"}
    assert (("contention", "data"), {"fed": 1, "self": -1}) in split_lost_time(LOSS_PARTS, measured)
    # Contention is less by the loading of one device if that was not measured.
    parts = dict(split_lost_time(LOSS_PARTS, set(ALL) - {"self_data"}))
    assert parts["contention",] == {"fixed_batch": 1, "self": -1} and parts["data",] == {"data": 1}


@pytest.mark.parametrize(
    "possible", [LOSS_PARTS, LOSS_PARTS[1:], LOSS_PARTS[2:], INDEPENDENT, ("batch", *LOSS_PARTS[2:]), ("wrapper",)]
)
def test_parts_are_in_order_and_add_up_for_all_measurements(possible):
    measurable = {"ideal", "step"} if possible == ("wrapper",) else {*ALL, "fed"}
    measurable -= {"exposed", "imbalance"} if possible == INDEPENDENT else set()
    for measured in {names & measurable for names in possible_measurements()}:
        values = {name: 1.37 * n**1.5 + 0.1 for n, name in enumerate(sorted(measured))}
        if "probed" in measured:
            values["probed"] = sum(values.get(name, 0.0) for name in ("fixed_batch", "fed", "data", "exposed"))
        parts = split_lost_time(possible, measured)
        firsts = [LOSS_PARTS.index(names[0]) for names, _ in parts]
        assert firsts == sorted(firsts)
        assert sorted(name for names, _ in parts for name in names) == sorted(possible)
        total = sum(factor * values[name] for _, terms in parts for name, factor in terms.items())
        assert total == pytest.approx(values["step"] - values["ideal"], abs=1e-9)


def test_the_sum_of_all_probes_has_the_interval_of_its_own_blocks():
    """Blocks of which one variant is slow when another is quick: their sum hardly scatters."""
    slow, quick = [probe_series(0.010, wobble) for wobble in (0.01, -0.01)]
    estimates = estimate_from_probes(
        two_device_run(probes={"sync_on_s": slow, "sync_off_s": quick, "fixed_batch_s": slow})
    )
    assert estimates["probed"].value == pytest.approx(0.010)
    assert estimates["data"].high - estimates["data"].low > 1e-5
    only_slow = estimate_from_probes(two_device_run(probes={"sync_on_s": slow}))
    assert estimates["probed"].high == pytest.approx(only_slow["probed"].high)


@pytest.mark.parametrize(
    ("probes", "names"),
    [
        (None, set()),
        ({"sync_off_s": []}, {"fixed_batch", "data", "imbalance", "probed"}),
        ({"fixed_batch_s": []}, {"fed", "imbalance", "exposed", "probed"}),
        ({"sync_off_s": [], "fixed_batch_s": [], "local_step_s": []}, {"fed", "probed"}),
        ({"sync_on_s": [], "sync_off_s": [], "fixed_batch_s": []}, {"imbalance"}),
        ({"sync_on_s": [0.01], "sync_off_s": [0.01], "fixed_batch_s": [0.01]}, {"imbalance"}),
        ({"steps": None, "local_step_s": []}, set()),
    ],
)
def test_there_is_no_estimate_of_what_was_not_probed(probes, names):
    assert set(estimate_from_probes(two_device_run(probes=probes))) == names
    result = two_device_run()
    result.ranks[1].probes = None
    assert estimate_from_probes(result) == {}, "one rank has none"


def test_the_level_is_that_of_the_median_rank_and_includes_sync_that_cannot_be_switched_off():
    result = two_device_run()
    for number, rank in enumerate(result.ranks):
        rank.probes.fixed_batch_s = probe_series(0.01 + 0.002 * number)
    assert estimate_from_probes(result)["fixed_batch"].value == pytest.approx(0.011)
    series = {"sync_on_s": probe_series(0.012), "fixed_batch_s": probe_series(0.010)}
    estimates = estimate_from_probes(two_device_run(probes={"sync_off_s": [], **series}))
    assert [estimates[name].value for name in ("fixed_batch", "probed")] == pytest.approx([0.010, 0.012])
    estimates = estimate_from_probes(two_device_run(probes={"fixed_batch_s": []}))
    assert estimates["fed"].value == pytest.approx(estimates["probed"].value - estimates["exposed"].value)
