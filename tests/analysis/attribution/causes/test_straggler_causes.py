"""Causes of waiting, and of what changed meanwhile: told where the figures say so, and not where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from scalebench.analysis.attribution.causes import Case
from scalebench.analysis.attribution.causes import stragglers as checks
from scalebench.analysis.attribution.ladder import ladder
from scalebench.core.result import DeviceMonitor, Monitor
from tests.builders.attribution_runs import STEPS, weak

SLOW = [[0.010] * 20, [0.013] * 20]
TURNS = [[0.010, 0.013] * 10, [0.013, 0.010] * 10]


def case(local_s: list[list[float]] | None = None, later_s: float = 0.0, **changes: Any) -> Case:
    """`local_s`: single updates of each rank; `later_s`: what an update of the headline takes more."""
    result, bare, own = weak(**changes)
    for number, one in enumerate(result.ranks):
        one.block_s = [seconds + STEPS * later_s for seconds in one.block_s]
        if local_s is not None:
            assert one.probes is not None
            one.probes.local_step_s = [local_s[number]]
    found = ladder(result, bare, bare, own)
    assert found is not None
    return Case(found, result, bare, bare, own)


def test_one_slow_device() -> None:
    cause = checks.slow_device(case(SLOW))
    assert cause is not None and cause.part == "imbalance"
    assert (
        cause.evidence == "device 1 is the slowest in 100 % of the updates: 13 ms by itself, the median device 11.5 ms"
    )
    assert checks.chance(case(SLOW)) is None and checks.slow_device(case(TURNS)) is None


def test_devices_of_one_process() -> None:
    one = case()
    first, second = one.result.ranks
    assert first.probes is not None and second.probes is not None
    first.probes.local_step_s, second.probes.local_step_s = [[0.01] * 9, [0.02] * 9], [[0.01] * 9, [0.01] * 9]
    cause = checks.slow_device(one)
    assert cause is not None and cause.evidence.startswith("device 1 is the slowest in 100 %")


def test_another_one_each_time() -> None:
    cause = checks.chance(case(TURNS, monitor=Monitor(cpu_cores_others_mean=0.53)))
    assert cause is not None
    assert cause.evidence == "no device is the slowest in more than 50 % of the updates; other programs use 0.53 cores"
    told = checks.chance(case(TURNS))
    assert told is not None and "other programs" not in told.evidence


def test_nobody_waits() -> None:
    equal = [[0.010] * 20, [0.0101] * 20]
    assert checks.slow_device(case(equal)) is None and checks.chance(case(equal)) is None
    assert checks.slow_device(case(probes={"local_step_s": []})) is None


def test_unequal_clocks() -> None:
    devices = [DeviceMonitor(0, sm_clock_mhz_mean=1410.0), DeviceMonitor(3, sm_clock_mhz_mean=1200.0)]
    cause = checks.unequal_clocks(case(SLOW, flags=["unequal_clocks"], monitor=Monitor(devices=devices)))
    assert cause is not None
    assert cause.evidence == "flagged unequal_clocks, GPU 3 at 1200 MHz, GPU 0 at 1410 MHz"
    told = checks.unequal_clocks(case(SLOW, flags=["throttled"]))
    assert told is not None and told.evidence == "flagged throttled"
    assert checks.unequal_clocks(case(SLOW)) is None


@pytest.mark.parametrize("later_s", [0.002, -0.002])
def test_a_machine_that_changed(later_s: float) -> None:
    monitor = Monitor(cpu_cores_others_mean=1.5, swap_in_bytes=2_000_000, swap_out_bytes=1_000_000)
    cause = checks.changed(case(later_s=later_s, flags=["busy_machine", "swapping"], monitor=monitor))
    assert cause is not None and cause.part == "drift"
    assert cause.evidence == "flagged busy_machine, swapping, 1.5 cores in use by others, 3 MB swapped"
    assert checks.changed(case(later_s=later_s)) is None


def test_no_drift_has_no_cause() -> None:
    assert checks.changed(case(flags=["busy_machine"])) is None


def test_flags_that_only_the_frame_knows() -> None:
    one = case(later_s=0.002)
    row = {"run_id": one.ladder.run_id, "flags": "target_missed drifts", "status": "ok"}
    cause = checks.changed(Case(one.ladder, one.result, rows=[row]))
    assert cause is not None and "the level of the blocks changes" in cause.cause
