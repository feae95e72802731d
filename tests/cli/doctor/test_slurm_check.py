"""SLURM's answers, from sinfo's lines and made-up commands, checked against a YAML."""

import dataclasses

import pytest

from scalebench.cli.commands.doctor.check_result import DIFFERS, OK, UNCHECKED, CheckResult
from scalebench.cli.commands.doctor.slurm_check import check_partition, check_slurm
from scalebench.core.spec import Config, HardwareSpec, MeasureSpec, SlurmSpec
from scalebench.slurm.commands import Slurm, SlurmError, SlurmUnreachable
from scalebench.slurm.partition import parse_sinfo
from tests.slurm.builders import SINFO

NODES = parse_sinfo(SINFO)
ALPHA = HardwareSpec(
    "alpha", devices="cuda", gpus_per_node=8, cpus_per_node=48, max_nodes=3, memory_bytes=10**12, this_machine=False,
    scheduler="slurm", slurm=SlurmSpec(partition="alpha", exclusive=True),
)  # fmt: skip


def partition_results(hardware=None, nodes=NODES, **slurm):
    wants = dataclasses.replace(ALPHA.slurm, **slurm)
    config = Config(hardware=dataclasses.replace(ALPHA, slurm=wants, **(hardware or {})), measure=MeasureSpec())
    return {line.key: line for line in check_partition(config, nodes)}


def test_a_matching_partition():
    assert [dataclasses.astuple(line) for line in partition_results().values()] == [
        ("slurm.partition", "alpha", "2 of 3 nodes up", OK),
        ("max_nodes", "3", "3 nodes", OK),
        ("cpus_per_node of the partition", "48", "3 x 48 cores (96 CPUs)", OK),
        ("memory_bytes of the partition", "1,000 GB", "3 x 1,038 GB", OK),
        ("slurm.time_minutes", "null: 62, by measure.timeout_s", "limit 10080 minutes", OK),
        ("slurm.gres", "gpu:8", "3 x gpu:8(S:0-1)", OK),
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(("lines", "verdict"), [([], DIFFERS), (["--hint=multithread"], OK)])
def test_threads_are_counted_only_where_the_job_counts_them(lines, verdict):
    """SLURM would refuse 96 whole cores of a node with 48."""
    assert partition_results({"cpus_per_node": 96}, lines=lines)["cpus_per_node of the partition"].verdict == verdict


def test_nodes_that_differ():
    mixed = [*NODES[:2], dataclasses.replace(NODES[2], cores=32, cpus=32, memory_bytes=2**39, gres="gpu:4")]
    matches = partition_results({"max_nodes": 34}, mixed)
    keys = ["max_nodes", "cpus_per_node of the partition", "memory_bytes of the partition", "slurm.gres"]
    assert [matches[key].verdict for key in keys] == [DIFFERS] * 4
    assert matches["slurm.gres"].actual == "2 x gpu:8(S:0-1), gpu:4"


def test_a_job_without_gpus_asks_for_none():
    assert "slurm.gres" not in partition_results({"devices": "cpu"})
    assert "slurm.gres" not in partition_results(gres="")


@pytest.mark.parametrize(("kind", "verdict"), [("a100", OK), ("A100", OK), ("v100", DIFFERS)])
def test_the_requested_kind_of_gpu_is_checked(kind, verdict):
    line = partition_results({"gpus_per_node": 2}, partition="main", gres=f"gpu:{kind}:{{gpus}}")["slurm.gres"]
    assert (line.expected, line.verdict) == (f"gpu:{kind}:2", verdict)


def test_no_such_partition():
    (line,) = partition_results(partition="alpa").values()
    assert line == CheckResult("slurm.partition", "alpa", "no partition 'alpa'; did you mean 'alpha'?", DIFFERS)
    (line,) = partition_results(nodes=[]).values()
    assert line.actual == "no partition 'alpha'; known: none"


def test_the_default_partition():
    matches = partition_results({"gpus_per_node": 2}, partition=None)
    assert matches["slurm.partition"] == CheckResult("slurm.partition", "null: main", "1 of 2 nodes up", OK)
    (line,) = partition_results(nodes=NODES[:3], partition=None).values()
    assert (line.actual, line.verdict) == ("no default partition; known: alpha", DIFFERS)
    assert partition_results(nodes=NODES[2:3])["slurm.partition"].verdict == DIFFERS, "no node of it is up"


@pytest.mark.parametrize(
    ("requested", "verdict"), [(30, OK), (60, OK), (61, DIFFERS), (None, DIFFERS)]
)  # null asks for the 60 minutes of measure.timeout_s, and 2 to start
def test_the_time_that_a_job_asks_for(requested, verdict):
    assert partition_results(partition="main", time_minutes=requested)["slurm.time_minutes"].verdict == verdict
    unlimited = [dataclasses.replace(node, limit_minutes=None) for node in NODES]
    assert partition_results(nodes=unlimited, time_minutes=requested)["slurm.time_minutes"].verdict == OK


@pytest.mark.parametrize(("requested", "verdict"), [("ssd", OK), ("hdd", DIFFERS), ("ssd&big", UNCHECKED)])
def test_features(requested, verdict):
    line = partition_results(partition="main", constraint=requested)["slurm.constraint"]
    assert (line.actual, line.verdict) == ("features big, ssd", verdict)


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


def test_without_sbatch():
    assert slurm_results(FakeSlurm(there=False)) == {
        "scheduler": ("no sbatch on the PATH; hardware.slurm.bin names its folder", DIFFERS)
    }
    matches = slurm_results(FakeSlurm(there=False), bin="/opt/slurm/bin")
    assert matches["scheduler"][0].startswith("no sbatch on /opt/slurm/bin;")


def test_a_controller_that_does_not_answer(monkeypatch):
    def away(*words, **more):
        raise SlurmUnreachable("Unable to contact slurm controller")

    slurm = FakeSlurm()
    monkeypatch.setattr(slurm, "run", away)
    assert slurm_results(slurm) == {"scheduler": ("Unable to contact slurm controller", DIFFERS)}


@pytest.mark.parametrize(("account", "verdict"), [("p_b", OK), ("p_c", DIFFERS)])
def test_accounts(account, verdict):
    assert slurm_results(FakeSlurm(), account=account)["slurm.account"] == ("partition alpha takes p_a, p_b", verdict)


def test_a_partition_that_takes_all_does_not_decide_about_the_user():
    assert slurm_results(FakeSlurm(), qos="normal")["slurm.qos"] == (
        "partition alpha takes all; sbatch decides whether you may",
        UNCHECKED,
    )
    silent = FakeSlurm({"scontrol show partition alpha": ""})
    assert slurm_results(silent, account="p_b")["slurm.account"][1] == UNCHECKED


@pytest.mark.parametrize(("name", "verdict"), [("course", OK), ("cours", DIFFERS), ("other", DIFFERS)])
def test_reservations(name, verdict):
    slurm = FakeSlurm({"scontrol show reservation": "ReservationName=course StartTime=2026-01-01\n"})
    assert slurm_results(slurm, reservation=name)["slurm.reservation"][1] == verdict


@pytest.mark.parametrize(("mpi", "verdict"), [("pmix", OK), ("pmi2", OK), ("openmpi", DIFFERS), ("available", DIFFERS)])
def test_the_program_that_starts_mpi_ranks(mpi, verdict):
    assert slurm_results(FakeSlurm(), mpi=mpi)["slurm.mpi"] == ("srun has pmix, none, pmi2", verdict)
    assert slurm_results(FakeSlurm({"srun --mpi": ""}), mpi=mpi)["slurm.mpi"] == ("srun does not list any", UNCHECKED)


def test_mpirun_is_looked_for_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm_results(FakeSlurm())["slurm.mpi"][1] == UNCHECKED
    (tmp_path / "mpirun").touch(0o755)
    assert slurm_results(FakeSlurm())["slurm.mpi"] == (str(tmp_path / "mpirun"), OK)


def test_the_program_that_runs_the_image(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    pyxis = {"container": "x.sqsh", "container_runtime": "pyxis"}
    assert slurm_results(FakeSlurm(), **pyxis)["slurm.container_runtime"] == ("srun has no --container-image", DIFFERS)
    with_plugin = FakeSlurm({"srun --help": "  --container\n  --container-image=[USER@]IMAGE\n"})
    assert slurm_results(with_plugin, **pyxis)["slurm.container_runtime"] == ("srun has --container-image", OK)
    assert slurm_results(FakeSlurm(), container="x.sif")["slurm.container_runtime"][1] == UNCHECKED
    assert "slurm.container_runtime" not in slurm_results(FakeSlurm())
