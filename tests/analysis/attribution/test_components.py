"""The estimates of a step that come from probes."""

import pytest

from scalebench.analysis.attribution.lost_efficiency import estimate_from_probes
from tests.builders.attribution_runs import probe_series, two_device_run


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


@pytest.mark.parametrize(("probes", "names"), [
    (None, set()), ({"steps": None, "local_step_s": []}, set()),
    ({"sync_off_s": []}, {"fixed_batch", "data", "imbalance", "probed"}),
    ({"fixed_batch_s": []}, {"fed", "imbalance", "exposed", "probed"}),
    ({"sync_off_s": [], "fixed_batch_s": [], "local_step_s": []}, {"fed", "probed"}),
    *((dict.fromkeys(("sync_on_s", "sync_off_s", "fixed_batch_s"), few), {"imbalance"}) for few in ([], [0.01])),
])  # fmt: skip
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
