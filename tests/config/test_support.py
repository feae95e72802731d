"""The reasons why a well-formed run is unsupported here, each in one sentence with the way out."""

import dataclasses
import functools
import shutil

import pytest

from scalebench.config import horovod_build
from scalebench.core.machine import cuda_builds
from scalebench.core.spec import HardwareSpec, ModelSpec, SlurmSpec, StrategySpec
from scalebench.strategies import registry
from tests.builders.configs import ALPHA, GPUS_HERE, fake_machine, make_spec


@pytest.fixture
def machine_with(monkeypatch):
    return functools.partial(fake_machine, monkeypatch)


def test_one_process_drives_the_devices_of_one_node():
    message = "simulated has one process for all devices, which are on 2 nodes with gpus=16"
    strategy = StrategySpec("simulated", processes="one_for_all", options={})
    for gpus, expected in ((8, False), (16, True)):
        reason = make_spec(gpus=gpus, hardware=ALPHA, strategy=strategy).unsupported or ""
        assert (message in reason) == expected


NCCL = StrategySpec("ddp_nccl", devices=["cuda"], requires=[], backend="nccl")


UNQUEUED = dataclasses.replace(ALPHA, scheduler="none")
ANOTHER = "hardware=alpha is another machine (8 x A100 a node"
NEEDS_GPUS = "gradients over NCCL, which needs GPUs"
NO_GPU = "copies to a GPU ahead of time and there is none"
FEW = "hardware.hosts has 1 slots for 2 processes; give the hosts more slots or lower gpus"
FOR_MPIRUN = "hardware.hosts is for mpirun, and simulated is not; set strategy.launcher=mpi"
NO_PACKAGE = "simulated needs no_such_package_x, which is not installed: pip install no_such_package_x"
IMAGES = ModelSpec("resnet20_cifar10", input_shape=[32, 32, 3], outputs=10, loss="cross_entropy", metric="accuracy")
RECORDS = {"model": IMAGES, "dataset__name": "imagenet_tfrecord", "dataset__path": "/nowhere", "dataset__classes": 10}
READ_BY_TENSORFLOW = "dataset=imagenet_tfrecord is read by TensorFlow, and simulated trains with torch; use "


@pytest.mark.parametrize(
    ("gpus_here", "changes", "message"),
    [
        (0, {"hardware": ALPHA}, f"{ANOTHER}, behind slurm), here is no GPU and no sbatch; use hardware=local"),
        (2, {"hardware": UNQUEUED}, f"{ANOTHER}), here is 2 GPUs; use hardware=local"),
        (2, {"hardware": GPUS_HERE, "gpus": 4}, "gpus=4 asks for more than the 2 GPUs here"),
        (4, {"hardware": GPUS_HERE, "gpus": 4}, None),
        (0, {"strategy": NCCL}, f"ddp_nccl exchanges {NEEDS_GPUS}; use strategy=ddp on CPU"),
        (4, {"hardware": GPUS_HERE, "strategy": NCCL}, None),
        (4, {"hardware": GPUS_HERE, "strategy__devices": ["cpu"]}, "simulated does not run on cuda"),
        (0, {"strategy__max_gpus": 1, "gpus": 2}, "simulated runs on 1 device only, gpus=2"),
        (0, {"strategy__requires": ["no_such_package_x"]}, NO_PACKAGE),
        (0, {"dataset__prefetch": "device"}, f"dataset.prefetch=device {NO_GPU}; use queue"),
        (4, {"hardware": GPUS_HERE, "dataset__prefetch": "device"}, None),
        (0, {"hardware__unsupported": {"simulated": "it sleeps"}}, "simulated does not work on cpu: it sleeps"),
        (0, {"hardware__unsupported": {"ddp": "it sleeps"}}, None),
        (0, {"hardware__hosts": ["a:1"], "strategy__launcher": "mpi", "gpus": 2}, FEW),
        (0, {"hardware__hosts": ["a:2"], "gpus": 2}, FOR_MPIRUN),
        (0, {**RECORDS, "strategy__framework": "tensorflow"}, None),
        (
            0,
            {**RECORDS, "strategy__framework": "torch"},
            f"{READ_BY_TENSORFLOW}dataset=imagenet_jpeg, or a strategy of TensorFlow",
        ),
    ],
)
def test_what_is_impossible_here_says_why(machine_with, gpus_here, changes, message):
    machine_with(gpus_here)
    assert make_spec(**changes).unsupported == message


@pytest.mark.parametrize(
    ("requested", "instead"), [("multiworker_nccl", "multiworker_ring"), ("mirrored_nccl", "mirrored")]
)
def test_nccl_on_the_cpu_names_a_strategy_that_there_is(machine_with, requested, instead):
    machine_with(0)
    reason = make_spec(strategy=StrategySpec(requested, devices=["cuda"], backend="nccl")).unsupported
    assert reason == f"{requested} exchanges {NEEDS_GPUS}; use strategy={instead} on CPU"


def test_all_reasons_are_listed(machine_with):
    machine_with(0)
    reasons = make_spec(gpus=2, strategy__max_gpus=1, strategy__requires=["no_such_package_x"]).unsupported
    assert str(reasons).split("; ") == ["simulated runs on 1 device only, gpus=2", NO_PACKAGE]


@pytest.mark.gpu
@pytest.mark.parametrize("devices", ["cpu", "cuda"])
def test_two_owners_of_nccl_are_a_reason_on_gpus(machine_with, monkeypatch, devices):
    machine_with(2)
    owners = {"nvidia/nccl/lib/libnccl.so.2": ["nvidia-nccl-cu12 2.27.7", "nvidia-nccl-cu13 2.29.7"]}
    monkeypatch.setattr(cuda_builds, "find_library_owners", lambda: owners)
    reason = make_spec(gpus=2, hardware=HardwareSpec("local", devices=devices)).unsupported
    if devices == "cpu":
        assert reason is None
    else:
        assert reason is not None and reason.startswith("nvidia-nccl-cu12 2.27.7 and nvidia-nccl-cu13 2.29.7 both own")


CPU_ONLY = "horovod_nccl exchanges gradients over NCCL, which needs GPUs; use strategy=horovod on CPU"
NO_MPIRUN = "horovod_mpi is started by mpirun, which is not on the PATH: apt-get install openmpi-bin"
NO_HOROVOD = "horovod_gloo needs horovod, which is not installed: scalebench install horovod"
NO_NCCL = (
    "Horovod 0.28.1 was built without NCCL: "
    "HOROVOD_GPU_OPERATIONS=NCCL scalebench install horovod, on a machine with nvcc and NCCL"
)  # fmt: skip
HERE = HardwareSpec("local")


def horovod(backend, **changes):
    """A strategy of Horovod with PyTorch, as its YAML says."""
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
    assert (make_spec(gpus=2, hardware=ALPHA, strategy=horovod("nccl")).unsupported or "").startswith(ANOTHER)
    monkeypatch.setattr(registry, "missing_packages", lambda names: ["horovod"])
    assert make_spec(gpus=2, hardware=HERE, strategy=horovod("gloo")).unsupported == NO_HOROVOD
    assert inspections == []


def test_mpirun_on_the_path_is_used(machine_with, inspections, monkeypatch):
    machine_with(0)
    monkeypatch.setattr(shutil, "which", lambda name, **where: f"/usr/bin/{name}")
    assert make_spec(gpus=2, hardware=HERE, strategy=horovod("mpi")).unsupported is None
    crash = "Horovod's Gloo operations crash under mpirun: use strategy.launcher=local"
    assert make_spec(gpus=2, hardware=HERE, strategy=horovod("gloo", launcher="mpi")).unsupported == crash


HOSTS = {"hardware__hosts": ["a:2", "b:2"], "strategy__launcher": "mpi"}
NODES = HardwareSpec("nodes", devices="cpu", gpus_per_node=2, max_nodes=2)


def test_named_hosts_are_not_limited_by_this_machine(machine_with, monkeypatch):
    machine_with(2)
    monkeypatch.setattr(shutil, "which", lambda name, **where: f"/usr/bin/{name}")
    assert make_spec(gpus=4, hardware=GPUS_HERE, **HOSTS).unsupported is None
    elsewhere = dataclasses.replace(UNQUEUED, gpus_per_node=2)
    assert make_spec(gpus=4, hardware=elsewhere, **HOSTS).unsupported is None


def test_one_process_stays_on_one_host(machine_with, monkeypatch):
    machine_with(0)
    monkeypatch.setattr(shutil, "which", lambda name, **where: f"/usr/bin/{name}")
    changes = {**HOSTS, "strategy__processes": "one_for_all", "hardware__layout": "spread"}
    assert make_spec(gpus=2, **changes).unsupported is None
    message = "simulated has one process for all devices, which are on 2 nodes with gpus=3"
    assert make_spec(gpus=3, **changes).unsupported == message


def test_several_nodes_need_named_hosts(machine_with):
    machine_with(0)
    message = "gpus=3 need 2 nodes and only this machine is here; name them in hardware.hosts"
    assert make_spec(gpus=3, hardware=NODES).unsupported == message
    assert make_spec(gpus=2, hardware=NODES).unsupported is None
    assert make_spec(gpus=3, hardware=dataclasses.replace(NODES, max_nodes=1)).unsupported is None


@pytest.mark.parametrize("layout", ["sequence", "spread"])
def test_more_devices_than_all_nodes_have(machine_with, layout):
    machine_with(0)
    reason = make_spec(gpus=5, hardware=dataclasses.replace(NODES, this_machine=False, layout=layout)).unsupported or ""
    assert reason.endswith("gpus=5 asks for 3 nodes, hardware=nodes has 2 of 2 devices each")


def test_by_hand_is_for_hosts_without_a_scheduler(machine_with):
    machine_with(0)
    reason = make_spec(gpus=2, hardware=ALPHA, strategy__launcher="by_hand").unsupported or ""
    assert reason.endswith("strategy.launcher=by_hand is for hosts without a scheduler, and there is slurm")
    assert make_spec(gpus=2, strategy__launcher="by_hand", hardware__hosts=["a:1", "b:1"]).unsupported is None


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
    hardware = dataclasses.replace(ALPHA, slurm=SlurmSpec(container="/images/torch.sif"))
    reason = make_spec(gpus=8, hardware=hardware, strategy__launcher="mpi").unsupported
    assert (
        reason == "mpirun starts the ranks of simulated outside hardware.slurm.container; set hardware.slurm.mpi=pmix"
    )
    by_srun = dataclasses.replace(hardware, slurm=dataclasses.replace(hardware.slurm, mpi="pmix"))
    assert make_spec(gpus=8, hardware=by_srun, strategy__launcher="mpi").unsupported is None
