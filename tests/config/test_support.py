"""The reasons why a well-formed run is unsupported here, each in one sentence with the way out."""

import dataclasses
import shutil

import pytest

from scalebench.config import horovod_build
from scalebench.core.machine import cuda_builds
from scalebench.core.spec import HardwareSpec, ModelSpec, SlurmSpec, StrategySpec
from scalebench.strategies import registry
from tests.builders.configs import ALPHA, GPUS_HERE, make_spec


@pytest.fixture
def mpirun(machine_with, monkeypatch):
    machine_with(2)
    monkeypatch.setattr(shutil, "which", lambda name, **where: f"/usr/bin/{name}")


NCCL = StrategySpec("ddp_nccl", devices=["cuda"], requires=[], backend="nccl")


UNQUEUED = dataclasses.replace(ALPHA, scheduler="none")
ANOTHER = "hardware=alpha is another machine (8 x A100 a node"
NEEDS_GPUS = "gradients over NCCL, which needs GPUs"
NO_PACKAGE = "simulated needs no_such_package_x, which is not installed: pip install no_such_package_x"
IMAGES = ModelSpec("resnet20_cifar10", input_shape=[32, 32, 3], outputs=10, loss="cross_entropy", metric="accuracy")
RECORDS = {"model": IMAGES, "dataset__name": "imagenet_tfrecord", "dataset__path": "/nowhere", "dataset__classes": 10}


ONE_FOR_ALL = StrategySpec("simulated", processes="one_for_all", options={})
ON_TWO_NODES = "simulated has one process for all devices, which are on 2 nodes with gpus={}"
NODES = HardwareSpec("nodes", devices="cpu", gpus_per_node=2, max_nodes=2)
ELSEWHERE = dataclasses.replace(NODES, this_machine=False)
ASKS_FOR_3 = "gpus=5 asks for 3 nodes, hardware=nodes has 2 of 2 devices each"
BY_HAND = {"strategy__launcher": "by_hand"}
ALL_REASONS = {"gpus": 2, "strategy__max_gpus": 1, "strategy__requires": ["no_such_package_x"]}


@pytest.mark.parametrize(
    ("gpus_here", "changes", "message"),
    [
        (0, {"hardware": ALPHA}, f"{ANOTHER}, behind slurm), here is no GPU and no sbatch; use hardware=local"),
        (2, {"hardware": UNQUEUED}, f"{ANOTHER}), here is 2 GPUs; use hardware=local"),
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
        (0, {**RECORDS, "strategy__framework": "tensorflow"}, None),
        (0, {**RECORDS, "strategy__framework": "torch"},
         "dataset=imagenet_tfrecord is read by TensorFlow, and simulated trains with torch; use dataset=imagenet_jpeg, "
         "or a strategy of TensorFlow"),
        (0, {"hardware": NODES, "gpus": 3},
         "gpus=3 need 2 nodes and only this machine is here; name them in hardware.hosts"),
        (0, {"hardware": NODES, "gpus": 2}, None),
        (0, {"hardware": dataclasses.replace(NODES, max_nodes=1), "gpus": 3}, None),
        (0, {"gpus": 2, **BY_HAND, "hardware__hosts": ["a:1", "b:1"]}, None),
    ],
)  # fmt: skip
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
NO_NCCL = "Horovod 0.28.1 was built without NCCL: HOROVOD_GPU_OPERATIONS=NCCL scalebench install horovod, on a machine "
NO_NCCL += "with nvcc and NCCL"
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

    def find(framework):
        taken.append(framework)
        return horovod_build.HorovodBuild("0.28.1", "2.13.0", ("mpi", "gloo"), None)

    monkeypatch.setattr(horovod_build, "inspect_horovod", find)
    monkeypatch.setattr(registry, "missing_packages", lambda names: [])
    return taken


@pytest.mark.parametrize(
    ("gpus_here", "strategy", "message", "looked"),
    [
        (0, horovod("gloo"), None, True),
        (0, horovod("nccl"), CPU_ONLY, False),
        (0, horovod("nccl", launcher="mpi"), CPU_ONLY, False),
        (2, horovod("nccl"), NO_NCCL, True),
        (0, horovod("mpi"), NO_MPIRUN, False),
        (0, StrategySpec("simulated", launcher="mpi"), NO_MPIRUN.replace("horovod_mpi", "simulated"), False),
        (0, horovod("gloo", max_gpus=1), "horovod_gloo runs on 1 device only, gpus=2", False),
    ],
)
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


def test_mpirun_on_the_path_is_used(mpirun, inspections):
    cpu = HardwareSpec("local", devices="cpu")
    assert make_spec(gpus=2, hardware=cpu, strategy=horovod("mpi")).unsupported is None
    crash = "Horovod's Gloo operations crash under mpirun: use strategy.launcher=local"
    assert make_spec(gpus=2, hardware=cpu, strategy=horovod("gloo", launcher="mpi")).unsupported == crash


def test_an_allocation_with_too_few_nodes(machine_with, monkeypatch):
    machine_with(0)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    message = "gpus=16 need 2 nodes, and this job has 1 node; ask for more, or lower gpus"
    assert make_spec(gpus=16, hardware=ALPHA).unsupported == message
    assert make_spec(gpus=8, hardware=ALPHA).unsupported is None
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert make_spec(gpus=16, hardware=ALPHA).unsupported is None


def test_mpirun_starts_no_containers(machine_with, monkeypatch):
    machine_with(0)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    message = "mpirun starts the ranks of simulated outside hardware.slurm.container; set hardware.slurm.mpi=pmix"
    for slurm, expected in (
        (SlurmSpec(container="/x.sif"), message),
        (SlurmSpec(container="/x.sif", mpi="pmix"), None),
    ):
        hardware = dataclasses.replace(ALPHA, slurm=slurm)
        assert make_spec(gpus=8, hardware=hardware, strategy__launcher="mpi").unsupported == expected
