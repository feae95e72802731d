"""A config becomes a RunSpec, or is unsupported here, with a reason; golden/mistakes.txt has what is refused."""

import dataclasses
import itertools
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.config import horovod_build, validate
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.core.machine import cuda_builds
from scalebench.core.spec import DatasetSpec, HardwareSpec, SlurmSpec, StopSpec, StrategySpec, TrainSpec
from scalebench.runner.launchers.rank_environment import build_environment
from scalebench.strategies import registry
from scalebench.strategies.base import check_values
from tests.builders.configs import ALPHA, GPUS_HERE, make_config, make_spec, resolve_error
from tests.builders.runs import simulated_config


@given(st.integers(1, 64), st.integers(1, 5000))
def test_weak_scaling_keeps_the_batch_of_a_device_and_strong_scaling_the_global_one(gpus, batch):
    """Shards differ by one."""
    spec = make_spec(gpus=gpus, train__batch_per_device=batch, dataset__size=1_000_000)
    assert (spec.batch_per_device, spec.global_batch) == (batch, batch * gpus)
    made = make_config(gpus=gpus, scaling="strong", train__global_batch=batch, dataset__size=100_000)
    if batch < gpus:
        assert "fewer than" in resolve_error(made)
        return
    spec = resolve(made)
    assert spec.global_batch == batch
    assert (spec.batch_per_device - 1) * gpus < batch <= spec.batch_per_device * gpus


@pytest.mark.gpu
def test_the_default_precision_is_float32_on_cpus_and_the_frameworks_own_on_gpus():
    """On a CPU both words are one run: resume, history and comparisons find it by its fingerprint."""
    fingerprints = []
    for devices, precision in itertools.product(("cpu", "cuda"), ("default", "float32")):
        hardware = HardwareSpec("x", devices=devices, gpus_per_node=1, this_machine=False)
        spec = make_spec(hardware=hardware, train__precision=precision)
        assert spec.config.train.precision == ("float32" if devices == "cpu" else precision)
        fingerprints.append(spec.fingerprint)
    assert fingerprints[0] == fingerprints[1] and len(set(fingerprints)) == 3


def test_a_batch_of_one_device_and_samples_of_a_file_are_enough():
    spec = make_spec(gpus=2, scaling="strong", train__batch_per_device=75)
    assert (spec.batch_per_device, spec.global_batch) == (38, 75), "it falls back on the batch of one device"
    assert make_spec(dataset__size=1, dataset__path="/some.npz").global_batch == 10, "a file is counted later"
    make_spec(hardware=dataclasses.replace(ALPHA, node_copy="$TMPDIR/data"))


def test_gpus_left_out_means_all_devices(machine_with):
    for gpus_here, devices, want in ((0, "auto", 2), (4, "auto", 4), (4, "cpu", 2)):
        machine_with(gpus_here)
        hardware = HardwareSpec("local", devices=devices)
        made = make_config(gpus=None, hardware=hardware)
        before = dataclasses.asdict(made)
        spec = resolve(made)
        assert dataclasses.asdict(made) == before, "the config itself stays"
        assert make_spec(gpus="all", hardware=hardware) == spec
        assert spec.gpus == spec.config.gpus == want
        assert spec.device == ("cuda" if gpus_here and devices == "auto" else "cpu")
        assert make_spec(gpus=want, hardware=hardware).fingerprint == spec.fingerprint


def test_options_without_a_value_and_whole_floats_are_accepted_and_values_beyond_their_bounds_refused():
    choices, at_least = {"micro_batches": [1, 7]}, {"micro_batches": 1}
    for allowed in (None, 1, 1.0, 7):
        options = {"micro_batches": allowed}
        check_values(StrategySpec("pipeline_gpipe", options=options, choices=choices, at_least=at_least))
    for kinds, line in (
        ({"choices": choices}, "^no .* '0'; known: 1, 7$"),
        ({"at_least": at_least}, "=0 should be at"),
    ):
        with pytest.raises(InputError, match=line):
            check_values(StrategySpec("pipeline_gpipe", options={"micro_batches": 0}, **kinds))


def test_options_can_make_the_steps_of_a_strategy_exact():
    rounds, ours = "rounds to 16 bits", simulated_config({"step_s": 0.001})
    step_s = ours.strategy.options["step_s"]
    for exact_with, is_exact in (
        ({"step_s": step_s}, True), ({"step_s": 2.0}, False), ({"step_s": step_s, "mode": "slow"}, False), ({}, False),
    ):  # fmt: skip
        strategy = dataclasses.replace(ours.strategy, approximate=rounds, tolerance=None, exact_with=exact_with)
        resolved = resolve(dataclasses.replace(ours, strategy=strategy)).config.strategy
        assert (resolved.approximate, resolved.tolerance) == ((None, 1e-4) if is_exact else (rounds, None))


TO_END = {"stop": {"epochs": 3.0}}


def config(train, gpus=1, measure=None, **dataset):
    train = TrainSpec(**{"batch_per_device": 10, **train, "stop": StopSpec(**train.get("stop", {}))})
    data = DatasetSpec("materials", **{"size": 64, **dataset})
    return simulated_config(measure=measure, gpus=gpus, train=train, dataset=data)


def test_settings_that_only_seem_to_contradict_each_other():
    assert resolve(config({"base_batch": 7})).learning_rate == 1e-3, "a sweep over rules has none among them"
    resolve(config({}, feed="fixed"))
    # The smallest shard of a global batch that does not divide: 11 samples on two devices are 6 and 5.
    made = config({"batch_per_device": 1, "global_batch": 11, "accumulate": 5}, gpus=2)
    made.scaling = "strong"
    resolve(made)


def test_a_target_alone_has_a_time_limit():
    for measure, dataset, gpus in (
        ({"evaluate": False}, {}, 1), ({}, {"validation_share": 0.0}, 1), ({}, {"validation_share": 0.01}, 2),
    ):  # fmt: skip
        resolve(config({"stop": {"epochs": 1.0}}, gpus, measure, **dataset))
    # One sample is enough for one replica, and those of a file are counted later.
    resolve(config({"stop": {"target": 0.1}}, validation_share=0.01))
    resolve(config({"stop": {"target": 0.1}}, 2, validation_share=0.01, path="/some.npz"))
    train = TrainSpec(stop=StopSpec(target=0.1))
    assert validate.limit_training_time(train, 3600.0).stop == StopSpec(seconds=600.0, target=0.1)
    assert validate.limit_training_time(train, 100.0).stop.seconds == 50.0, "before the whole run is ended"
    assert train.stop.seconds is None
    for bounded in (StopSpec(), StopSpec(target=0.1, steps=5), StopSpec(target=0.1, epochs=5), StopSpec(seconds=5.0)):
        assert validate.limit_training_time(TrainSpec(stop=bounded), 100.0).stop is bounded
    assert resolve(config({"stop": {"target": 0.1}})).config.train.stop.seconds == 60.0


def test_replicas_without_sync_cannot_train_to_a_stop():
    made = config(TO_END, gpus=2)
    made.strategy = StrategySpec("simulated", baseline="simulated", independent=True)
    assert resolve(made).unsupported == (
        "replicas of simulated exchange nothing, and each trains a model of its own: there is no one training to "
        "stop, so leave out train.stop"
    )
    made.train.stop = StopSpec()
    assert resolve(made).unsupported is None


def test_names_and_values_of_variables_that_no_command_line_can_have_are_refused():
    for name in ("A=B", ""):
        message = f"hardware.environment: '{name}' is not a valid variable name"
        assert resolve_error(make_config(hardware__environment={name: "1"})) == message
    assert "zero byte" in resolve_error(make_config(hardware__environment={"A": "1\0"}))


def test_variables_reach_every_process_and_the_fingerprint(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_LEVEL", "SYS")
    chosen = {"NCCL_P2P_LEVEL": "PIX", "GLOO_SOCKET_IFNAME": "eth1", "RANKS": "0"}
    spec = make_spec(gpus=2, hardware__environment=chosen)
    for rank in range(2):
        variables = build_environment(spec, "an id", rank, ["127.0.0.1:1"])
        assert chosen.items() <= variables.items()
        assert (variables["RANK"], variables["CUDA_DEVICE_ORDER"]) == (str(rank), "PCI_BUS_ID")
    one, two = {"A": "1", "B": "2"}, {"B": "2", "A": "1"}
    prints = [make_spec(gpus=2, hardware__environment=chosen).fingerprint for chosen in (one, two, {"A": "1"}, {})]
    assert prints[0] == prints[1] and len(set(prints)) == 3
    made = {gpus: make_spec(gpus=gpus, hardware__environment={"NCCL_P2P_DISABLE": "1", "A": "b"}) for gpus in (1, 2)}
    assert made[2].config.hardware.environment == {"A": "b", "NCCL_P2P_DISABLE": "1"}
    assert made[1].config.hardware.environment == {"A": "b"}, "NCCL does not matter on one device"
    assert made[1].fingerprint == resolve(make_config(gpus=1, hardware__environment={"A": "b"})).fingerprint


@pytest.fixture
def mpirun(machine_with, monkeypatch):
    machine_with(2)
    monkeypatch.setattr(shutil, "which", lambda name, **where: f"/usr/bin/{name}")


NCCL = StrategySpec("ddp_nccl", devices=["cuda"], requires=[], backend="nccl")


UNQUEUED = dataclasses.replace(ALPHA, scheduler="none")
ANOTHER = "hardware=alpha is another machine (8 x A100 a node"
NEEDS_GPUS = "gradients over NCCL, which needs GPUs"
NO_PACKAGE = "simulated needs no_such_package_x, which is not installed: pip install no_such_package_x"


ONE_FOR_ALL = StrategySpec("simulated", processes="one_for_all", options={})
ON_TWO_NODES = "simulated has one process for all devices, which are on 2 nodes with gpus={}"
NODES = HardwareSpec("nodes", devices="cpu", gpus_per_node=2, max_nodes=2)
ELSEWHERE = dataclasses.replace(NODES, this_machine=False)
ASKS_FOR_3 = "gpus=5 asks for 3 nodes, hardware=nodes has 2 of 2 devices each"
BY_HAND = {"strategy__launcher": "by_hand"}
ALL_REASONS = {"gpus": 2, "strategy__max_gpus": 1, "strategy__requires": ["no_such_package_x"]}


@pytest.mark.parametrize(("gpus_here", "changes", "message"), [
    (0, {"hardware": ALPHA}, f"{ANOTHER}, behind slurm), and this one has no GPU and no sbatch; use hardware=local"),
    (2, {"hardware": UNQUEUED}, f"{ANOTHER}), and this one has 2 GPUs; use hardware=local"),
    (2, {"hardware": GPUS_HERE, "gpus": 4}, "gpus=4 asks for more than the 2 GPUs here"),
    (4, {"hardware": GPUS_HERE, "gpus": 4}, None),
    (0, {"strategy": NCCL}, f"ddp_nccl exchanges {NEEDS_GPUS}; use strategy=ddp on CPU"),
    *((0, {"strategy": dataclasses.replace(NCCL, name=name)},
       f"{name} exchanges {NEEDS_GPUS}; use strategy={instead} on CPU")
      for name, instead in (("multiworker_nccl", "multiworker_ring"), ("mirrored_nccl", "mirrored"))),
    (4, {"hardware": GPUS_HERE, "strategy": NCCL}, None),
    (4, {"hardware": GPUS_HERE, "strategy__devices": ["cpu"]}, "simulated does not run on cuda"),
    (0, {"strategy__max_gpus": 1, "gpus": 2}, "simulated runs on 1 device only, gpus=2"),
    (0, {"strategy__requires": ["no_such_package_x"]}, NO_PACKAGE),
    (0, ALL_REASONS, f"simulated runs on 1 device only, gpus=2; {NO_PACKAGE}"),
    (0, {"dataset__prefetch": "device"},
     "dataset.prefetch=device copies to a GPU ahead of time and there is none; use queue"),
    (4, {"hardware": GPUS_HERE, "dataset__prefetch": "device"}, None),
    (0, {"hardware__unsupported": {"simulated": "it sleeps"}}, "simulated does not work on cpu: it sleeps"),
    (0, {"hardware__unsupported": {"ddp": "it sleeps"}}, None),
    (0, {"hardware__hosts": ["a:1"], "strategy__launcher": "mpi", "gpus": 2},
     "hardware.hosts has 1 slots for 2 processes; give the hosts more slots or lower gpus"),
    (0, {"hardware__hosts": ["a:2"], "gpus": 2},
     "hardware.hosts is for mpirun, and simulated is not; set strategy.launcher=mpi"),
    (0, {"hardware": NODES, "gpus": 3},
     "gpus=3 need 2 nodes and only this machine is here; name them in hardware.hosts"),
    (0, {"hardware": NODES, "gpus": 2}, None),
    (0, {"hardware": dataclasses.replace(NODES, max_nodes=1), "gpus": 3}, None),
    (0, {"gpus": 2, **BY_HAND, "hardware__hosts": ["a:1", "b:1"]}, None),
])  # fmt: skip
def test_what_is_impossible_here_says_why(machine_with, gpus_here, changes, message):
    machine_with(gpus_here)
    assert make_spec(**changes).unsupported == message


def test_the_last_of_several_reasons(machine_with):
    machine_with(0)
    for gpus, hardware, changes, message in (
        (16, ALPHA, {"strategy": ONE_FOR_ALL}, ON_TWO_NODES.format(16)),
        (2, ALPHA, BY_HAND, "strategy.launcher=by_hand is for hosts without a scheduler, and there is slurm"),
        *((5, dataclasses.replace(ELSEWHERE, layout=layout), {}, ASKS_FOR_3) for layout in ("sequence", "spread")),
    ):
        assert make_spec(gpus=gpus, hardware=hardware, **changes).unsupported.endswith(message)
    assert "one process" not in make_spec(gpus=8, hardware=ALPHA, strategy=ONE_FOR_ALL).unsupported


def test_named_hosts_are_not_limited_by_this_machine(mpirun):
    on_hosts = {"hardware__hosts": ["a:2", "b:2"], "strategy__launcher": "mpi"}
    for hardware in (GPUS_HERE, dataclasses.replace(UNQUEUED, gpus_per_node=2)):
        assert make_spec(gpus=4, hardware=hardware, **on_hosts).unsupported is None
    on_hosts |= {"strategy__processes": "one_for_all", "hardware__layout": "spread"}  # one process stays on one host
    assert make_spec(gpus=2, **on_hosts).unsupported is None
    assert make_spec(gpus=3, **on_hosts).unsupported == ON_TWO_NODES.format(3)


@pytest.mark.gpu
def test_two_owners_of_nccl_are_a_reason_on_gpus(machine_with, monkeypatch):
    machine_with(2)
    owners = ["nvidia-nccl-cu12 2.27.7", "nvidia-nccl-cu13 2.29.7"]
    monkeypatch.setattr(cuda_builds, "find_library_owners", lambda: {"nvidia/nccl/lib/libnccl.so.2": owners})
    assert make_spec(gpus=2, hardware=HardwareSpec("local", devices="cpu")).unsupported is None
    assert make_spec(gpus=2, hardware=GPUS_HERE).unsupported.startswith(" and ".join(owners) + " both own")


CPU_ONLY = "horovod_nccl exchanges gradients over NCCL, which needs GPUs; use strategy=horovod on CPU"
NO_MPIRUN = "horovod_mpi is started by mpirun, which is not on the PATH: apt-get install openmpi-bin"
NO_HOROVOD = "horovod_gloo needs horovod, which is not installed: scalebench install horovod"
HERE = HardwareSpec("local")


def horovod(backend, **changes):
    made = StrategySpec(f"horovod_{backend}", framework="torch", requires=["torch", "horovod"], backend=backend)
    made.devices = ["cuda"] if backend == "nccl" else ["cpu", "cuda"]
    made.launcher = "mpi" if backend == "mpi" else "local"
    return dataclasses.replace(made, **changes)


@pytest.fixture
def inspections(monkeypatch):
    """Record the inspections of Horovod 0.28.1, which is installed with MPI and Gloo."""
    taken = []

    monkeypatch.setattr(horovod_build, "find_build_problem", taken.append)
    monkeypatch.setattr(registry, "missing_packages", lambda names: [])
    return taken


@pytest.mark.parametrize(("gpus_here", "strategy", "message", "looked"), [
    (0, horovod("gloo"), None, True),
    (0, horovod("nccl"), CPU_ONLY, False),
    (0, horovod("nccl", launcher="mpi"), CPU_ONLY, False),
    (2, horovod("nccl"), None, True),
    (0, horovod("mpi"), NO_MPIRUN, False),
    (0, StrategySpec("simulated", launcher="mpi"), NO_MPIRUN.replace("horovod_mpi", "simulated"), False),
    (0, horovod("gloo", max_gpus=1), "horovod_gloo runs on 1 device only, gpus=2", False),
])  # fmt: skip
def test_reasons_why_horovod_cannot_run(machine_with, inspections, gpus_here, strategy, message, looked):
    machine_with(gpus_here)
    assert make_spec(gpus=2, hardware=HERE, strategy=strategy).unsupported == message
    assert inspections == (["torch"] if looked else [])


def test_horovod_is_not_inspected_in_vain(machine_with, inspections, monkeypatch):
    """Neither for another machine nor where it is missing."""
    machine_with(0)
    assert make_spec(gpus=2, hardware=ALPHA, strategy=horovod("nccl")).unsupported.startswith(ANOTHER)
    monkeypatch.setattr(registry, "missing_packages", lambda names: ["horovod"])
    assert make_spec(gpus=2, hardware=HERE, strategy=horovod("gloo")).unsupported == NO_HOROVOD
    assert inspections == []


def test_within_an_allocation_nodes_may_be_too_few_and_mpirun_starts_no_containers(machine_with, monkeypatch):
    machine_with(0)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    message = "gpus=16 need 2 nodes, and this job has 1 node; ask for more, or lower gpus"
    assert make_spec(gpus=16, hardware=ALPHA).unsupported == message
    assert make_spec(gpus=8, hardware=ALPHA).unsupported is None
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert make_spec(gpus=16, hardware=ALPHA).unsupported is None
    message = "mpirun starts the ranks of simulated outside hardware.slurm.container; set hardware.slurm.mpi=pmix"
    for slurm, expected in (
        (SlurmSpec(container="/x.sif"), message),
        (SlurmSpec(container="/x.sif", mpi="pmix"), None),
    ):
        hardware = dataclasses.replace(ALPHA, slurm=slurm)
        assert make_spec(gpus=8, hardware=hardware, strategy__launcher="mpi").unsupported == expected
