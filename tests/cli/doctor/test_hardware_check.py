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
from scalebench.cli.commands.doctor.slurm_check import DIFFERS, OK, UNCHECKED, check_partition, check_slurm, is_near
from scalebench.core.machine import machine
from scalebench.core.machine.gpus import Gpu
from scalebench.core.spec import Config, HardwareSpec, MeasureSpec, SlurmSpec
from scalebench.slurm.commands import Slurm, SlurmError, SlurmUnreachable
from scalebench.slurm.partition import parse_sinfo
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


def node_results(hardware, in_job=False, **changes):
    here = dataclasses.replace(NODE, **changes)
    return {line.key: line for line in hardware_check.check_node(hardware, here, in_job)}


def test_unknown_values_are_not_checked_and_cores_are_those_of_the_node():
    nothing = HardwareSpec("local", devices="auto")
    assert {line.verdict for line in node_results(nothing).values()} == {UNCHECKED}
    assert {line.expected for line in node_results(nothing, gpus=[]).values()} == {"null"}
    workers = node_results(HardwareSpec("cpu", devices="cpu", gpus_per_node=2, cpus_per_node=48))
    assert list(workers) == ["cpus_per_node", "memory_bytes"], "CPU workers are not checked as GPUs"
    assert node_results(ALPHA_SPEC, cpus_physical=None)["cpus_per_node"].verdict == OK
    more = node_results(ALPHA_SPEC, in_job=True, gpus=[*GPUS, gpu(8)])["gpus_per_node"]
    assert more.verdict == DIFFERS, "a job may have a part of the GPUs, and not more"


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


def verdicts(hardware):
    return {line.key: (line.actual, line.verdict) for line in hardware_check.check_node(hardware, MACHINE)}


def test_interfaces_and_file_systems(monkeypatch):
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": [], "ib0": []})
    assert verdicts(dataclasses.replace(CLUSTER, interface="ib1"))["interface"] == ("only ib0 lo", DIFFERS)
    # The file system of a path.
    parts = [SimpleNamespace(mountpoint=folder, fstype=kind) for folder, kind in MOUNTS]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    assert {path: machine.find_file_system(Path(path)) for path in KINDS} == KINDS
    parts.clear()
    assert machine.find_file_system(Path("/opt/x")) is None


def test_the_folder_to_copy_to(tmp_path, monkeypatch):
    def message(node_copy):
        return verdicts(dataclasses.replace(CLUSTER, node_copy=node_copy))["node_copy"]

    here, verdict = message(str(tmp_path))
    assert here.endswith(" GB free") and not here.startswith("to be made") and verdict == OK
    here, verdict = message(str(tmp_path / "not" / "there"))
    assert here.startswith("to be made, ") and verdict == OK
    monkeypatch.setenv("OF_THIS_NODE", str(tmp_path))
    assert message("$OF_THIS_NODE") == message(str(tmp_path))
    assert message("$NOT_SET/x") == ("names a variable that is not set here", UNCHECKED)
    (tmp_path / "file").touch()
    assert message(str(tmp_path / "file")) == (f"{tmp_path / 'file'} cannot be written to", DIFFERS)


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


def test_images(tmp_path):
    def message(container):
        (line,) = hardware_check.check_container(dataclasses.replace(CLUSTER, slurm=SlurmSpec(container=container)))
        return line.actual, line.verdict

    (image := tmp_path / "torch.sif").touch()
    assert message(str(image)) == ("can be read", OK)
    for address in ("docker://nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io#nvidia/pytorch:24.01-py3"):
        assert message(address) == ("an address, which the nodes fetch", UNCHECKED)


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


@pytest.mark.parametrize("case", CASES)
def test_a_host_is_compared_with_its_hardware(case, tmp_path):
    assert run_doctor(tmp_path, *CASES[case]) == read_golden()[case]


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
    assert hardware_check.make_srun_hint(config.hardware, ["hardware=alpha"]).endswith(
        ": srun --nodes=1 --ntasks=1 --partition=alpha --account=p_a scalebench doctor hardware=alpha"
    )


# SLURM's answers, from sinfo's lines and made-up commands, checked against a YAML.
NODES = parse_sinfo(SINFO)


def partition_results(hardware=None, nodes=NODES, **slurm):
    wants = dataclasses.replace(ALPHA_SPEC.slurm, **slurm)
    config = Config(hardware=dataclasses.replace(ALPHA_SPEC, slurm=wants, **(hardware or {})), measure=MeasureSpec())
    return {line.key: line for line in check_partition(config, nodes)}


UNLIMITED = [dataclasses.replace(node, limit_minutes=None) for node in NODES]
MIXED = [*NODES[:2], dataclasses.replace(NODES[2], cores=32, cpus=32, memory_bytes=2**39, gres="gpu:4")]
TWO = {"gpus_per_node": 2}
CORES, MEMORY = "cpus_per_node of the partition", "memory_bytes of the partition"
# Settings of the hardware and of the job, the nodes, and lines of the answer: expected (None: any), actual, verdict.
PARTITIONS = [
    # SLURM would refuse 96 whole cores of a node with 48: threads are counted only where the job counts them.
    ({"cpus_per_node": 96}, {}, NODES, {CORES: (None, None, DIFFERS)}),
    ({"cpus_per_node": 96}, {"lines": ["--hint=multithread"]}, NODES, {CORES: (None, None, OK)}),
    (
        {"max_nodes": 34}, {}, MIXED,
        dict.fromkeys(["max_nodes", CORES, MEMORY], (None, None, DIFFERS))
        | {"slurm.gres": (None, "2 x gpu:8(S:0-1), gpu:4", DIFFERS)},
    ),
    ({"devices": "cpu"}, {}, NODES, {"slurm.gres": None}),  # a job without GPUs asks for none
    ({}, {"gres": ""}, NODES, {"slurm.gres": None}),
    *(
        (TWO, {"partition": "main", "gres": f"gpu:{kind}:{{gpus}}"}, NODES,
         {"slurm.gres": (f"gpu:{kind}:2", None, verdict)})
        for kind, verdict in (("a100", OK), ("A100", OK), ("v100", DIFFERS))
    ),
    (
        {}, {"partition": "alpa"}, NODES,
        {"slurm.partition": ("alpa", "no partition 'alpa'; did you mean 'alpha'?", DIFFERS), "max_nodes": None},
    ),
    ({}, {}, [], {"slurm.partition": (None, "no partition 'alpha'; known: none", DIFFERS), "max_nodes": None}),
    (TWO, {"partition": None}, NODES, {"slurm.partition": ("null: main", "1 of 2 nodes up", OK)}),
    ({}, {"partition": None}, NODES[:3], {"slurm.partition": (None, "no default partition; known: alpha", DIFFERS)}),
    ({}, {}, NODES[2:3], {"slurm.partition": (None, None, DIFFERS)}),  # no node of it is up
    *(  # null asks for the 60 minutes of measure.timeout_s, and 2 to start
        row
        for minutes, verdict in ((30, OK), (60, OK), (61, DIFFERS), (None, DIFFERS))
        for row in (
            ({}, {"partition": "main", "time_minutes": minutes}, NODES, {"slurm.time_minutes": (None, None, verdict)}),
            ({}, {"time_minutes": minutes}, UNLIMITED, {"slurm.time_minutes": (None, None, OK)}),
        )
    ),
    *(
        ({}, {"partition": "main", "constraint": text}, NODES,
         {"slurm.constraint": (None, "features big, ssd", verdict)})
        for text, verdict in (("ssd", OK), ("hdd", DIFFERS), ("ssd&big", UNCHECKED))
    ),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("hardware", "slurm", "nodes", "expected"), PARTITIONS)
def test_a_partition_is_compared_with_the_settings(hardware, slurm, nodes, expected):
    results = partition_results(hardware, nodes, **slurm)
    for key, line in expected.items():
        assert (key in results) == (line is not None), key
        for wanted, actual in zip(line or (), dataclasses.astuple(results[key])[1:] if line else (), strict=True):
            assert wanted in (None, actual), key


SHOWN = "PartitionName=alpha\n   AllowGroups=ALL AllowAccounts=p_a,p_b AllowQos=ALL\n   AllocNodes=ALL\n"
MPI = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n"


class FakeSlurm(Slurm):
    """Answers by the first words of a command; None raises what SLURM would say."""

    def __init__(self, answers=None, there=True):
        super().__init__(None)
        usual = {"sbatch --version": "slurm 22.05.8\n", "sinfo": SINFO, "scontrol show partition alpha": SHOWN}
        self.answers = usual | {"srun --mpi": MPI, "srun --help": "--container\n"} | (answers or {})
        self.there = there
        self.asked = []

    def path(self, name):
        return f"/opt/slurm/bin/{name}" if self.there else None

    def run(self, name, *words, limit_s=20.0, **more):
        command = " ".join([name, *words])
        self.asked.append(command)
        answer = next((text for start, text in self.answers.items() if command.startswith(start)), None)
        if answer is None:
            raise SlurmError(f"no answer to {name}")
        return answer


def wanting(partition="alpha", **wants):
    slurm = SlurmSpec(partition, **wants)
    return Config(hardware=HardwareSpec("alpha", devices="cuda", this_machine=False, scheduler="slurm", slurm=slurm))


def slurm_results(slurm, **wants):
    results, _ = check_slurm(slurm, wanting(**wants))
    return {line.key: (line.actual, line.verdict) for line in results}


def test_few_questions_and_none_that_starts_anything():
    slurm = FakeSlurm()
    matches = slurm_results(slurm)
    assert matches["scheduler"] == ("slurm 22.05.8, /opt/slurm/bin/sbatch", OK)
    assert matches["slurm.partition"] == ("2 of 3 nodes up", OK)
    assert [command.split()[0] for command in slurm.asked] == ["sbatch", "sinfo"]
    _, nodes = check_slurm(FakeSlurm(), wanting())
    assert [node.name for node in nodes] == ["taurusi8001", "taurusi8002", "taurusi8003"], "of the partition"
    assert check_slurm(FakeSlurm(), wanting("alpa"))[1] == []


def test_slurm_that_is_not_there_or_does_not_answer(monkeypatch):
    # Without sbatch.
    assert slurm_results(FakeSlurm(there=False)) == {
        "scheduler": ("no sbatch on the PATH; hardware.slurm.bin names its folder", DIFFERS)
    }
    matches = slurm_results(FakeSlurm(there=False), bin="/opt/slurm/bin")
    assert matches["scheduler"][0].startswith("no sbatch on /opt/slurm/bin;")

    # A controller that does not answer.
    def away(*words, **more):
        raise SlurmUnreachable("Unable to contact slurm controller")

    slurm = FakeSlurm()
    monkeypatch.setattr(slurm, "run", away)
    assert slurm_results(slurm) == {"scheduler": ("Unable to contact slurm controller", DIFFERS)}


TAKES_ALL = "partition alpha takes all; sbatch decides whether you may"
COURSE = {"scontrol show reservation": "ReservationName=course StartTime=2026-01-01\n"}
PYXIS = {"container": "x.sqsh", "container_runtime": "pyxis"}
RUNTIME = "slurm.container_runtime"
# What SLURM answers, settings of the job, a line of the answer, what is actual (None: anything), and the verdict.
ANSWERS = [
    ({}, {"account": "p_b"}, "slurm.account", "partition alpha takes p_a, p_b", OK),
    ({}, {"account": "p_c"}, "slurm.account", "partition alpha takes p_a, p_b", DIFFERS),
    ({}, {"qos": "normal"}, "slurm.qos", TAKES_ALL, UNCHECKED),
    ({"scontrol show partition alpha": ""}, {"account": "p_b"}, "slurm.account", None, UNCHECKED),
    (COURSE, {"reservation": "course"}, "slurm.reservation", None, OK),
    (COURSE, {"reservation": "cours"}, "slurm.reservation", None, DIFFERS),
    (COURSE, {"reservation": "other"}, "slurm.reservation", None, DIFFERS),
    ({}, {"mpi": "pmix"}, "slurm.mpi", "srun has pmix, none, pmi2", OK),
    ({}, {"mpi": "pmi2"}, "slurm.mpi", "srun has pmix, none, pmi2", OK),
    ({}, {"mpi": "openmpi"}, "slurm.mpi", "srun has pmix, none, pmi2", DIFFERS),
    ({}, {"mpi": "available"}, "slurm.mpi", "srun has pmix, none, pmi2", DIFFERS),
    ({"srun --mpi": ""}, {"mpi": "pmix"}, "slurm.mpi", "srun does not list any", UNCHECKED),
    ({}, {}, "slurm.mpi", None, UNCHECKED),  # there is no mpirun here
    ({}, PYXIS, RUNTIME, "srun has no --container-image", DIFFERS),
    ({"srun --help": "  --container-image=[USER@]IMAGE\n"}, PYXIS, RUNTIME, "srun has --container-image", OK),
    ({}, {"container": "x.sif"}, RUNTIME, None, UNCHECKED),
]


@pytest.mark.parametrize(("answers", "wants", "key", "actual", "verdict"), ANSWERS)
def test_slurm_is_asked_for_what_a_job_wants(answers, wants, key, actual, verdict, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    results = slurm_results(FakeSlurm(answers), **wants)
    assert results[key] == (results[key][0] if actual is None else actual, verdict)
    assert (RUNTIME in results) == ("container" in wants)
    if not wants:
        (tmp_path / "mpirun").touch(0o755)
        assert slurm_results(FakeSlurm())["slurm.mpi"] == (str(tmp_path / "mpirun"), OK)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        texts = (f"== {case}\n{run_doctor(Path(folder), *settings)}" for case, settings in CASES.items())
        GOLDEN.write_text("".join(texts), encoding="utf-8")
