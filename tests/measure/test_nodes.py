"""The report of a node and its part of the record; clock offsets in a simulation with known clocks and delays."""

import dataclasses
import platform
import random
import socket
from types import SimpleNamespace

import numpy as np
import pytest

from scalebench.core.machine import machine
from scalebench.core.machine.gpus import Gpu
from scalebench.core.run_folder import monitor_path, node_report_path, write_rank_file
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


def sent_by(spec, folder, rank, variables):
    """Return what a node reports while its ranks run."""
    reports = []
    with record_node(spec, folder, rank, variables, reports.append):
        pass
    return reports


def test_a_node_reports_twice_and_a_machine_that_cannot_be_detected_never(tmp_path, monkeypatch):
    first, last = sent_by(on_nodes(tmp_path), tmp_path, 2, {"GLOO_SOCKET_IFNAME": "ib0"})
    assert (first.node, first.rank, first.oom_killed, first.monitor_reason) == (1, 2, None, None)
    assert first.machine.environment == {"GLOO_SOCKET_IFNAME": "ib0"}, "the variables of the rank"
    assert first.machine.hostname == platform.node() and last.oom_killed in (False, None)
    assert last == dataclasses.replace(first, oom_killed=last.oom_killed)
    assert read_series(monitor_path(tmp_path, 1)).values("memory", "available_bytes")

    def broken(variables):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(machine, "detect_machine", broken)
    assert sent_by(on_nodes(tmp_path), tmp_path, 0, {}) == [] and monitor_path(tmp_path).exists()


def test_without_a_monitor_the_machine_is_still_reported_and_an_out_of_memory_kill(tmp_path, monkeypatch):
    counts = iter([3, 4])
    monkeypatch.setattr(machine, "oom_kills", lambda: next(counts))
    spec = on_nodes(tmp_path, monitor=False)
    report = sent_by(spec, tmp_path, 0, {})[-1]
    assert report.oom_killed and report.monitor_reason == "measure.monitor=false"
    write_rank_file(node_report_path(tmp_path, 0), report, run_id="an id")
    assert nodes.read_reports(spec, tmp_path, "an id") == [report, None] and nodes.any_oom_kill([report, None])
    assert nodes.read_reports(spec, tmp_path, "another") == [None, None]
    assert nodes.read_reports(simulated_spec(), tmp_path) == [], "launched on this host, where files do not count"
    for hosts, number in ((("a:2", "b:1"), 1), ((), 0)):  # the second rank of a node, and one that is launched here
        assert sent_by(on_nodes(tmp_path, hosts=hosts), tmp_path, number, {}) == []


def report_of(number, **machine):
    of_node = dataclasses.replace(MACHINE, **{"hostname": f"n{number}", **machine})
    return NodeReport(number, 2 * number, of_node)


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
