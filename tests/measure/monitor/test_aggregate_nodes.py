"""Artificial series of several nodes, each by its own clock, combined into the figures of one run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scalebench.core.machine.gpus import Gpu
from scalebench.core.result import MonitorRecord, RankRecord
from scalebench.core.run_folder import monitor_path
from scalebench.core.spec import RankPlacement, RunSpec
from scalebench.measure.monitor import aggregate
from scalebench.measure.monitor.aggregate import MonitorPart
from scalebench.measure.monitor.time_series import TimeSeries
from scalebench.measure.nodes import NodeReport
from tests.builders.runs import MACHINE, rank, simulated_spec
from tests.measure.monitor.builders import BEGIN_S, Curve, series

AHEAD_S = 15.0  # of node 1's clock: by that of node 0 its measured phase would be another part of its series
GPUS = [Gpu(index, "samples up", f"GPU-{index}", 2**35, 1410, 1215, 400.0, 0, None) for index in range(3)]


def columns(node: int, util_share: float, sm_clock_mhz: float = 1400.0) -> dict[str, Curve]:
    """Return the columns of a node with 4 x (node + 1) cores, half of them busy; its two GPUs are NVML's 1 and 2."""
    cores, ranks = 4.0 * (node + 1), [2 * node, 2 * node + 1]
    at = AHEAD_S * node
    values: dict[str, Curve] = {
        "cpu/cores": cores, "cpu/busy_s": lambda t: cores / 2 * t, "cpu/programs_s": lambda t: 1.05 * t,
        "ours/cpu_s": lambda t: 1.0 * t, "memory/available_bytes": 1e9 * (node + 1), "swap/in_bytes": 0.0,
        "swap/out_bytes": 0.0, "net:eth0/sent_bytes": lambda t: 1e6 * (node + 1) * t, "net:eth0/received_bytes": 0.0,
        "net:lo/sent_bytes": 0.0, "disk/read_bytes": 0.0, "disk/written_bytes": 0.0,
    }  # fmt: skip
    for number in ranks:
        values |= {f"process:{number}/cpu_s": lambda t: 0.5 * t, f"process:{number}/rss_bytes": 1e8}
    for index in (1, 2):
        values |= {
            f"gpu{index}/util_share": lambda t: util_share if 10 + at <= t <= 20 + at else 0.0,
            f"gpu{index}/power_w": 100.0 * (node + 1), f"gpu{index}/sm_clock_mhz": sm_clock_mhz,
            f"gpu{index}/mem_clock_mhz": 1200.0,
        }  # fmt: skip
    return values


def measured_rank(number: int) -> RankRecord:
    node = number // 2
    begin_s = BEGIN_S + 10.0 + AHEAD_S * node
    marks_s = {"warmup": begin_s - 5.0, "measure": begin_s, "evaluate": begin_s + 10.0}
    return rank(number, hostname=f"n{node}", marks_s=marks_s, clock_offset_s=AHEAD_S if node else None)


def spec_of(device: str = "cuda") -> RunSpec:
    places = [RankPlacement(r, r % 2, r // 2, [r % 2], [], 1) for r in range(4)]
    spec = dataclasses.replace(simulated_spec(), nodes=2, places=places, device=device)
    spec.config.hardware.hosts = ["n0:2", "n1:2"]
    return spec


REPORTS = [
    NodeReport(node, 2 * node, dataclasses.replace(MACHINE, hostname=f"n{node}", gpus=GPUS), [1, 2], over=True)
    for node in range(2)
]


def combine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    samples: list[TimeSeries | None],
    reports: list[NodeReport | None] | None = None,
    device: str = "cuda",
) -> MonitorPart:
    by_path = {}
    for node, each in enumerate(samples):
        if each is not None:
            path = monitor_path(tmp_path, node)
            path.touch()
            by_path[path] = each
    monkeypatch.setattr(aggregate, "read_series", by_path.__getitem__)
    ranks = [measured_rank(number) for number in range(4)]
    return aggregate.make_monitor_part(
        spec_of(device), tmp_path, ranks, MACHINE, None, REPORTS if reports is None else reports
    )


def both(**changes: float) -> list[TimeSeries | None]:
    return [series(columns(0, 0.9), end_s=60.0), series(columns(1, 0.5, **changes), end_s=60.0)]


def test_figures_of_two_nodes_are_combined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = combine(tmp_path, monkeypatch, both())
    m = result.monitor
    assert (m.file, m.reason, result.flags) == ("monitor.parquet", None, [])
    assert [(d.node, d.index) for d in m.devices] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [d.gpu_util_mean for d in m.devices] == pytest.approx([0.9, 0.9, 0.5, 0.5])  # each by its own clock
    assert m.gpu_util_mean == pytest.approx(0.7) and m.gpu_power_w_mean == pytest.approx(600.0)
    assert (m.energy_j, m.energy_from) == (pytest.approx(6000.0), "power")
    assert m.cpu_util_mean == pytest.approx(0.5) and m.cpu_util_ours_mean == pytest.approx(2.0 / 12)
    assert m.cpu_cores_others_mean == pytest.approx(0.1)
    assert (m.rss_bytes_max, m.memory_available_bytes_min) == (400_000_000, 1_000_000_000)
    assert m.net_sent_bytes_per_s == pytest.approx(3e6) and m.swap_in_bytes == 0
    assert m.infiniband_sent_bytes_per_s is None


@pytest.mark.parametrize("lost", ["series", "facts"])
def test_a_missing_part_makes_a_figure_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    if lost == "series":
        killed = dataclasses.replace(REPORTS[1], monitor_reason="the monitor was killed by SIGKILL")
        m = combine(tmp_path, monkeypatch, [both()[0], None], [REPORTS[0], killed]).monitor
        assert m.reason == "node 1: the monitor was killed by SIGKILL"
    else:
        m = combine(tmp_path, monkeypatch, both(), [REPORTS[0], None]).monitor
        assert m.reason == "node 1: the agent of its first rank reported no machine"
    assert [(d.node, d.index, d.sm_clock_mhz_min) for d in m.devices] == [(0, 1, 1400.0), (0, 2, 1400.0)]
    assert MonitorRecord(file=m.file, reason=m.reason, devices=m.devices) == m


def test_a_node_without_gpu_figures_makes_those_of_the_run_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = dataclasses.replace(REPORTS[1], visible_gpus=[], monitor_reason="no GPU figures: no NVML")
    m = combine(tmp_path, monkeypatch, both(), [REPORTS[0], blind]).monitor
    assert (m.gpu_util_mean, m.energy_j, len(m.devices)) == (None, None, 2)
    assert m.cpu_util_mean == pytest.approx(0.5) and m.reason == "node 1: no GPU figures: no NVML"
    blind_too = dataclasses.replace(REPORTS[0], visible_gpus=[])
    m = combine(tmp_path, monkeypatch, both(), [blind_too, REPORTS[1]]).monitor
    assert (m.gpu_util_mean, len(m.devices)) == (None, 2)


def test_a_run_on_cores_has_no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    m = combine(tmp_path, monkeypatch, both(), device="cpu").monitor
    assert m.devices == [] and m.gpu_util_mean is None and m.cpu_util_mean == pytest.approx(0.5)


def test_a_common_reason_of_all_nodes_is_given_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [dataclasses.replace(facts, monitor_reason="measure.monitor=false") for facts in REPORTS]
    assert combine(tmp_path, monkeypatch, [None, None], reports).monitor == MonitorRecord(
        reason="measure.monitor=false"
    )


def test_flags_of_all_nodes_are_combined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = columns(1, 0.5) | {"cpu/programs_s": lambda t: 3.0 * t, "swap/in_bytes": lambda t: 1e7 * t}
    result = combine(tmp_path, monkeypatch, [both()[0], series(busy, end_s=60.0)])
    assert result.flags == ["busy_machine", "swapping"]
    assert combine(tmp_path, monkeypatch, both(sm_clock_mhz=1300.0)).flags == ["unequal_clocks"]


def test_the_time_of_a_lost_gpu_is_by_the_clock_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = series(columns(1, 0.5) | {"gpu2/lost": 1.0}, begin_s=0.0, end_s=60.0)
    result = combine(tmp_path, monkeypatch, [both()[0], lost])
    assert result.flags == ["gpu_lost"]
    assert [d.lost_at_s for d in result.monitor.devices] == [None, None, None, BEGIN_S - AHEAD_S]
