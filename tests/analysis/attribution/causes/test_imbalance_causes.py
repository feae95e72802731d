"""Causes of imbalance and of changed conditions: reported where the figures say so, and not where they do not."""

import dataclasses

import pytest

from scalebench.analysis.attribution.causes import AttributedRun
from scalebench.analysis.attribution.causes import imbalance as checks
from scalebench.analysis.attribution.lost_efficiency import attribute_run
from scalebench.analysis.attribution.reference_runs import ReferenceRuns
from scalebench.core.result import DeviceMonitorRecord, MonitorRecord
from tests.builders.attribution_runs import STEPS, weak_scaling_runs

SLOW = [[0.010] * 20, [0.013] * 20]
TURNS = [[0.010, 0.013] * 10, [0.013, 0.010] * 10]


def attributed(local_s=None, later_s=0.0, **changes):
    """`local_s`: single updates of each rank; `later_s`: what an update of the headline takes more."""
    result, bare, own = weak_scaling_runs(**changes)
    for number, one in enumerate(result.ranks):
        one.block_s = [seconds + STEPS * later_s for seconds in one.block_s]
        if local_s is not None:
            one.probes.local_step_s = [local_s[number]]
    references = ReferenceRuns(bare, bare, own)
    attribution = attribute_run(result, references)
    return AttributedRun(attribution, result, references)


def test_one_device_is_always_the_slowest():
    cause = checks.check_slow_device(attributed(SLOW))
    assert cause.part == "imbalance"
    assert (
        cause.evidence == "device 1 is the slowest in 100 % of the steps: 13.0 ms by itself, the median device 11.5 ms"
    )
    assert checks.check_random_delays(attributed(SLOW)) is None and checks.check_slow_device(attributed(TURNS)) is None


def test_devices_of_one_process():
    one = attributed()
    first, second = one.result.ranks
    first.probes.local_step_s, second.probes.local_step_s = [[0.01] * 9, [0.02] * 9], [[0.01] * 9, [0.01] * 9]
    cause = checks.check_slow_device(one)
    assert cause.evidence.startswith("device 1 is the slowest in 100 %")


def test_another_device_is_the_slowest_each_time():
    cause = checks.check_random_delays(attributed(TURNS, monitor=MonitorRecord(cpu_cores_others_mean=0.53)))
    assert cause.evidence == "no device is the slowest in more than 50 % of the steps; other programs use 0.53 cores"
    cause = checks.check_random_delays(attributed(TURNS))
    assert "other programs" not in cause.evidence


def test_equal_devices_have_no_cause():
    equal = [[0.010] * 20, [0.0101] * 20]
    assert checks.check_slow_device(attributed(equal)) is None and checks.check_random_delays(attributed(equal)) is None
    assert checks.check_slow_device(attributed(probes={"local_step_s": []})) is None


def test_unequal_clocks():
    devices = [DeviceMonitorRecord(0, sm_clock_mhz_mean=1410.0), DeviceMonitorRecord(3, sm_clock_mhz_mean=1200.0)]
    cause = checks.check_unequal_clocks(
        attributed(SLOW, flags=["unequal_clocks"], monitor=MonitorRecord(devices=devices))
    )
    assert cause.evidence == "flagged unequal_clocks, GPU 3 at 1200 MHz, GPU 0 at 1410 MHz"
    cause = checks.check_unequal_clocks(attributed(SLOW, flags=["throttled"]))
    assert cause.evidence == "flagged throttled"
    assert checks.check_unequal_clocks(attributed(SLOW)) is None


@pytest.mark.parametrize("later_s", [0.002, -0.002])
def test_conditions_that_changed_before_the_probes(later_s):
    monitor = MonitorRecord(cpu_cores_others_mean=1.5, swap_in_bytes=2_000_000, swap_out_bytes=1_000_000)
    cause = checks.check_changed_conditions(
        attributed(later_s=later_s, flags=["busy_machine", "swapping"], monitor=monitor)
    )
    assert cause.part == "drift"
    assert cause.evidence == "flagged busy_machine, swapping, 1.5 cores in use by others, 3.00 MB swapped"
    assert checks.check_changed_conditions(attributed(later_s=later_s)) is None


def test_no_drift_has_no_cause():
    assert checks.check_changed_conditions(attributed(flags=["busy_machine"])) is None


def test_flags_added_on_load_count():
    one = attributed(later_s=0.002)
    row = {"run_id": one.attribution.run_id, "flags": "target_missed drifts", "status": "ok"}
    cause = checks.check_changed_conditions(dataclasses.replace(one, rows=[row]))
    assert "the level of the blocks changes" in cause.cause
