"""`hardware.device_ids`: device k of a run is the physical device of that number."""

import dataclasses
import functools

import pytest

from scalebench.config import resolve
from scalebench.core.spec import HardwareSpec
from tests.builders.configs import ALPHA, GPUS_HERE, fake_machine, make_config, make_spec, resolve_error

ROLES = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}


def chosen(hardware, ids, **changes):
    return dataclasses.replace(hardware, device_ids=ids, **changes)


@pytest.fixture
def machine_with(monkeypatch):
    return functools.partial(fake_machine, monkeypatch)


def test_devices_are_used_in_the_named_order(machine_with):
    machine_with(8, cpus=16)
    spec = make_spec(gpus=None, hardware=chosen(GPUS_HERE, [5, 0]))
    assert [(p.devices, p.cpus) for p in spec.places] == [([5], [10, 11]), ([0], [0, 1])]
    assert (spec.gpus, spec.unsupported) == (2, None)  # gpus left out is their number


def test_one_process_and_roles_use_them_too(machine_with):
    machine_with(0, cpus=8)
    workers = HardwareSpec("local", devices="cpu", cpus_per_device=2, device_ids=[3, 1])
    (only,) = make_spec(gpus=2, hardware=workers, strategy__processes="one_for_all").places
    assert (only.devices, only.cpus) == ([3, 1], [2, 3, 6, 7])
    served = make_spec(gpus=2, hardware=workers, strategy__processes=ROLES).places
    assert [(p.role, p.devices, p.cpus) for p in served] == [
        ("chief", [], []), ("ps", [], []), ("worker", [3], [6, 7]), ("worker", [1], [2, 3]),
    ]  # fmt: skip


def test_every_node_uses_the_same_ids():
    spec = make_spec(gpus=4, hardware=chosen(ALPHA, [6, 7], gpus_per_node=2))
    places = [(p.node, p.local_rank, p.devices) for p in spec.places]
    assert places == [(0, 0, [6]), (0, 1, [7]), (1, 0, [6]), (1, 1, [7])]


@pytest.mark.parametrize(
    ("ids", "gpus", "message"),
    [
        ([0, 5, 0], None, "hardware.device_ids=[0,5,0] names device 0 twice; name each once"),
        ([0, -1], None, "hardware.device_ids=[0,-1]: there is no device -1; the first one is 0"),
        ([0, 1], 4, "gpus=4 wants 4 devices a node, hardware.device_ids names 2; name more of them or lower gpus"),
    ],
)
def test_invalid_ids(machine_with, ids, gpus, message):
    machine_with(8)
    for processes in ("one_per_device", "one_for_all"):
        requested = make_config(gpus=gpus, hardware=chosen(GPUS_HERE, ids), strategy__processes=processes)
        assert resolve_error(requested) == message


@pytest.mark.parametrize(
    ("here", "ids", "gpus", "message"),
    [
        (2, [0, 5], 2, "hardware.device_ids names device 5, and the GPUs here are 0 to 1"),
        (1, [5], 1, "hardware.device_ids names device 5, and the only GPU here is 0"),
        (2, [0, 5], 1, None),  # the second one is not used
        (2, [0, 1, 2], 3, "gpus=3 asks for more than the 2 GPUs here"),
    ],
)
def test_an_id_of_a_missing_gpu_is_unsupported(machine_with, here, ids, gpus, message):
    machine_with(here)
    assert make_spec(gpus=gpus, hardware=chosen(GPUS_HERE, ids)).unsupported == message


def test_workers_with_the_same_cores_are_flagged(machine_with):
    machine_with(0, cpus=2)
    workers = HardwareSpec("local", devices="cpu")
    assert make_spec(gpus=2, hardware=chosen(workers, [1, 0])).flags == []
    assert make_spec(gpus=2, hardware=chosen(workers, [0, 2])).flags == ["oversubscribed"]


def test_runs_on_the_same_devices_are_one_run(machine_with):
    machine_with(8)

    def mark(gpus, ids):
        return make_spec(gpus=gpus, hardware=chosen(GPUS_HERE, ids)).fingerprint

    assert mark(1, []) == mark(1, [0]) == mark(1, [0, 5])
    assert mark(2, []) == mark(2, [0, 1]) == mark(2, [0, 1, 2])
    assert len({mark(1, [0]), mark(1, [1]), mark(2, [0, 1]), mark(2, [1, 0]), mark(2, [0, 5])}) == 5
    kept = resolve.resolve(make_config(gpus=1, hardware=chosen(GPUS_HERE, [4, 5]))).config.hardware
    assert kept.device_ids == [4]
