"""This host and SLURM's answers checked against a hardware YAML: made-up machines, folders, and commands of SLURM.

After a wanted change `python -m tests.cli.doctor.test_hardware_check` writes golden/doctor.txt anew.
"""

import contextlib
import dataclasses
import io
import re
import shlex
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scalebench.__main__ import main
from scalebench.cli.commands.doctor import hardware_check
from scalebench.cluster import site_check
from scalebench.cluster.commands import JobRefused, Slurm, SlurmUnreachable
from scalebench.cluster.partition import parse_sinfo
from scalebench.cluster.site_check import OK, UNCHECKED, check_partition, check_slurm, is_near
from scalebench.core.machine import machine
from scalebench.core.machine.gpus import Gpu
from scalebench.core.spec import Config, HardwareSpec, SlurmSpec
from tests.builders.runs import MACHINE
from tests.conftest import ROOT
from tests.slurm.builders import SINFO

ALPHA_SPEC = HardwareSpec(
    "alpha", devices="cuda", gpus_per_node=8, cpus_per_node=48, max_nodes=3, memory_bytes=10**12, this_machine=False,
    scheduler="slurm", slurm=SlurmSpec(partition="alpha", exclusive=True),
)  # fmt: skip


def gpu(index, name="NVIDIA A100-SXM4-40GB", memory_bytes=40 * 2**30):
    return Gpu(index, name, f"GPU-{index}", memory_bytes, None, None, None, None, None)


GPUS = [gpu(index) for index in range(8)]
NODE = dataclasses.replace(
    MACHINE, hostname="taurusi8001.example.org", cpus=48, cpus_physical=48, memory_bytes=2**40, gpus=GPUS
)


def test_models_and_sizes_are_compared_loosely():
    for answer, here, same in (
        ("A100 SXM4 40GB", "NVIDIA A100-SXM4-40GB", True),
        ("A100 SXM4 40GB", "NVIDIA A100-SXM4-80GB", False),
        ("GTX 1080 Ti", "NVIDIA GeForce GTX 1080 Ti", True),
        ("GTX 1070", "GeForce GTX 1070 Ti", False),
        ("GTX 1080 Ti", "GeForce GTX 1080", False),
        ("Tesla P100 SXM2", "Tesla P100-SXM2-16GB", True),
        ("H100 PCIe", "NVIDIA H100 80GB HBM3", False),
    ):
        assert hardware_check.is_same_model(answer, here) == same, answer
    sizes = {64 * 10**9: True, 64 * 2**30: True, 62_000 * 2**20: True, 48 * 10**9: False}
    assert {size: is_near(64 * 10**9, size) for size in sizes} == sizes


CLUSTER = HardwareSpec("mine", this_machine=False, scheduler="slurm")
MOUNTS = [("/", "ext4"), ("/home", "nfs4"), ("/home/me/local", "xfs"), ("/scratch", "fuse.x")]


def test_the_file_system_of_a_path(monkeypatch):
    parts = [SimpleNamespace(mountpoint=folder, fstype=kind) for folder, kind in MOUNTS]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    assert {path: machine.find_file_system(Path(path)) for path in KINDS} == KINDS
    parts.clear()
    assert machine.find_file_system(Path("/opt/x")) is None


KINDS = {"/opt/x": "ext4", "/home/me": "nfs4", "/homes": "ext4", "/home/me/local/x": "xfs", "/scratch": "fuse.x"}


def test_shared_folders_are_on_a_network_file_system(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEBENCH_CACHE", "/elsewhere/cache")
    parts = [SimpleNamespace(mountpoint=at, fstype=kind) for at, kind in (("/", "ext4"), (str(tmp_path), "nfs4"))]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    results = {line.key: line for line in hardware_check.check_shared_folders(Config())}
    assert list(results) == ["folder of results", "Python", "scalebench", "data sets"]
    assert (results["folder of results"].actual, results["folder of results"].verdict) == (f"{tmp_path} on nfs4", OK)
    cache = results["data sets"]
    question = "/elsewhere/cache on ext4: is that a disk of this host only?"
    assert (cache.actual, cache.verdict) == (question, UNCHECKED)


ALPHA = "hardware=alpha hardware.max_nodes=3 hardware.interface=lo hardware.node_copy=null"


LOGIN = {"hostname": "login1", "gpus": []}
OTHER_PARTS = {
    "gpus": [*GPUS[:6], gpu(6, "Tesla K80"), gpu(7, memory_bytes=80 * 2**30)], "cpus": 24, "cpus_physical": 24,
    "memory_bytes": 512 * 2**30,
}  # fmt: skip
UNKNOWN = "hardware.slurm.partition=alpa hardware.slurm.container=/no/torch.sif"
# Words, changes of the host, and variables of its shell; golden/doctor.txt has the exit status and what is printed.
CASES = {
    "a node that fits": (ALPHA, {}, {}),
    "a node with half of the GPUs": (ALPHA, {"gpus": GPUS[:4]}, {}),
    "a node with other parts": (ALPHA, OTHER_PARTS, {}),
    "a node that tells little": (
        ALPHA, {"memory_bytes": None, "cpus": 1, "gpus": [gpu(n, None, memory_bytes=None) for n in range(8)]}, {}
    ),
    "a node without GPUs": (ALPHA, {"gpus": []}, {}),
    "a login node, which need not match": (ALPHA, LOGIN, {}),
    "a salloc shell on a login node: the allocation has the rest": (
        ALPHA, {"hostname": "login1"}, {"SLURM_JOB_ID": "12"}
    ),
    "within a job that was given one GPU": (
        ALPHA, {"hostname": "anything", "gpus": GPUS[:1]}, {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "taurusi8002"}
    ),
    "within a job of another partition": (ALPHA, {}, {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "h1"}),
    "settings on the same line": (f"{ALPHA} {UNKNOWN}", {}, {}),
    "a machine without a scheduler is this host": ("hardware=dgx1_p100", {}, {}),
    "hardware without values to compare": ("hardware=local", {}, {}),
}  # fmt: skip


def run_doctor(folder, words, changes, variables):
    """Return the exit status and what is printed for a host with commands of SLURM, without what is of this machine."""
    (folder / "sinfo.txt").write_text(SINFO)
    programs = {"sbatch": "echo slurm 22.05.8", "sinfo": f"exec /bin/cat {shlex.quote(str(folder / 'sinfo.txt'))}"}
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("PATH", str(folder))
        patch.setattr(psutil, "disk_partitions", lambda all: [])
        patch.setattr(machine, "detect_machine", lambda: dataclasses.replace(NODE, **changes))
        status = main(["doctor", *words.split(), f"hardware.slurm.bin={folder}"])
    left_out = ("folder of results", "Python", "scalebench ", "data sets", "─")
    lines = [line.strip() for line in out.getvalue().replace(str(folder), "BIN").splitlines()]
    lines = [re.sub(r" {2,}", "  ", line) for line in lines if line and not line.startswith(left_out)]
    return "\n".join([f"exit status {status}", *lines]) + "\n"


GOLDEN = ROOT / "tests/golden/doctor.txt"


def read_golden():
    return dict(re.findall(r"^== (.*)\n((?:(?!== ).*\n)+)", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE))


def test_a_folder_with_yaml_files_of_the_user(tmp_path, capsys):
    own = tmp_path / "conf" / "hardware"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("defaults:\n  - alpha\n  - _self_\nname: mine\ngpus_per_node: 4\n")
    for switch in (f"--config-dir {own.parent}", f"--config-dir={own.parent}", f"-cd {own.parent}"):
        assert "\ngpus_per_node  4  4  ok\n" in run_doctor(tmp_path, f"{switch} hardware=mine", {"gpus": GPUS[:4]}, {})
    (own / "mine.yaml").write_text("name: [\n")
    assert main(["doctor", "--config-dir", str(own.parent), "hardware=mine"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"scalebench: {own}/mine.yaml, line 2: ") and err.count("\n") == 1


def test_the_srun_command_names_account_and_qos(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    config = hardware_check.compose_hardware(
        ["hardware=alpha", "hardware.slurm.account=p_a", "hardware.devices=cpu", "hardware.slurm.exclusive=false"]
    )
    assert site_check.make_srun_hint(config.hardware, ["hardware=alpha"]).endswith(
        ": srun --nodes=1 --ntasks=1 --account=p_a --hint=nomultithread --partition=alpha "
        "scalebench doctor hardware=alpha"
    )


# Parts of the hardware YAML against a node, a partition or SLURM's answers; golden/doctor.txt has the lines.
NODES = parse_sinfo(SINFO)
UNLIMITED = [dataclasses.replace(node, limit_minutes=None) for node in NODES]
MIXED = [*NODES[:2], dataclasses.replace(NODES[2], cores=32, cpus=32, memory_bytes=2**39, gres="gpu:4")]
DOWN = [dataclasses.replace(NODES[2], state="down")]
NOTHING = HardwareSpec("local", devices="auto")
ALPHA_NODES = {
    "unknown values": (NOTHING, {}, {}),
    "unknown values and no GPU": (NOTHING, {"gpus": []}, {}),
    "CPU workers are not checked as GPUs": (
        HardwareSpec("cpu", devices="cpu", gpus_per_node=2, cpus_per_node=48), {}, {}
    ),
    "unknown cores": (ALPHA_SPEC, {"cpus_physical": None}, {}),
    "a job may have a part of the GPUs, and not more": (ALPHA_SPEC, {"gpus": [*GPUS, gpu(8)]}, {"in_job": True}),
    "an interface that is not there": (dataclasses.replace(CLUSTER, interface="ib1"), {}, {}),
    "a folder to copy to": (dataclasses.replace(CLUSTER, node_copy="."), {}, {}),
    "a folder to copy to that is to be made": (dataclasses.replace(CLUSTER, node_copy="not/there"), {}, {}),
    "a folder to copy to by a variable of the node": (dataclasses.replace(CLUSTER, node_copy="$OF_THIS_NODE"), {}, {}),
    "a folder to copy to by a variable that is not set": (dataclasses.replace(CLUSTER, node_copy="$NOT_SET/x"), {}, {}),
    "a file to copy to": (dataclasses.replace(CLUSTER, node_copy="file"), {}, {}),
}  # fmt: skip
TWO = {"gpus_per_node": 2}
# Settings of the hardware and of the job, and the nodes.
PARTITIONS = {
    # SLURM would refuse 96 whole cores of a node with 48: threads are counted only where the job counts them.
    "more cores than there are": ({"cpus_per_node": 96}, {}, NODES),
    "threads, which the job counts": ({"cpus_per_node": 96}, {"lines": ["--hint=multithread"]}, NODES),
    "nodes that differ": ({"max_nodes": 34}, {}, MIXED),
    "a job without GPUs asks for none": ({"devices": "cpu"}, {}, NODES),
    "no gres": ({}, {"gres": ""}, NODES),
    **{f"gres of {kind}": (TWO, {"partition": "main", "gres": f"gpu:{kind}:{{gpus}}"}, NODES)
       for kind in ("a100", "A100", "v100")},
    "an unknown partition": ({}, {"partition": "alpa"}, NODES),
    "no nodes": ({}, {}, []),
    "the default partition": (TWO, {"partition": None}, NODES),
    "no default partition": ({}, {"partition": None}, NODES[:3]),
    "no node is up": ({}, {}, DOWN),
    # Null asks for the 60 minutes of measure.timeout_s, and 2 to start.
    **{f"{minutes} minutes of {limit}": ({}, {"partition": partition, "time_minutes": minutes}, nodes)
       for minutes in (30, 60, 61, None)
       for limit, partition, nodes in (("60", "main", NODES), ("any", "alpha", UNLIMITED))},
}  # fmt: skip
MPI = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n"
PYXIS = {"container": "x.sqsh", "container_runtime": "pyxis"}
# What SLURM answers (None: no sbatch), and settings of the job.
ANSWERS = {
    "a job that sbatch refuses": ({"sbatch --test-only": JobRefused("Invalid account or account/partition")}, {}),
    "a job that sbatch does not judge": ({"sbatch --test-only": SlurmUnreachable("Socket timed out")}, {}),
    **{f"mpi {name}": ({}, {"mpi": name}) for name in ("pmix", "pmi2", "openmpi", "available")},
    "srun that lists no mpi": ({"srun --mpi": ""}, {"mpi": "pmix"}),
    "no mpirun, an unknown partition": ({}, {"partition": "alpa"}),
    "no pyxis": ({}, PYXIS),
    "pyxis": ({"srun --help": "  --container-image=[USER@]IMAGE\n"}, PYXIS),
    **{f"image {image}": ({}, {"container": image})
       for image in ("x.sif", "there.sif", "docker://nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io#nvidia/pytorch")},
    "no sbatch": (None, {}),
    "no sbatch where it should be": (None, {"bin": "/opt/slurm/bin"}),
    "a controller that does not answer": ({"sinfo": None}, {}),
}  # fmt: skip


class FakeSlurm(Slurm):
    """Answers by the first words of a command; None raises what SLURM would say. `asked` are the commands."""

    def __init__(self, answers):
        super().__init__(None)
        usual = {"sbatch --version": "slurm 22.05.8\n", "sinfo": SINFO, "sbatch --test-only": ""}
        self.answers = usual | {"srun --mpi": MPI, "srun --help": "--container\n"} | (answers or {})
        self.there = answers is not None
        self.asked = []

    def path(self, name):
        return f"/opt/slurm/bin/{name}" if self.there else None

    def run(self, name, *words, limit_s=20.0, **more):
        command = " ".join([name, *words])
        self.asked.append(command)
        answer = next((text for start, text in self.answers.items() if command.startswith(start)), None)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise SlurmUnreachable(f"no answer to {name}")
        return answer


def list_results(case):
    """Return the lines of a case in its current folder."""
    if case in ALPHA_NODES:
        hardware, changes, more = ALPHA_NODES[case]
        return hardware_check.check_node(hardware, dataclasses.replace(NODE, **changes), **more)
    if case in PARTITIONS:
        changes, slurm, nodes = PARTITIONS[case]
        hardware = dataclasses.replace(ALPHA_SPEC, slurm=dataclasses.replace(ALPHA_SPEC.slurm, **slurm), **changes)
        return check_partition(Config(hardware=hardware), nodes)
    answers, wants = ANSWERS[case]
    hardware = HardwareSpec(
        "alpha",
        devices="cuda",
        this_machine=False,
        scheduler="slurm",
        slurm=SlurmSpec(**{"partition": "alpha"} | wants),
    )
    return [*check_slurm(FakeSlurm(answers), Config(hardware=hardware))[0], *site_check.check_container(hardware)]


def describe(case, folder):
    if case in CASES:
        return run_doctor(folder, *CASES[case])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("file").touch()
        Path("there.sif").touch()
        for name, value in (("OF_THIS_NODE", "."), ("PATH", "")):
            patch.setenv(name, value)
        patch.setattr(psutil, "net_if_addrs", lambda: {"lo": [], "ib0": []})
        patch.setattr(hardware_check.shutil, "disk_usage", lambda path: SimpleNamespace(free=7e9))
        lines = ["  ".join(dataclasses.astuple(line)) for line in list_results(case)]
    return "".join(f"{line}\n" for line in lines).replace(str(folder), "HERE")


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *ALPHA_NODES, *PARTITIONS, *ANSWERS])
def test_a_host_and_slurm_are_compared_with_a_yaml(case, tmp_path):
    assert describe(case, tmp_path) == read_golden()[case]


def test_few_questions_and_none_that_starts_anything(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mpirun").touch(0o755)
    slurm, wants = FakeSlurm({}), SlurmSpec("alpha")
    results, nodes = check_slurm(slurm, Config(hardware=dataclasses.replace(ALPHA_SPEC, slurm=wants)))
    assert [command.split()[0] for command in slurm.asked] == ["sbatch", "sinfo", "sbatch"]
    assert slurm.asked[-1].startswith("sbatch --test-only ") and "--partition=alpha" in slurm.asked[-1]
    assert [node.name for node in nodes] == ["taurusi8001", "taurusi8002", "taurusi8003"], "of the partition"
    assert (results[-1].key, results[-1].actual, results[-1].verdict) == ("slurm.mpi", f"{tmp_path}/mpirun", OK)


if __name__ == "__main__":
    texts = []
    for case in [*CASES, *ALPHA_NODES, *PARTITIONS, *ANSWERS]:
        with tempfile.TemporaryDirectory() as folder:
            texts.append(f"== {case}\n{describe(case, Path(folder))}")
    GOLDEN.write_text("".join(texts), encoding="utf-8")
