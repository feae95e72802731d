"""Which cores go to which device: machines with made-up NUMA nodes, and no core given twice while there are enough."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.config import placement
from scalebench.config import placement as placing
from scalebench.core.machine import cpus as system_files
from scalebench.core.machine import machine
from scalebench.core.spec import HardwareSpec, RankPlacement
from tests.builders.configs import ALPHA, make_config, make_spec
from tests.builders.runs import simulated_spec


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


def test_two_nodes_of_four_cores(monkeypatch):
    for gpus, devices, bind, shares in (
        ([0, 0, 1, 1], [0, 1, 2, 3], "numa", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([1, 1, 0, 0], [0, 1, 2, 3], "numa", [[4, 5], [6, 7], [0, 1], [2, 3]]),
        ([1, 0, 1, 0], [0, 1, 2, 3], "numa", [[4, 5], [0, 1], [6, 7], [2, 3]]),
        ([0, 0, 1, 1], [3, 0], "numa", [[4, 5], [0, 1]]),
        ([0, 0, 1, 1], [2], "numa", [[4, 5]]),
        ([0, 0, 0, 1], [0, 1, 2, 3], "numa", [[0, 1], [2, 3], [6, 7], [4, 5]]),  # what is left over
        ([0, 0, 1, 1], [0, 1, 2, 3], "far", [[4, 5], [6, 7], [0, 1], [2, 3]]),
        ([0, 0, 0, 1], [0, 1, 2], "far", [[4, 5], [6, 7], [4, 5]]),
        ([0, 0, 1, 1], [0, 1, 2, 3], "none", [[], [], [], []]),
        ([0, 0, None, 1], [0, 1, 2, 3], "numa", [[0, 1], [2, 3], [4, 5], [6, 7]]),  # one that is not told
        ([1, 1], [1, 5], "numa", [[2, 3], [2, 3]]),  # there is no device 5: as it comes
        ([7, 7], [0, 1], "numa", [[0, 1], [2, 3]]),  # nor a node 7
    ):
        pretend(monkeypatch, [4, 4], gpus)
        assert placement.assign_cores(hardware(len(gpus), 2, bind), devices) == shares, (gpus, devices, bind)
    # Cores that this process may not use are left alone.
    for usable, shares in (([1, 2, 3, 6], [[1], [6]]), ([1, 2, 3], [[1], [2]])):
        pretend(monkeypatch, [4, 4], [0, 1], usable)
        assert placement.assign_cores(hardware(2, 1), [0, 1]) == shares
    pretend(monkeypatch, [4, 4], [1, 1])  # CPU workers have their cores by number
    for devices, shares in (([0, 1], [[0, 1, 2], [3, 4, 5]]), ([1], [[3, 4, 5]]), ([2], [[0, 6, 7]])):
        assert placement.assign_cores(hardware(2, 3, devices="cpu"), devices) == shares
    pretend(monkeypatch, [4, 4], [1, 0, 1])
    near = HardwareSpec("local", devices="cuda", cpus_per_device=2, device_ids=[2, 0])
    (place,) = make_spec(gpus=2, hardware=near, strategy__processes="one_for_all").places
    assert (place.devices, place.cpus) == ([2, 0], [4, 5, 6, 7]), "one process for all has those of all its devices"


def test_near_and_far_follow_the_distances(monkeypatch):
    pretend(monkeypatch, [2, 2, 0, 2], [0, 2, 3])
    # Node 2 has no cores, node 1 is as near as 3.
    assert placement.assign_cores(hardware(3, 1), [0, 1, 2]) == [[0], [2], [4]]
    assert placement.assign_cores(hardware(3, 1, "far"), [0, 1, 2]) == [[4], [0], [1]]
    twisted = nodes_of([2, 2, 2])
    twisted[0].distances.update({"1": 40, "2": 20})
    monkeypatch.setattr(machine, "numa_nodes", lambda: twisted)
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(6)))
    assert placement.assign_cores(hardware(3, 1, "far"), [0]) == [[2]]  # not the one of the highest number


def put(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_the_kernels_own_files_lead_to_the_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(system_files, "SYSTEM_ROOT", tmp_path)
    for node, (cpus, distances) in {0: ("0,2", "10 32"), 1: ("1,3", "32 10")}.items():
        put(tmp_path, f"sys/devices/system/node/node{node}/cpulist", f"{cpus}\n")
        put(tmp_path, f"sys/devices/system/node/node{node}/distance", f"{distances}\n")
    monkeypatch.setattr(machine, "usable_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(machine, "gpu_numa_nodes", lambda: [1, 0])
    assert placement.assign_cores(hardware(2, 2), [0, 1]) == [[1, 3], [0, 2]]
    assert placement.assign_cores(hardware(2, 2, "far"), [0, 1]) == [[0, 2], [1, 3]]


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
        assigned = placement.assign_cores(hardware(8, 12), list(range(gpus)))
        cores = [{cpu % 48 for cpu in cpus} for cpus in assigned]
        assert all(len(own) == 6 for own in cores), "both threads of each core"
        assert all(a.isdisjoint(b) for a, b in itertools.combinations(cores, 2))
        assert assigned[0] == [0, 1, 2, 3, 4, 5, 48, 49, 50, 51, 52, 53]


@pytest.mark.gpu
@pytest.mark.usefixtures("two_threads")
def test_a_remote_node_counts_cores_as_its_yaml_does(monkeypatch):
    """SLURM counts threads, of which a rank of six cores would get those of three."""
    gpus = {"devices": "cuda", "threads": 6}
    assigned = placement.assign_cores_on_this_node(spec_of([list(range(8))], **gpus))
    assert assigned == [list(range(6 * gpu, 6 * gpu + 6)) for gpu in range(8)]
    both = placement.assign_cores_on_this_node(spec_of([list(range(8))], devices="cuda", threads=12))
    assert both[0] == [*range(6), *range(48, 54)], "a YAML that counts threads"
    monkeypatch.setattr(machine, "usable_cpus", lambda: [*range(6, 12), *range(54, 60)])  # a job with part of a node
    assert placement.assign_cores_on_this_node(spec_of([[3]], **gpus)) == [list(range(6, 12))]
    monkeypatch.setattr(machine, "gpu_numa_nodes", list)
    assert placement.assign_cores_on_this_node(spec_of([[0, 6]], devices="cpu")) == [[6], [7]]


def test_far_that_means_nothing_here_says_why(monkeypatch):
    far, needs_nodes = HardwareSpec("local", devices="cuda", bind="far"), "needs cores on a second NUMA node"
    for sizes, gpus, changes, message in (
        ([4], [0, 0], {}, f"hardware.bind=far {needs_nodes}, and here is one node; use numa or none"),
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
    spec.places = [
        RankPlacement(rank, k, node, [devices[k]], [], threads) for rank, (node, devices, k) in enumerate(placed)
    ]
    return spec


@pytest.fixture
def cores(monkeypatch):
    """Four cores, and not the first ones, as in a job with a part of the node."""
    results = [4, 5, 6, 7]
    monkeypatch.setattr(machine, "usable_cpus", lambda: results)
    return results


def test_a_remote_node_assigns_its_own_cores(cores, monkeypatch):
    """Its ranks have cores of their own while there are enough; one without a device is not pinned."""
    on_node = placement.assign_cores_on_this_node
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


def test_the_variable_with_the_cores_of_a_rank(cores):
    spec = spec_of([[0, 1]], threads=2)
    message = placement.make_cpus_variable(spec, 1)
    assert message == {"SCALEBENCH_CPUS": "6,7"}
    assert placement.read_cpus_variable(message) == [6, 7]
    assert placement.read_cpus_variable({}) == []
    spec.places[1].cpus = [3]
    assert placement.make_cpus_variable(spec, 1) == {}
    assert placement.make_cpus_variable(spec_of([[0, 1]], bind="none"), 1) == {}
    here = spec_of([[0, 1]], this_machine=True)
    assert placement.make_cpus_variable(here, 1) == {}, "its places already have the cores"
