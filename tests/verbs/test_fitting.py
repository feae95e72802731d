"""`scalebench doctor hardware=NAME`: this host beside a YAML, with made-up commands of SLURM."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from scalebench import machine
from scalebench.__main__ import main
from scalebench.gpus import Gpu
from scalebench.verbs import fitting
from tests.helpers import MACHINE
from tests.verbs.test_partition import SINFO

Tell = Callable[..., tuple[int, dict[str, list[str]], str]]
GPUS = [Gpu(n, "NVIDIA A100-SXM4-40GB", f"GPU-{n}", 40 * 2**30, None, None, None, None, None) for n in range(8)]
NODE = dataclasses.replace(
    MACHINE, hostname="taurusi8001.example.org", cpus=48, cpus_physical=48, memory_bytes=2**40, gpus=GPUS
)
ALPHA = "hardware=alpha hardware.max_nodes=3 hardware.interface=lo hardware.links.inter_node=null hardware.stage=null"


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tell:
    """Exit status, the cells of each line by its key, and the last line, for a host with commands of SLURM."""
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "sinfo.txt").write_text(SINFO)
    programs = {"sbatch": "echo slurm 22.05.8", "sinfo": f"cat {shlex.quote(str(tmp_path / 'sinfo.txt'))}"}
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    def told(words: str = ALPHA, here: machine.Machine = NODE) -> tuple[int, dict[str, list[str]], str]:
        monkeypatch.setattr(machine, "detect", lambda: here)
        status = main(["doctor", *words.split(), f"hardware.slurm.bin={tmp_path}"])
        lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
        cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
        return status, {line[0]: line[1:] for line in cells}, lines[-1]

    return told


def test_a_node_that_fits(tell: Tell) -> None:
    status, lines, last = tell()
    assert status == 0
    assert lines["this host"] == ["a node of alpha", "taurusi8001", "ok"]
    assert lines["scheduler"][-1] == lines["slurm.gres"][-1] == lines["gpus_per_node"][-1] == "ok"
    assert lines["gpu_model"] == ["A100 SXM4 40GB", "8 x NVIDIA A100-SXM4-40GB", "ok"]
    assert " 0 differs," in last


def test_a_node_that_does_not(tell: Tell) -> None:
    status, lines, _ = tell(here=dataclasses.replace(NODE, gpus=GPUS[:4]))
    assert (status, lines["gpus_per_node"]) == (1, ["8", "4", "differs"])


def test_a_login_node_is_told_from_a_node(tell: Tell) -> None:
    login = dataclasses.replace(NODE, hostname="login1", gpus=[])
    status, lines, last = tell(here=login)
    assert status == 0  # the partition is as said, and this host need not be
    assert lines["this host"] == ["a node of alpha", "login1, no node of it: a login node?", "not checked"]
    assert lines["gpus_per_node"] == ["8", "0 (not a node)", "not checked"]
    assert lines["slurm.gres"][-1] == "ok"
    said, _, command = last.partition(": ")
    assert said == "this host is no node of hardware=alpha; to look at one"
    assert command.startswith(
        "srun --nodes=1 --ntasks=1 --partition=alpha --exclusive --gres=gpu:8 "
        f"python -m scalebench doctor {ALPHA} hardware.slurm.bin="
    )


def test_a_salloc_shell_on_a_login_node(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    _, lines, last = tell(here=dataclasses.replace(NODE, hostname="login1"))
    assert lines["this host"][1] == "login1, no node of it: a login node?, in job 12"
    assert "srun --nodes=1 --ntasks=1 python -m" in last  # the allocation has said the rest


def test_within_a_job(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURMD_NODENAME", "taurusi8002")
    status, lines, _ = tell(here=dataclasses.replace(NODE, hostname="anything", gpus=GPUS[:1]))
    assert lines["this host"] == ["a node of alpha", "taurusi8002, in job 12", "ok"]
    assert lines["gpus_per_node"] == ["8", "1, as this job was given", "not checked"]
    monkeypatch.setenv("SLURMD_NODENAME", "h1")
    status, lines, _ = tell()
    assert (status, lines["this host"][1]) == (1, "h1, of another partition, in job 12")


def test_settings_on_the_same_line(tell: Tell) -> None:
    status, lines, _ = tell(f"{ALPHA} hardware.slurm.partition=alpa hardware.slurm.container=/no/torch.sif")
    assert status == 1
    assert lines["slurm.partition"] == ["alpa", "no partition 'alpa'; did you mean 'alpha'?", "differs"]
    assert lines["slurm.container"] == ["/no/torch.sif", "no such file", "differs"]
    assert lines["this host"][-1] == lines["gpus_per_node"][-1] == "not checked"


def test_a_machine_without_a_scheduler_is_this_host(tell: Tell) -> None:
    status, lines, last = tell("hardware=dgx1_p100")
    assert (status, "scheduler" in lines, "this host" in lines) == (1, False, False)
    assert lines["gpus_per_node"] == ["8", "8", "ok"]
    assert lines["gpu_model"][-1] == "differs"
    assert last.endswith(" not checked")
    assert tell("hardware=local")[0] == 0  # says nothing that could be wrong


def test_a_folder_of_ones_own(tell: Tell, tmp_path: Path) -> None:
    own = tmp_path / "conf" / "hardware"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("defaults:\n  - alpha\n  - _self_\nname: mine\ngpus_per_node: 4\n")
    for switch in (f"--config-dir {own.parent}", f"--config-dir={own.parent}", f"-cd {own.parent}"):
        _, lines, _ = tell(f"{switch} hardware=mine", dataclasses.replace(NODE, gpus=GPUS[:4]))
        assert lines["gpus_per_node"] == ["4", "4", "ok"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("hardware=alpa", "no hardware 'alpa'; did you mean 'alpha'?"),
        ("ddp", "doctor takes hardware=NAME and settings, not 'ddp'"),
        ("gpus=2", "doctor compares this host with one hardware YAML: doctor hardware=NAME"),
        ("hardware=alpha,gpu2", "doctor compares this host with one hardware YAML: doctor hardware=NAME"),
        ("hardware=alpha hardware.slurm.partitio=x", "no key 'hardware.slurm.partitio'; did you mean"),
        ("hardware=alpha hardware.max_nodes=0", "hardware.max_nodes=0 should be at least 1"),
        ("--multirun hardware=alpha", "doctor takes one switch, --config-dir FOLDER, not '--multirun'"),
        ("--config-dir /not/there hardware=alpha", "--config-dir: /not/there is no folder"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_status_2(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words.split()]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"scalebench: {line}") and said.err.count("\n") == 1


def test_the_command_names_whom_to_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    config = fitting.composed(
        ["hardware=alpha", "hardware.slurm.account=p_a", "hardware.devices=cpu", "hardware.slurm.exclusive=false"]
    )
    assert fitting.by_srun(config.hardware, ["hardware=alpha"]).endswith(
        ": srun --nodes=1 --ntasks=1 --partition=alpha --account=p_a python -m scalebench doctor hardware=alpha"
    )
