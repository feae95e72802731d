"""What a run used, in words; what was not measured is not there."""

from __future__ import annotations

import dataclasses

import pytest

from scalebench.report.terminal import USAGE_ROWS, list_usage
from scalebench.results import Monitor, RankRecord
from tests.helpers import rank, record


def of(monitor: Monitor, ranks: list[RankRecord] | None = None) -> dict[str, str]:
    return dict(list_usage(record(monitor=monitor, ranks=ranks or [rank(0, [0.1])])))


def test_nothing_measured_is_nothing_said() -> None:
    assert of(Monitor()) == {}


def test_all_figures_have_their_words_and_units() -> None:
    monitor = Monitor(
        cpu_util_mean=0.9, cpu_util_ours_mean=0.75, cpu_cores_others_mean=0.25, rss_bytes_max=2_500_000_000,
        rss_anon_bytes_max=10**9, swap_in_bytes=0, swap_out_bytes=4096, gpu_util_mean=0.5, gpu_power_w_mean=612.3,
        energy_j=1.5, gpu_temperature_c_max=71.0, sm_clock_mhz_mean=1410.0, sm_clock_mhz_min=1395.0,
        throttle_reasons=["sw_power_cap", "hw_slowdown"], net_sent_bytes_per_s=125e6, disk_read_bytes_per_s=0.0,
    )  # fmt: skip
    assert of(monitor) == {
        "processor cores": "90.0 % of those the run may use were busy, 75.0 % with the run's processes, "
        "other programs took 0.25 cores' worth",
        "memory at most": "2.50 GB, all ranks together, 1.00 GB without mapped files",
        "swapped": "0 B in, 4.10 kB out",
        "GPUs": "busy 50.0 % of the time, 612 W, all together, 1.50 J, 71.0 degrees C at most",
        "GPU clocks": "cores 1,410 MHz, at least 1,395, held back by sw_power_cap hw_slowdown",
        "network": "125 MB/s sent",
        "disks": "0 B/s read",
    }


def test_clocks_that_nothing_held_back() -> None:
    assert of(Monitor(throttle_reasons=[])) == {"GPU clocks": "not throttled"}


def test_every_row_names_fields_of_the_record() -> None:
    named = [name for parts in USAGE_ROWS.values() for name, _ in parts]
    known = {field.name for field in dataclasses.fields(Monitor)}
    assert set(named) <= known and len(named) == len(set(named))
    assert known - set(named) == {"file", "reason", "energy_from", "devices"}


@pytest.mark.parametrize("second", [None, 3 * 10**8])
def test_peaks_are_those_of_the_largest_rank_if_all_are_known(second: int | None) -> None:
    ranks = [
        rank(0, [0.1], rss_peak_bytes=5 * 10**8, rss_anon_peak_bytes=2 * 10**8, peak_memory_bytes=[10**9, 2 * 10**9]),
        rank(1, [0.1], rss_peak_bytes=6 * 10**8, rss_anon_peak_bytes=second, peak_memory_bytes=[None]),
    ]
    own = "" if second is None else ", 300 MB without mapped files"
    assert of(Monitor(), ranks) == {"memory of a rank at most": f"600 MB{own}"}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (306_882, "1.23 MB of weights, gradients and optimizer's state, 8.0 B a parameter"),
        (None, None),
    ],
)
def test_state_is_that_of_the_fullest_device_if_all_are_known(second: int | None, said: str | None) -> None:
    """Of 153,441 parameters."""
    ranks = [rank(0, [0.1], state_bytes=[1_227_528]), rank(1, [0.1], state_bytes=[second])]
    assert of(Monitor(), ranks).get("state of a device") == said
    assert "state of a device" not in of(Monitor(), [ranks[0], rank(1, [0.1])])
