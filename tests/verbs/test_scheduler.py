"""What SLURM answers, by made-up commands, beside what a YAML asks of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalebench.slurm.commands import Slurm, SlurmError, Unreachable
from scalebench.spec import Config, HardwareSpec, SlurmSpec
from scalebench.verbs import scheduler
from scalebench.verbs.claims import DIFFERS, OK, UNCHECKED
from tests.verbs.test_partition import SINFO

SHOWN = "PartitionName=alpha\n   AllowGroups=ALL AllowAccounts=p_a,p_b AllowQos=ALL\n   AllocNodes=ALL\n"
MPI = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n"


class Said(Slurm):
    """Answers by the first words of a command; None raises what SLURM would say."""

    def __init__(self, answers: dict[str, str] | None = None, there: bool = True) -> None:
        super().__init__(None)
        usual = {"sbatch --version": "slurm 22.05.8\n", "sinfo": SINFO, "scontrol show partition alpha": SHOWN}
        self.answers = usual | {"srun --mpi": MPI, "srun --help": "--container\n"} | (answers or {})
        self.there = there
        self.asked: list[str] = []

    def path(self, name: str) -> str | None:
        return f"/opt/slurm/bin/{name}" if self.there else None

    def run(self, name: str, *words: str, limit_s: float = 20.0, **more: Any) -> str:
        command = " ".join([name, *words])
        self.asked.append(command)
        answer = next((text for start, text in self.answers.items() if command.startswith(start)), None)
        if answer is None:
            raise SlurmError(f"no answer to {name}")
        return answer


def told(slurm: Said, **wants: Any) -> dict[str, tuple[str, str]]:
    hardware = HardwareSpec("alpha", devices="cuda", here=False, scheduler="slurm", slurm=SlurmSpec("alpha", **wants))
    answer = scheduler.ask(slurm, Config(hardware=hardware))
    return {line.key: (line.here, line.verdict) for line in answer.claims}


def test_few_questions_and_none_that_starts_anything() -> None:
    slurm = Said()
    found = told(slurm)
    assert found["scheduler"] == ("slurm 22.05.8, /opt/slurm/bin/sbatch", OK)
    assert found["slurm.partition"] == ("2 of 3 nodes up", OK)
    assert [command.split()[0] for command in slurm.asked] == ["sbatch", "sinfo"]


def test_the_nodes_are_those_of_the_partition() -> None:
    hardware = HardwareSpec("alpha", here=False, scheduler="slurm", slurm=SlurmSpec("alpha"))
    answer = scheduler.ask(Said(), Config(hardware=hardware))
    assert [node.name for node in answer.nodes] == ["taurusi8001", "taurusi8002", "taurusi8003"]
    other = dataclasses.replace(hardware, slurm=SlurmSpec("alpa"))
    assert scheduler.ask(Said(), Config(hardware=other)).nodes == []


def test_without_sbatch() -> None:
    assert told(Said(there=False)) == {
        "scheduler": ("no sbatch on the PATH; hardware.slurm.bin names its folder", DIFFERS)
    }
    found = told(Said(there=False), bin="/opt/slurm/bin")
    assert found["scheduler"][0].startswith("no sbatch on /opt/slurm/bin;")


def test_a_controller_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*words: str, **more: Any) -> str:
        raise Unreachable("Unable to contact slurm controller")

    slurm = Said()
    monkeypatch.setattr(slurm, "run", away)
    assert told(slurm) == {"scheduler": ("Unable to contact slurm controller", DIFFERS)}


@pytest.mark.parametrize(("account", "verdict"), [("p_b", OK), ("p_c", DIFFERS)])
def test_accounts(account: str, verdict: str) -> None:
    assert told(Said(), account=account)["slurm.account"] == ("partition alpha takes p_a, p_b", verdict)


def test_a_partition_that_takes_all_says_nothing_of_the_user() -> None:
    assert told(Said(), qos="normal")["slurm.qos"] == (
        "partition alpha takes all; whether you may, sbatch says",
        UNCHECKED,
    )
    silent = Said({"scontrol show partition alpha": ""})
    assert told(silent, account="p_b")["slurm.account"][1] == UNCHECKED


@pytest.mark.parametrize(("name", "verdict"), [("course", OK), ("cours", DIFFERS), ("other", DIFFERS)])
def test_reservations(name: str, verdict: str) -> None:
    slurm = Said({"scontrol show reservation": "ReservationName=course StartTime=2026-01-01\n"})
    assert told(slurm, reservation=name)["slurm.reservation"][1] == verdict


@pytest.mark.parametrize(("mpi", "verdict"), [("pmix", OK), ("pmi2", OK), ("openmpi", DIFFERS), ("available", DIFFERS)])
def test_what_starts_ranks_of_mpi(mpi: str, verdict: str) -> None:
    assert told(Said(), mpi=mpi)["slurm.mpi"] == ("srun has pmix, none, pmi2", verdict)
    assert told(Said({"srun --mpi": ""}), mpi=mpi)["slurm.mpi"] == ("srun does not say", UNCHECKED)


def test_mpirun_is_looked_for_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told(Said())["slurm.mpi"][1] == UNCHECKED
    (tmp_path / "mpirun").touch(0o755)
    assert told(Said())["slurm.mpi"] == (str(tmp_path / "mpirun"), OK)


def test_what_opens_the_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    pyxis = {"container": "x.sqsh", "container_runtime": "pyxis"}
    assert told(Said(), **pyxis)["slurm.container_runtime"] == ("srun has no --container-image", DIFFERS)
    with_plugin = Said({"srun --help": "  --container\n  --container-image=[USER@]IMAGE\n"})
    assert told(with_plugin, **pyxis)["slurm.container_runtime"] == ("srun has --container-image", OK)
    assert told(Said(), container="x.sif")["slurm.container_runtime"][1] == UNCHECKED
    assert "slurm.container_runtime" not in told(Said())
