"""Which process stands on which node, drives which devices, also those of hardware.device_ids, and has which cores."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.config import placement as placing
from scalebench.core.machine import cpus as system_files
from scalebench.core.machine import machine
from scalebench.core.spec import HardwareSpec, RankPlacement
from tests.builders.configs import ALPHA, GPUS_HERE, make_config, make_spec, resolve_error
from tests.builders.runs import simulated_spec
from tests.core.machine.conftest import put


def test_processes_are_pinned_in_sequence(machine_with):
    workers = HardwareSpec("local", devices="cpu")
    machine_with(0, cpus=8)
    spec = make_spec(gpus=2, hardware=workers)
    assert [p.cpus for p in spec.places] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    places = [(p.rank, p.local_rank, p.node, p.devices, p.threads) for p in spec.places]
    assert places == [(0, 0, 0, [0], 4), (1, 1, 0, [1], 4)] and spec.flags == []
    two_cores = dataclasses.replace(workers, cpus_per_device=2)
    (only,) = make_spec(gpus=3, hardware=two_cores, strategy__processes="one_for_all").places
    assert (only.devices, only.cpus, only.threads) == ([0, 1, 2], list(range(6)), 2)
    machine_with(0, cpus=2)
    for gpus, flags in ((2, []), (3, ["oversubscribed"]), (8, ["oversubscribed"])):  # more than cores are allowed
        spec = make_spec(gpus=gpus, hardware=workers)
        assert (spec.flags, spec.unsupported, spec.nodes) == (flags, None, 1)
        assert [p.cpus for p in spec.places] == [[rank % 2] for rank in range(gpus)]
    machine_with(0, cpus=3)
    assert make_spec(gpus=2, hardware=workers).flags == []
    roles = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}
    assert make_spec(gpus=2, hardware=workers, strategy__processes=roles).flags == ["oversubscribed"]


def test_roles_stand_before_the_workers_and_take_no_device(machine_with):
    machine_with(0, cpus=8)
    hardware = HardwareSpec("local", devices="cpu", cpus_per_device=2)
    roles = {"chief": 1, "ps": 2, "worker": "gpus"}
    spec = make_spec(gpus=2, hardware=hardware, strategy__processes={"roles": roles})
    services = [(0, 0, "chief", [], []), (1, 1, "ps", [], []), (2, 2, "ps", [], [])]
    workers = [(3, 3, "worker", [0], [0, 1]), (4, 4, "worker", [1], [2, 3])]
    assert [(p.rank, p.local_rank, p.role, p.devices, p.cpus) for p in spec.places] == services + workers
    assert (spec.gpus, spec.processes, spec.flags) == (2, 5, [])
    assert spec.services == {1: "ps", 2: "ps", 3: "worker", 4: "worker"}
    assert make_spec(gpus=2).services == {}
    incomplete = make_config(strategy__processes={"roles": {"chief": 1, "worker": "gpus"}})
    assert resolve_error(incomplete).endswith("{roles: {chief: 1, ps: a count, worker: gpus}}")


def test_nodes_and_named_hosts_are_filled_in_their_order():
    spec = make_spec(gpus=10, hardware=ALPHA)
    assert counts_of(spec) == [8, 2]
    assert {p.threads for p in spec.places} == {6} and not any(p.cpus for p in spec.places)
    # CPU workers of several nodes fill them, too. A node alone takes more of them than it has cores.
    hardware = dataclasses.replace(NODES, devices="cpu", gpus_per_node=2, cpus_per_node=8, cpus_per_device=4)
    for max_nodes, counts, flags in ((4, [2, 2, 1], []), (1, [5], ["oversubscribed"])):
        spec = make_spec(gpus=5, hardware=dataclasses.replace(hardware, max_nodes=max_nodes))
        assert (counts_of(spec), spec.flags) == (counts, flags)
    # Ids of devices are those of the fullest node.
    hardware = dataclasses.replace(NODES, layout="spread", max_nodes=2, device_ids=[3, 5])
    assert [p.devices for p in make_spec(gpus=3, hardware=hardware).places] == [[3], [5], [3]]
    assert make_spec(gpus=2, hardware=hardware).config.hardware.device_ids == [3]
    in_sequence = dataclasses.replace(hardware, layout="sequence")
    assert "gpus=3 needs 3 devices a node" in resolve_error(make_config(gpus=3, hardware=in_sequence))
    # Whatever gpus_per_node says: their slots count.
    spec = make_spec(gpus=5, hardware__hosts=["a:2", "b", "c:4"], strategy__launcher="mpi")
    places = [(p.node, p.local_rank, p.devices) for p in spec.places]
    assert places == [(0, 0, [0]), (0, 1, [1]), (1, 0, [0]), (2, 0, [0]), (2, 1, [1])] and spec.nodes == 3


def counts_of(spec):
    return [sum(p.node == node for p in spec.places) for node in range(spec.nodes)]


NODES = HardwareSpec("nodes", devices="cuda", gpus_per_node=8, max_nodes=4, this_machine=False)


@given(data=st.data(), layout=st.sampled_from(["sequence", "spread"]), others=st.integers(0, 3))
def test_every_device_has_one_place(data, layout, others):
    """On named hosts or on nodes of one kind, with processes beside those of the devices and without."""
    rooms = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    named = data.draw(st.booleans())
    rooms = rooms if named else rooms[:1] * len(rooms)
    gpus = data.draw(st.integers(1, sum(rooms)))
    hardware = dataclasses.replace(NODES, layout=layout, gpus_per_node=rooms[0], max_nodes=len(rooms))
    hardware.hosts = [f"h{node}:{room}" for node, room in enumerate(rooms)] if named else []
    roles = {"roles": {"chief": 1, "ps": others, "worker": "gpus"}} if others else "one_per_device"
    places = placing.compute_placement(make_config(hardware=hardware, strategy__processes=roles), gpus).places

    assert [p.rank for p in places] == list(range(len(places)))
    nodes = [p.node for p in places]
    assert nodes == sorted(nodes) and set(nodes) == set(range(max(nodes) + 1))
    for node in set(nodes):
        own = [p for p in places if p.node == node]
        assert [p.local_rank for p in own] == list(range(len(own)))
    driving = [p for p in places if p.devices]
    assert len(driving) == gpus and all(len(p.devices) == 1 for p in driving)
    assert len({(p.node, p.devices[0]) for p in driving}) == gpus
    without = [p for p in places if not p.devices]
    assert [(p.node, p.role) for p in without] == ([(0, "chief"), *[(0, "ps")] * others] if others else [])

    counts = [sum(p.node == node for p in driving) for node in range(len(rooms))]
    assert all(count <= room for count, room in zip(counts, rooms, strict=True))
    if layout == "sequence":
        assert all(count == room for count, room in zip(counts[: max(nodes)], rooms, strict=False))
    else:  # who has fewer than another by more than one is full, or it comes later
        roomy = [count for count, room in zip(counts, rooms, strict=True) if count < room]
        assert not roomy or max(counts) - min(roomy) <= 1
        assert roomy == sorted(roomy, reverse=True)


def test_a_layout_that_makes_no_difference_is_the_usual_one():
    """So that such runs of a sweep are one run: on one device, on full nodes, in one process."""
    for gpus, changes, layout in (
        (1, {}, "sequence"),
        (2, {}, "spread"),
        (32, {}, "sequence"),
        (2, {"hardware__max_nodes": 1}, "sequence"),
        (4, {"strategy__processes": "one_for_all"}, "sequence"),
        (8, {"hardware__hosts": ["a:8"], "strategy__launcher": "mpi"}, "sequence"),
    ):
        spread = make_spec(gpus=gpus, hardware=dataclasses.replace(NODES, layout="spread"), **changes)
        usual = make_spec(gpus=gpus, hardware=dataclasses.replace(NODES), **changes)
        assert spread.config.hardware.layout == layout, (gpus, changes)
        assert (spread.fingerprint == usual.fingerprint) == (layout == "sequence")
        assert (spread.places == usual.places) == (layout == "sequence")


def test_a_quota_of_cpu_time_counts_as_fewer_cores(monkeypatch):
    """A container that is started with --cpus sees all cores of its machine."""
    monkeypatch.setattr(machine, "usable_cpus", lambda: [0, 1, 2, 3])
    for quota, gpus, cores, threads, flagged in (
        (1.0, 2, 1, 1, True), (1.0, 1, 1, 1, False), (0.5, 1, 1, 1, True), (3.0, 2, 3, 1, False), (9.0, 2, 4, 2, False),
    ):  # fmt: skip
        monkeypatch.setattr(machine, "cpu_quota", lambda quota=quota: quota)
        spec = make_spec(gpus=gpus, hardware=HardwareSpec("cpu", devices="cpu"))
        assert (spec.config.hardware.cpus_per_node, spec.config.hardware.cpus_per_device) == (cores, threads)
        assert spec.flags == (["oversubscribed"] if flagged else [])


def chosen(hardware, ids, **changes):
    return dataclasses.replace(hardware, device_ids=ids, **changes)


def test_devices_are_used_in_the_named_order(machine_with):
    machine_with(8, cpus=16)
    spec = make_spec(gpus=None, hardware=chosen(GPUS_HERE, [5, 0]))
    assert [(p.devices, p.cpus) for p in spec.places] == [([5], [10, 11]), ([0], [0, 1])]
    assert (spec.gpus, spec.unsupported) == (2, None)  # gpus left out is their number
    spec = make_spec(gpus=4, hardware=chosen(ALPHA, [6, 7], gpus_per_node=2))  # of every node
    places = [(p.node, p.local_rank, p.devices) for p in spec.places]
    assert places == [(0, 0, [6]), (0, 1, [7]), (1, 0, [6]), (1, 1, [7])]
    machine_with(0, cpus=8)
    workers = HardwareSpec("local", devices="cpu", cpus_per_device=2, device_ids=[3, 1])
    (only,) = make_spec(gpus=2, hardware=workers, strategy__processes="one_for_all").places
    assert (only.devices, only.cpus) == ([3, 1], [2, 3, 6, 7])
    roles = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}
    served = make_spec(gpus=2, hardware=workers, strategy__processes=roles).places
    assert [(p.role, p.devices, p.cpus) for p in served] == [
        ("chief", [], []), ("ps", [], []), ("worker", [3], [6, 7]), ("worker", [1], [2, 3]),
    ]  # fmt: skip
    machine_with(0, cpus=2)
    for ids, flags in (([1, 0], []), ([0, 2], ["oversubscribed"])):  # two with the same core
        assert make_spec(gpus=2, hardware=HardwareSpec("local", devices="cpu", device_ids=ids)).flags == flags


def test_runs_on_the_same_devices_are_one_run_and_missing_ones_are_a_reason(machine_with):
    for here, ids, gpus, message in (
        (2, [0, 5], 2, "hardware.device_ids names device 5, and the GPUs here are 0 to 1"),
        (1, [5], 1, "hardware.device_ids names device 5, and the only GPU here is 0"),
        (2, [0, 5], 1, None),  # the second one is not used
        (2, [0, 1, 2], 3, "gpus=3 asks for more than the 2 GPUs here"),
    ):
        machine_with(here)
        assert make_spec(gpus=gpus, hardware=chosen(GPUS_HERE, ids)).unsupported == message
    machine_with(8)

    def mark(gpus, ids):
        return make_spec(gpus=gpus, hardware=chosen(GPUS_HERE, ids)).fingerprint

    assert mark(1, []) == mark(1, [0]) == mark(1, [0, 5])
    assert mark(2, []) == mark(2, [0, 1]) == mark(2, [0, 1, 2])
    assert len({mark(1, [0]), mark(1, [1]), mark(2, [0, 1]), mark(2, [1, 0]), mark(2, [0, 5])}) == 5
    assert make_spec(gpus=1, hardware=chosen(GPUS_HERE, [4, 5])).config.hardware.device_ids == [4]


def nodes_of(sizes):
    """Nodes in a row with so many cores each, numbered through; the further apart, the farther."""
    ends = list(itertools.accumulate(sizes, initial=0))
    away = [{str(b): 10 + 11 * abs(a - b) for b in range(len(sizes))} for a in range(len(sizes))]
    return [system_files.NumaNode(n, list(range(ends[n], ends[n + 1])), None, away[n]) for n in range(len(sizes))]


def pretend(patch, sizes, gpus, usable=None):
    patch.setattr(machine, "numa_nodes", lambda: nodes_of(sizes))
    patch.setattr(machine, "usable_cpus", lambda: list(range(sum(sizes))) if usable is None else usable)
    patch.setattr(machine, "order_by_core", sorted)
    patch.setattr(machine, "gpu_numa_nodes", lambda: gpus)
    patch.setattr(machine, "count_gpus", lambda: len(gpus))


def hardware(gpus, threads, bind="numa", devices="cuda"):
    return HardwareSpec("local", devices=devices, gpus_per_node=gpus, cpus_per_device=threads, bind=bind)


def test_two_nodes_of_four_cores_and_near_and_far_by_the_distances(monkeypatch):
    for gpus, devices, bind, shares in (
        ([0, 0, 1, 1], [0, 1, 2, 3], "numa", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([1, 1, 0, 0], [0, 1, 2, 3], "numa", [[4, 5], [6, 7], [0, 1], [2, 3]]),
        ([0, 0, 1, 1], [3, 0], "numa", [[4, 5], [0, 1]]),
        ([0, 0, 0, 1], [0, 1, 2, 3], "numa", [[0, 1], [2, 3], [6, 7], [4, 5]]),  # what is left over
        ([0, 0, 0, 1], [0, 1, 2], "far", [[4, 5], [6, 7], [4, 5]]),
        ([0, 0, None, 1], [0, 1, 2, 3], "numa", [[0, 1], [2, 3], [4, 5], [6, 7]]),  # one that is not told
        ([1, 1], [1, 5], "numa", [[2, 3], [2, 3]]),  # there is no device 5: as it comes
    ):
        pretend(monkeypatch, [4, 4], gpus)
        assert placing.assign_cores(hardware(len(gpus), 2, bind), devices) == shares, (gpus, devices, bind)
    # Cores that this process may not use are left alone.
    for usable, shares in (([1, 2, 3, 6], [[1], [6]]), ([1, 2, 3], [[1], [2]])):
        pretend(monkeypatch, [4, 4], [0, 1], usable)
        assert placing.assign_cores(hardware(2, 1), [0, 1]) == shares
    pretend(monkeypatch, [4, 4], [1, 1])  # CPU workers have their cores by number
    for devices, shares in (([0, 1], [[0, 1, 2], [3, 4, 5]]), ([1], [[3, 4, 5]]), ([2], [[0, 6, 7]])):
        assert placing.assign_cores(hardware(2, 3, devices="cpu"), devices) == shares
    pretend(monkeypatch, [4, 4], [1, 0, 1])
    near = HardwareSpec("local", devices="cuda", cpus_per_device=2, device_ids=[2, 0])
    (place,) = make_spec(gpus=2, hardware=near, strategy__processes="one_for_all").places
    assert (place.devices, place.cpus) == ([2, 0], [4, 5, 6, 7]), "one process for all has those of all its devices"
    pretend(monkeypatch, [2, 2, 0, 2], [0, 2, 3])
    # Node 2 has no cores, node 1 is as near as 3.
    assert placing.assign_cores(hardware(3, 1), [0, 1, 2]) == [[0], [2], [4]]
    assert placing.assign_cores(hardware(3, 1, "far"), [0, 1, 2]) == [[4], [0], [1]]
    twisted = nodes_of([2, 2, 2])
    twisted[0].distances.update({"1": 40, "2": 20})
    monkeypatch.setattr(machine, "numa_nodes", lambda: twisted)
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(6)))
    assert placing.assign_cores(hardware(3, 1, "far"), [0]) == [[2]]  # not the one of the highest number


@pytest.fixture
def two_threads(monkeypatch, tmp_path):
    """Two sockets of 24 cores with two threads each, as Linux numbers them, and eight GPUs."""
    monkeypatch.setattr(system_files, "SYSTEM_ROOT", tmp_path)
    for node, first in enumerate((0, 24)):
        folder = f"sys/devices/system/node/node{node}"
        put(tmp_path, f"{folder}/cpulist", f"{first}-{first + 23},{first + 48}-{first + 71}\n")
        put(tmp_path, f"{folder}/distance", "10 32\n" if node == 0 else "32 10\n")
    for cpu in range(96):
        siblings = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        put(tmp_path, siblings, f"{cpu % 48},{cpu % 48 + 48}\n")
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(96)))
    monkeypatch.setattr(machine, "gpu_numa_nodes", lambda: [0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.gpu
@pytest.mark.usefixtures("two_threads")
def test_gpus_of_one_node_share_no_core():
    """Each has six whole cores, however many of them a run takes."""
    for gpus in (1, 2, 4, 8):
        assigned = placing.assign_cores(hardware(8, 12), list(range(gpus)))
        cores = [{cpu % 48 for cpu in cpus} for cpus in assigned]
        assert all(len(own) == 6 for own in cores), "both threads of each core"
        assert all(a.isdisjoint(b) for a, b in itertools.combinations(cores, 2))
        assert assigned[0] == [0, 1, 2, 3, 4, 5, 48, 49, 50, 51, 52, 53]


@pytest.mark.gpu
@pytest.mark.usefixtures("two_threads")
def test_a_remote_node_counts_cores_as_its_yaml_does(monkeypatch):
    """SLURM counts threads, of which a rank of six cores would get those of three."""
    gpus = {"devices": "cuda", "threads": 6}
    assigned = placing.assign_cores_on_this_node(spec_of([list(range(8))], **gpus))
    assert assigned == [list(range(6 * gpu, 6 * gpu + 6)) for gpu in range(8)]
    both = placing.assign_cores_on_this_node(spec_of([list(range(8))], devices="cuda", threads=12))
    assert both[0] == [*range(6), *range(48, 54)], "a YAML that counts threads"
    monkeypatch.setattr(machine, "usable_cpus", lambda: [*range(6, 12), *range(54, 60)])  # a job with part of a node
    assert placing.assign_cores_on_this_node(spec_of([[3]], **gpus)) == [list(range(6, 12))]
    monkeypatch.setattr(machine, "gpu_numa_nodes", list)
    assert placing.assign_cores_on_this_node(spec_of([[0, 6]], devices="cpu")) == [[6], [7]]


def test_far_that_means_nothing_here_says_why(monkeypatch):
    far, needs_nodes = HardwareSpec("local", devices="cuda", bind="far"), "needs cores on a second NUMA node"
    for sizes, gpus, changes, message in (
        ([4], [0, 0], {}, f"hardware.bind=far {needs_nodes}, and this machine has one; use numa or none"),
        ([4, 0], [0, 0], {}, needs_nodes),
        ([4, 4], [None, 0], {}, "hardware.bind=far needs GPUs whose NUMA node is known, and here it is not"),
        ([4, 4], [None, 0], {"hardware__device_ids": [1], "gpus": 1}, None),
        ([4, 4], [0, 0], {"hardware__devices": "cpu"}, "hardware.bind=far puts a process far from its GPU, and CPU"),
        ([4, 4], [1, 0], {}, None),
    ):
        pretend(monkeypatch, sizes, gpus)
        reason = make_spec(**{"hardware": far, "gpus": 2, **changes}).unsupported
        assert reason is None if message is None else message in reason
    pretend(monkeypatch, [4], [])  # another machine is asked about itself only
    assert "NUMA" not in str(make_spec(gpus=2, hardware=dataclasses.replace(ALPHA, bind="far")).unsupported)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from(["numa", "far", "none"]),
    st.data(),
)
def test_no_core_is_given_twice_unless_that_is_told(sizes, gpus, threads, bind, data):
    ids = data.draw(st.permutations(range(len(gpus))))[: data.draw(st.integers(1, len(gpus)))]
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, [sizes[0] + 1, *sizes[1:]], gpus)
        made = hardware(len(gpus), threads, bind)
        made.device_ids, made.cpus_per_node = list(ids), len(machine.usable_cpus())
        placement = placing.compute_placement(make_config(hardware=made), len(ids))
        places = placement.places
        taken = [cpu for p in places for cpu in p.cpus]
        assert set(taken) <= set(machine.usable_cpus())
        assert [p.devices for p in places] == [[number] for number in ids]
        assert all(bool(p.cpus) == (bind != "none") and len(p.cpus) <= threads for p in places)
        assert len(set(taken)) == len(taken) or placement.oversubscribed
        in_order = list(ids) == list(range(len(ids)))
        if bind == "numa" and len(gpus) * threads <= made.cpus_per_node and (in_order or None not in gpus):
            assert len(set(taken)) == len(ids) * threads


def spec_of(nodes, threads=1, **changes):
    spec = simulated_spec(gpus=sum(map(len, nodes)), size=1000)
    fields = {"devices": "cpu", "cpus_per_device": threads, "this_machine": False, **changes}
    spec.config.hardware = HardwareSpec("cluster", **fields)
    placed = [(node, devices, k) for node, devices in enumerate(nodes) for k in range(len(devices))]
    placed = enumerate(placed)
    spec.places = [RankPlacement(rank, k, node, [devices[k]], [], threads) for rank, (node, devices, k) in placed]
    return spec


@pytest.fixture
def cores(monkeypatch):
    """Four cores, and not the first ones, as in a job with a part of the node."""
    results = [4, 5, 6, 7]
    monkeypatch.setattr(machine, "usable_cpus", lambda: results)
    return results


def test_a_remote_node_assigns_its_own_cores_and_tells_its_ranks(cores, monkeypatch):
    """Its ranks have cores of their own while there are enough; one without a device is not pinned."""
    on_node = placing.assign_cores_on_this_node
    assert on_node(spec_of([[0, 1], [0, 1]], threads=2)) == [[4, 5], [6, 7], [4, 5], [6, 7]]
    assert on_node(spec_of([[0, 4]])) == [[4], [5]], "numbers with gaps, and fewer cores than the full node has"
    assert on_node(spec_of([[1, 2]])) == [[5], [6]]
    assert on_node(spec_of([[0, 1, 2, 3, 4, 5]])) == [[4], [5], [6], [7], [4], [5]]
    for ranks, changed, expected in (([0], [0, 1, 2], [[4, 5, 6]]), ([0, 1], [], [[], [5]])):
        spec = spec_of([ranks])
        spec.places[0].devices = changed
        assert on_node(spec) == expected
    monkeypatch.setattr(machine, "gpu_numa_nodes", lambda: [0, 0, 1, 1])
    nodes = [system_files.NumaNode(0, [0, 1, 4, 5], None, {}), system_files.NumaNode(1, [2, 3, 6, 7], None, {})]
    monkeypatch.setattr(machine, "numa_nodes", lambda: nodes)
    assert on_node(spec_of([[0, 2]], devices="cuda")) == [[4], [6]], "GPUs keep their numbers"
    spec = spec_of([[0, 1]], threads=2)
    message = placing.make_cpus_variable(spec, 1)
    assert message == {"SCALEBENCH_CPUS": "6,7"}
    assert placing.read_cpus_variable(message) == [6, 7]
    assert placing.read_cpus_variable({}) == []
    spec.places[1].cpus = [3]
    assert placing.make_cpus_variable(spec, 1) == {}
    assert placing.make_cpus_variable(spec_of([[0, 1]], bind="none"), 1) == {}
    here = spec_of([[0, 1]], this_machine=True)
    assert placing.make_cpus_variable(here, 1) == {}, "its places already have the cores"
