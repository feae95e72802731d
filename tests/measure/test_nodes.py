"""The report of a node and its part of the record; clock offsets in a simulation with known clocks and delays."""

import dataclasses
import platform
import random
import socket
from types import SimpleNamespace

import numpy as np
import pytest

from scalebench.core.json_files import write_json
from scalebench.core.machine import machine
from scalebench.core.machine.gpus import Gpu
from scalebench.core.run_folder import monitor_path, node_report_path
from scalebench.core.spec import RankPlacement, write_spec
from scalebench.measure import clock_sync, nodes
from scalebench.measure.monitor.time_series import read_series
from scalebench.measure.nodes import NodeReport, has_node_reports, make_machines_part, record_node
from tests.builders.runs import MACHINE, rank, simulated_spec

PLACES = [RankPlacement(0, 0, 0, [0], [], 1), RankPlacement(1, 1, 0, [1], [], 1), RankPlacement(2, 0, 1, [0], [], 1)]


def on_nodes(folder, monitor=True, hosts=("a:2", "b:1")):
    spec = simulated_spec(measure={"monitor": monitor})
    spec = dataclasses.replace(spec, nodes=2, places=PLACES)
    spec.config.hardware.hosts = list(hosts)
    write_spec(spec, folder)
    return spec


def test_nodes_report_under_slurm_on_hosts_and_by_hand():
    spec = simulated_spec()
    assert not has_node_reports(spec)
    for part, changes in (
        ("hardware", {"scheduler": "slurm"}), ("hardware", {"hosts": ["a:2"]}), ("strategy", {"launcher": "by_hand"}),
    ):  # fmt: skip
        changed = dataclasses.replace(getattr(spec.config, part), **changes)
        config = dataclasses.replace(spec.config, **{part: changed})
        assert has_node_reports(dataclasses.replace(spec, config=config))


def test_the_second_node_writes_its_report_and_a_machine_that_cannot_be_detected_has_none(tmp_path, monkeypatch):
    spec = on_nodes(tmp_path)
    with record_node(spec, tmp_path, 1, 2, {"GLOO_SOCKET_IFNAME": "ib0"}):
        pass
    first, report = nodes.read_reports(spec, tmp_path)
    assert first is None  # the other node wrote none
    assert (report.node, report.rank, report.over, report.monitor_reason) == (1, 2, True, None)
    assert report.machine.environment == {"GLOO_SOCKET_IFNAME": "ib0"}, "the variables of the rank"
    assert report.machine.hostname == platform.node() and report.oom_killed in (False, None)
    assert read_series(monitor_path(tmp_path, 1)).values("memory", "available_bytes")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["machine1.json", "monitor1.parquet", "spec.json"]

    def broken(variables):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(machine, "detect_machine", broken)
    with record_node(on_nodes(tmp_path), tmp_path, 0, 0, {}):
        pass
    assert not node_report_path(tmp_path, 0).exists() and monitor_path(tmp_path).exists()


def test_without_a_monitor_the_machine_is_still_reported_and_an_out_of_memory_kill(tmp_path, monkeypatch):
    counts = iter([3, 4])
    monkeypatch.setattr(machine, "oom_kills", lambda: next(counts))
    spec = on_nodes(tmp_path, monitor=False)
    with record_node(spec, tmp_path, 0, 0, {}):
        pass
    reports = nodes.read_reports(spec, tmp_path)
    assert nodes.any_oom_kill(reports) and reports[0].monitor_reason == "measure.monitor=false"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["machine0.json", "spec.json"]
    node_report_path(tmp_path, 0).write_text('{"node": 0')
    assert nodes.read_reports(spec, tmp_path)[0] is None
    assert nodes.read_reports(simulated_spec(), tmp_path) == [], "launched on this host, where files do not count"
    node_report_path(tmp_path, 0).unlink()
    for hosts, number in ((("a:2", "b:1"), 1), ((), 0)):  # the second rank of a node, and one that is launched here
        with record_node(on_nodes(tmp_path, hosts=hosts), tmp_path, 0, number, {}):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]


def report_of(number, over=True, **machine):
    of_node = dataclasses.replace(MACHINE, **{"hostname": f"n{number}", **machine})
    return NodeReport(number, 2 * number, of_node, [], over)


def test_the_machines_of_a_run_and_flags_of_unequal_ones(monkeypatch):
    part = make_machines_part([report_of(0), report_of(1), report_of(2)], [])
    assert part.machine.hostname == "n0" and [m.hostname for m in part.others] == ["n1", "n2"]
    assert part.flags == []
    monkeypatch.setattr(machine, "detect_machine", lambda: MACHINE)
    for reports in ([None, report_of(1), None], []):  # the latter: launched on this host
        part = make_machines_part(reports, [])
        assert (part.machine, part.others) == (MACHINE, None)
    assert make_machines_part([report_of(0)], []).others is None
    gpu = Gpu(0, "made up", "GPU-0", 2**35, 1410, 1215, 400.0, 0, None)
    for other in (
        {"cpu_model": "another processor"}, {"memory_bytes": 2**34}, {"cpus_physical": 4}, {"gpus": [gpu]},
    ):  # fmt: skip
        assert make_machines_part([report_of(0), report_of(1), report_of(2, **other)], []).flags == ["unequal_nodes"]
    share = {"cpus": 1, "cpus_allowed": [1], "memory_limit_bytes": 2**30}  # of the job
    for other in (share, {"memory_bytes": 2**33 - 2**28}):  # reserved by the kernel
        assert make_machines_part([report_of(0), report_of(1, **other)], []).flags == []
    assert make_machines_part([report_of(0, gpus=[gpu]), report_of(1, gpus=[gpu, gpu])], []).flags == []
    ranks = [rank(0), rank(1, clock_offset_s=0.2)]
    assert make_machines_part([report_of(0), report_of(1)], ranks).flags == ["clocks_differ"]


def test_reports_are_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "REPORT_LIMIT_S", 0.1)
    monkeypatch.setattr(nodes, "FAILED_REPORT_LIMIT_S", 0.0)
    spec = on_nodes(tmp_path)
    for report in (report_of(0), report_of(1, over=False)):
        write_json(node_report_path(tmp_path, report.node), report)
    reports = nodes.wait_for_reports(spec, tmp_path, succeeded=True)
    assert [report.over for report in reports] == [True, False]  # at the time limit
    monkeypatch.setattr(nodes, "REPORT_LIMIT_S", 60.0)
    original, reads = nodes._read, []

    def late(folder, number, run_id):
        reads.append(number)
        if len(reads) == 6:
            write_json(node_report_path(folder, 1), report_of(1))
        return original(folder, number, run_id)

    monkeypatch.setattr(nodes, "_read", late)
    reports = nodes.wait_for_reports(spec, tmp_path, succeeded=True)
    assert [report.over for report in reports] == [True, True]
    assert reads.count(0) == 1  # a complete report is not read again


NOON_S = 1_799_999_937.25  # a float32 misses it by a minute


class SimulatedGroup:
    """Rank 0, and one other, whose clock is `offset_s` ahead; a message takes `delays_s()` each way."""

    def __init__(self, offset_s, delays_s, kind=float):
        self.true_s, self._offset_s, self._delays_s, self._kind = NOON_S, offset_s, delays_s, kind
        self._rank_0 = self._broadcasts()

    def time(self):
        return self.true_s + self._offset_s

    def broadcast(self, value):
        return next(self._rank_0)

    def _broadcasts(self):
        """Yield the broadcasts of rank 0, which starts each when the last one is over; that needs the other rank."""
        base = NOON_S // clock_sync.BASE_STEP_S  # rank 0 may get back its exact value
        sent, base_s, started_s = self._kind(base), base * clock_sync.BASE_STEP_S, self.true_s
        while True:
            met_s = max(self.true_s + self._delays_s(), started_s)  # the message of the other rank has arrived
            self.true_s = met_s + self._delays_s()
            yield sent
            started_s = met_s + self._delays_s()
            sent = self._kind(started_s - base_s)


TWO_NODES = dataclasses.replace(simulated_spec(), nodes=2, places=PLACES)  # ranks 0 and 1 on node 0, rank 2 on node 1


def measure_offset(monkeypatch, world, number=2):
    monkeypatch.setattr(clock_sync, "time", SimpleNamespace(time=world.time))
    return clock_sync.measure_clock_offset_s(TWO_NODES, number, world.broadcast)


@pytest.mark.parametrize("kind", [float, lambda value: float(np.float32(value))], ids=["float64", "float32"])
def test_the_offset_is_measured(monkeypatch, kind):
    for offset_s in (0.0, 2.5, -86400.0):
        world = SimulatedGroup(offset_s, lambda: 0.001, kind)
        assert measure_offset(monkeypatch, world) == pytest.approx(offset_s, abs=0.0016)
    for number in (0, 1):  # both on rank 0's host
        assert measure_offset(monkeypatch, SimulatedGroup(5.0, lambda: 0.001), number) is None
    assert clock_sync.measure_clock_offset_s(TWO_NODES, 2, lambda value: value) is None  # nothing comes from rank 0


def test_the_quickest_round_counts_and_every_rank_broadcasts_as_often(monkeypatch):
    """Most rounds take a tenth of a second, one way more than the other."""
    at_random = random.Random(0)
    quiet = iter([*[0.05] * 15, *[0.001] * 8, *[0.05] * 100])
    world = SimulatedGroup(3.0, lambda: next(quiet) * at_random.uniform(0.2, 2.0))
    assert measure_offset(monkeypatch, world) == pytest.approx(3.0, abs=0.01)
    # Else one would wait for ever; on one node nobody is kept waiting.
    for spec, rounds in ((TWO_NODES, clock_sync.CLOCK_ROUNDS + 1), (simulated_spec(3), 0)):
        for number in range(3):
            sent = []
            clock_sync.measure_clock_offset_s(spec, number, lambda value, sent=sent: sent.append(value) or 1.0)
            assert len(sent) == rounds


def test_times_of_day_of_two_hosts():
    here = socket.gethostname()
    first, same = rank(0, hostname="a"), rank(1, hostname="a")
    ahead = rank(2, hostname="b", clock_offset_s=5.0)
    ours = rank(3, hostname=here, clock_offset_s=-2.0)
    assert clock_sync.to_rank_0_clock_s(105.0, ahead) == clock_sync.to_rank_0_clock_s(100.0, same) == 100.0
    one_host = [rank(2, hostname="b"), rank(3, hostname="b")]  # whatever its clock
    assert all(clock_sync.are_comparable(ranks) for ranks in ([first, same, ahead], one_host, [first], []))
    assert not clock_sync.are_comparable([first, rank(2, hostname="b")])
    assert clock_sync.to_this_host_clock_s(105.0, ahead, [first, ahead, ours]) == 98.0
    assert clock_sync.to_this_host_clock_s(7.0, ours, [first, ours]) == 7.0
    assert clock_sync.to_this_host_clock_s(105.0, ahead, [first, ahead]) == 100.0  # nothing ran here
    for offsets_s, differ in (((None, 0.09), False), ((None, 5.0), True), ((0.06, -0.06), True), ((), False)):
        assert clock_sync.clocks_differ([rank(1, clock_offset_s=offset_s) for offset_s in offsets_s]) == differ
