"""Config -> RunSpec: batches, places, and every reason to refuse a run or to call it impossible here."""

from __future__ import annotations

import dataclasses
import re
import shutil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench import machine, resolve
from scalebench.resolve import AT_LEAST, CHOICES, POSITIVE, batches, obstacles, place
from scalebench.spec import Config, HardwareSpec, InputError, RunSpec, StrategySpec
from tests.helpers import null_config

ALPHA = HardwareSpec(
    "alpha",
    devices="cuda",
    gpus_per_node=8,
    cpus_per_node=48,
    max_nodes=34,
    gpu_model="A100",
    here=False,
    scheduler="slurm",
)
GPUS_HERE = HardwareSpec("local", devices="cuda")


def config(**changes: Any) -> Config:
    """A null run on the CPU; `changes` by dotted key with two underscores: train__global_batch=5."""
    made = null_config(size=1000)
    for key, value in changes.items():
        put(made, key.replace("__", "."), value)
    return made


def put(made: Config, key: str, value: Any) -> None:
    *path, name = key.split(".")
    owner: Any = made
    for part in path:
        owner = getattr(owner, part)
    assert hasattr(owner, name)
    setattr(owner, name, value)


def of(**changes: Any) -> RunSpec:
    return resolve.resolve(config(**changes))


def line(made: Config) -> str:
    with pytest.raises(InputError) as caught:
        resolve.resolve(made)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def machine_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    def be(gpus: int, cpus: int = 8) -> None:
        monkeypatch.setattr(machine, "gpu_count", lambda: gpus)
        monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(cpus)))
        monkeypatch.setattr(shutil, "which", lambda name: None)

    return be


@given(st.integers(1, 64), st.integers(1, 500))
def test_weak_scaling_keeps_the_batch_of_a_device(gpus: int, batch: int) -> None:
    assert batches(config(train__batch_per_device=batch, dataset__size=100_000), gpus) == (batch, batch * gpus)


@given(st.integers(1, 64), st.integers(1, 5000))
def test_strong_scaling_keeps_the_global_batch_and_shards_differ_by_one(gpus: int, batch: int) -> None:
    made = config(scaling="strong", train__global_batch=batch, dataset__size=100_000)
    if batch < gpus:
        with pytest.raises(InputError, match="fewer than"):
            batches(made, gpus)
        return
    per_device, global_batch = batches(made, gpus)
    assert global_batch == batch
    assert (per_device - 1) * gpus < batch <= per_device * gpus


def test_strong_scaling_falls_back_on_the_batch_of_one_device() -> None:
    assert batches(config(scaling="strong", train__batch_per_device=75), 2) == (38, 75)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"train__global_batch": 8},
            "train.global_batch is kept only with scaling=strong; use train.batch_per_device",
        ),
        (
            {"scaling": "strong", "train__global_batch": 3, "gpus": 4},
            "a global batch of 3 samples is fewer than 4 devices: raise train.global_batch or lower gpus",
        ),
        (
            {"dataset__size": 40, "train__batch_per_device": 16, "gpus": 2},
            "30 training samples are fewer than one global batch of 32: raise dataset.size or lower "
            "train.batch_per_device",
        ),
    ],
)
def test_batches_that_leave_a_device_without_samples(changes: dict[str, Any], told: str) -> None:
    assert line(config(**changes)) == told


def test_a_users_file_is_counted_later() -> None:
    assert of(dataset__size=1, dataset__path="/some.npz").global_batch == 10


@pytest.mark.parametrize(("key", "allowed"), CHOICES.items(), ids=list(CHOICES))
def test_each_choice(key: str, allowed: tuple[str, ...]) -> None:
    made = config()
    put(made, key, "zzz")
    assert line(made) == f"{key}=zzz: no such value 'zzz'; known: {', '.join(sorted(allowed))}"
    for value in allowed:
        put(made, key, value)
        resolve.check(made)


@pytest.mark.parametrize(("key", "least"), AT_LEAST.items(), ids=list(AT_LEAST))
def test_each_lower_limit(key: str, least: int) -> None:
    made = config()
    put(made, key, least - 1)
    assert line(made) == f"{key}={least - 1} should be at least {least}"
    put(made, key, least)
    resolve.check(made)


@pytest.mark.parametrize("key", POSITIVE)
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_each_figure_that_has_to_be_above_0(key: str, value: float) -> None:
    made = config()
    put(made, key, value)
    assert line(made) == f"{key}={value} should be a finite number above 0"


def test_every_number_that_people_set_is_checked() -> None:
    """A new one is forgotten easily."""
    made = config()
    checked = {*AT_LEAST, *POSITIVE, "dataset.validation_share"}
    for group in ("", "dataset.", "measure.", "train."):
        for f in dataclasses.fields(getattr(made, group[:-1]) if group else made):
            if re.match(r"int|float", str(f.type)):
                assert f"{group}{f.name}" in checked


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"strategy__name": "mirorred"}, "no strategy 'mirorred'; did you mean 'mirrored'?"),
        (
            {"strategy__options": {"stepp_s": 1.0}},
            "no option of strategy 'null' 'stepp_s'; did you mean 'step_s'?",
        ),
        (
            {"strategy__options": {"step_s": "x"}},
            "strategy.options.step_s='x' should be float, as its default 0.001",
        ),
        ({"dataset__validation_share": 1.0}, "dataset.validation_share=1.0 should be in [0, 1)"),
        ({"dataset__validation_share": -0.1}, "dataset.validation_share=-0.1 should be in [0, 1)"),
        ({"measure__min_s": float("nan")}, "measure.min_s=nan should be at least 0"),
        ({"measure__min_s": 5.0, "measure__max_s": 2.0}, "measure.max_s=2 is below measure.min_s=5"),
        (
            {"strategy__processes": "one_per_node"},
            "strategy.processes=one_per_node should be one_per_device, one_for_all or roles",
        ),
    ],
)
def test_names_and_figures_that_make_no_sense(changes: dict[str, Any], told: str) -> None:
    assert line(config(**changes)) == told


@pytest.mark.parametrize(("gpus_here", "hardware", "want"), [(0, "auto", 2), (4, "auto", 4), (4, "cpu", 2)])
def test_gpus_left_out_means_all_devices(machine_with: Any, gpus_here: int, hardware: str, want: int) -> None:
    machine_with(gpus_here)
    spec = of(gpus=None, hardware=HardwareSpec("local", devices=hardware))
    assert spec.gpus == spec.config.gpus == want
    assert spec.device == ("cuda" if gpus_here and hardware == "auto" else "cpu")


def test_processes_are_pinned_in_sequence(machine_with: Any) -> None:
    machine_with(0, cpus=8)
    spec = of(gpus=2, hardware=HardwareSpec("local", devices="cpu"))
    assert [p.cpus for p in spec.places] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [(p.rank, p.local_rank, p.node, p.devices, p.threads) for p in spec.places] == [
        (0, 0, 0, [0], 4),
        (1, 1, 0, [1], 4),
    ]
    assert spec.flags == []


def test_cores_are_those_that_this_process_may_use(machine_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: [3, 5])
    spec = of(gpus=2, hardware=HardwareSpec("local", devices="cpu"))
    assert [p.cpus for p in spec.places] == [[3], [5]]


@pytest.mark.parametrize(("gpus", "flags"), [(2, []), (3, ["oversubscribed"]), (8, ["oversubscribed"])])
def test_more_workers_than_cores_are_allowed_and_flagged(machine_with: Any, gpus: int, flags: list[str]) -> None:
    machine_with(0, cpus=2)
    spec = of(gpus=gpus, hardware=HardwareSpec("local", devices="cpu"))
    assert (spec.flags, spec.unsupported, spec.nodes) == (flags, None, 1)
    assert [p.cpus for p in spec.places] == [[rank % 2] for rank in range(gpus)]


def test_one_process_for_all_devices(machine_with: Any) -> None:
    machine_with(0, cpus=8)
    made = config(gpus=3, hardware=HardwareSpec("local", devices="cpu", cpus_per_device=2))
    made.strategy.processes = "one_for_all"
    (only,) = resolve.resolve(made).places
    assert (only.devices, only.cpus, only.threads) == ([0, 1, 2], list(range(6)), 2)


ROLES = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}


def test_roles_stand_before_the_workers_and_take_no_device(machine_with: Any) -> None:
    machine_with(0, cpus=8)
    made = config(gpus=2, hardware=HardwareSpec("local", devices="cpu", cpus_per_device=2))
    made.strategy.processes = {"roles": {**ROLES["roles"], "ps": 2}}
    spec = resolve.resolve(made)
    assert [(p.rank, p.local_rank, p.role, p.devices, p.cpus) for p in spec.places] == [
        (0, 0, "chief", [], []),
        (1, 1, "ps", [], []),
        (2, 2, "ps", [], []),
        (3, 3, "worker", [0], [0, 1]),
        (4, 4, "worker", [1], [2, 3]),
    ]
    assert (spec.gpus, spec.processes, spec.flags) == (2, 5, [])
    assert spec.services == {1: "ps", 2: "ps", 3: "worker", 4: "worker"}
    assert of(gpus=2).services == {}


def test_roles_over_several_nodes() -> None:
    spec = of(gpus=10, hardware=ALPHA, strategy__processes=ROLES)
    workers = [p for p in spec.places if p.role == "worker"]
    assert [(p.node, p.devices) for p in workers] == [(0, [k]) for k in range(8)] + [(1, [0]), (1, [1])]
    for node in (0, 1):
        local_ranks = [p.local_rank for p in spec.places if p.node == node]
        assert local_ranks == list(range(len(local_ranks)))


def test_processes_without_a_core_of_their_own_are_flagged(machine_with: Any) -> None:
    machine_with(0, cpus=3)
    hardware = HardwareSpec("local", devices="cpu")
    assert of(gpus=2, hardware=hardware).flags == []
    assert of(gpus=2, hardware=hardware, strategy__processes=ROLES).flags == ["oversubscribed"]


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        ({"chief": 1, "worker": "gpus"}, "should be chief: 1, ps: a count, worker: gpus"),
        ({"chief": 2, "ps": 1, "worker": "gpus"}, "should be chief: 1, ps: a count, worker: gpus"),
        ({"chief": 1, "ps": 1, "worker": 2}, "should be chief: 1, ps: a count, worker: gpus"),
        ({"chief": 1, "ps": 1, "worker": "gpus", "boss": 1}, "should be chief: 1, ps: a count, worker: gpus"),
        ({"chief": 1, "ps": 0, "worker": "gpus"}, "strategy.processes.roles.ps=0 should be a count, at least 1"),
        ({"chief": 1, "ps": "x", "worker": "gpus"}, "strategy.processes.roles.ps=x should be a count, at least 1"),
        (None, "strategy.processes={'roles': None} should be one_per_device, one_for_all or roles"),
    ],
)
def test_roles_that_make_no_sense(roles: Any, told: str) -> None:
    assert told in line(config(strategy__processes={"roles": roles}))


@pytest.mark.parametrize(("gpus", "per_node"), [(1, [1]), (8, [8]), (10, [8, 2]), (24, [8, 8, 8])])
def test_a_second_node_only_when_the_first_is_full(gpus: int, per_node: list[int]) -> None:
    spec = of(gpus=gpus, hardware=ALPHA)
    assert spec.nodes == len(per_node)
    assert [sum(p.node == node for p in spec.places) for node in range(spec.nodes)] == per_node
    assert [p.local_rank for p in spec.places] == [k for count in per_node for k in range(count)]
    assert {p.threads for p in spec.places} == {6} and all(p.cpus == [] for p in spec.places)


def test_one_process_drives_the_devices_of_one_node() -> None:
    told = "null has one process for all devices, which are on 2 nodes with gpus=16"
    strategy = StrategySpec("null", processes="one_for_all", options={})
    for gpus, expected in ((8, False), (16, True)):
        reason = of(gpus=gpus, hardware=ALPHA, strategy=strategy).unsupported or ""
        assert (told in reason) == expected


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 16))
def test_no_two_processes_share_a_core_while_there_are_enough(gpus: int, threads: int, cores: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "usable_cpus", lambda: list(range(cores)))
        hardware = HardwareSpec("local", devices="cpu", gpus_per_node=2, cpus_per_node=cores, cpus_per_device=threads)
        places = place(config(hardware=hardware), gpus)
        taken = [cpu for p in places for cpu in p.cpus]
        assert set(taken) <= set(range(cores)) and all(p.cpus for p in places)
        enough = gpus * threads <= cores
        assert (len(taken) == len(set(taken)) == gpus * threads) if enough else resolve.oversubscribed(hardware, gpus)


NCCL = StrategySpec("ddp_nccl", devices=["cuda"], requires=[], backend="nccl")


UNQUEUED = dataclasses.replace(ALPHA, scheduler="none")
ANOTHER = "hardware=alpha is another machine (8 x A100 a node"
NEEDS_GPUS = "gradients over NCCL, which needs GPUs"
NO_GPU = "copies to a GPU ahead of time and there is none"
LATER = "its PyTorch adapter is not part of this version of scalebench"
NO_PACKAGE = "null needs no_such_package_x, which is not installed: pip install no_such_package_x"


@pytest.mark.parametrize(
    ("gpus_here", "changes", "told"),
    [
        (0, {"hardware": ALPHA}, f"{ANOTHER}, behind slurm), here is no GPU and no sbatch; use hardware=local"),
        (2, {"hardware": UNQUEUED}, f"{ANOTHER}), here is 2 GPUs; use hardware=local"),
        (2, {"hardware": GPUS_HERE, "gpus": 4}, "gpus=4 asks for more than the 2 GPUs here"),
        (4, {"hardware": GPUS_HERE, "gpus": 4}, None),
        (0, {"strategy": NCCL}, f"ddp_nccl exchanges {NEEDS_GPUS}; use strategy=ddp_gloo on CPU"),
        (4, {"hardware": GPUS_HERE, "strategy": NCCL}, None),
        (4, {"hardware": GPUS_HERE, "strategy__devices": ["cpu"]}, "null does not run on cuda"),
        (0, {"strategy__max_gpus": 1, "gpus": 2}, "null runs on 1 device only, gpus=2"),
        (0, {"strategy__requires": ["no_such_package_x"]}, NO_PACKAGE),
        (0, {"dataset__prefetch": "device"}, f"dataset.prefetch=device {NO_GPU}; use queue"),
        (4, {"hardware": GPUS_HERE, "dataset__prefetch": "device"}, None),
        (0, {"hardware__unsupported": {"null": "it sleeps"}}, "null does not work on cpu: it sleeps"),
        (0, {"hardware__unsupported": {"ddp": "it sleeps"}}, None),
        (0, {"strategy": StrategySpec("zero1")}, f"zero1: {LATER}"),
    ],
)
def test_what_is_impossible_here_says_why(
    machine_with: Any, gpus_here: int, changes: dict[str, Any], told: str | None
) -> None:
    machine_with(gpus_here)
    assert of(**changes).unsupported == told


@pytest.mark.parametrize(
    ("asked", "instead"), [("multiworker_nccl", "multiworker_ring"), ("mirrored_nccl", "mirrored")]
)
def test_nccl_on_the_cpu_names_a_strategy_that_there_is(machine_with: Any, asked: str, instead: str) -> None:
    machine_with(0)
    reason = of(strategy=StrategySpec(asked, devices=["cuda"], backend="nccl")).unsupported
    assert reason == f"{asked} exchanges {NEEDS_GPUS}; use strategy={instead} on CPU"


def test_all_reasons_are_told(machine_with: Any) -> None:
    machine_with(0)
    made = config(strategy__max_gpus=1, strategy__requires=["no_such_package_x"])
    assert len(obstacles(made, 2)) == 2
    assert (resolve.resolve(dataclasses.replace(made, gpus=2)).unsupported or "").count("; ") == 1


def test_gpus_left_out_and_given_have_one_fingerprint(machine_with: Any) -> None:
    machine_with(0)
    hardware = HardwareSpec("local")
    assert of(gpus=None, hardware=hardware).fingerprint == of(gpus=2, hardware=hardware).fingerprint
    assert of(gpus=1, hardware=hardware).fingerprint != of(gpus=2, hardware=hardware).fingerprint


def test_resolving_changes_nothing_of_the_config_it_is_given() -> None:
    made = config(gpus=None)
    before = dataclasses.asdict(made)
    resolve.resolve(made)
    assert dataclasses.asdict(made) == before
