"""Runs that are jobs, from the command line: submitted together, adopted, left or cancelled at Ctrl-C."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import scalebench
import scalebench.runner.jobs
from scalebench import __main__ as program
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec
from scalebench.runner.collect import RunOutcome
from scalebench.runner.parent import run
from scalebench.slurm.submit import Submission, write_submission
from scalebench.sweeps import cluster_runs, hydra_launcher
from scalebench.sweeps import console as report_console
from scalebench.sweeps.console import Console
from tests.builders.runs import simulated_spec

WORDS = [
    *("hardware=testcluster", "strategy=simulated", "dataset.size=1000", "measure=quick", "measure.min_s=0"),
    *("measure.max_s=0.1", "measure.warmup_steps=2", "measure.evaluate=false", "measure.probes=false"),
    *("measure.monitor=false", "sweep.report=false"),
]
Call = Callable[..., tuple[int, str, str]]


class Here:
    """In place of a cluster: the runs are done at once by this machine, the last of them first."""

    interrupt_after: int | None = None  # rows
    seen: list[scalebench.runner.jobs.JobRequest]
    limits: list[int | None]
    cancelled: int

    def __init__(self, slurm: Any, max_jobs: int | None, on_change: Any) -> None:
        Here.limits.append(max_jobs)
        self.unfinished, self._on_change = 0, on_change

    def follow(self, asked: Sequence[scalebench.runner.jobs.JobRequest]) -> Iterator[Any]:
        Here.seen += asked
        self._left, self._given = list(asked), 0
        self.unfinished = len(asked)
        self._on_change(scalebench.runner.jobs.Queue(0, len(asked), "Priority", (), 0))
        return iter(self._next, None)

    def _next(self) -> Any:
        if not self._left:
            return None
        if self._given == Here.interrupt_after or process.cancelled.is_set():
            Here.interrupt_after = None
            raise KeyboardInterrupt
        self._given, self.unfinished = self._given + 1, self.unfinished - 1
        asked = self._left.pop()
        if Here.cancelled:
            return asked, scalebench.runner.jobs.outcome.make(asked, RunOutcome("cancelled", "cancelled"))
        return asked, run(without_nodes(asked.spec), asked.folder)

    def cancel(self) -> None:
        Here.cancelled += 1


def without_nodes(spec: RunSpec) -> RunSpec:
    """The same run by processes of this machine."""
    hardware = dataclasses.replace(spec.config.hardware, scheduler="none")
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, hardware=hardware))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Call]:
    """The program with these words on a machine with a cluster: status, output, errors."""
    Here.seen, Here.limits, Here.cancelled, Here.interrupt_after = [], [], 0, None
    monkeypatch.setattr(scalebench.runner.jobs, "Cluster", Here)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "sbatch").chmod(0o755)

    def called(*words: str) -> tuple[int, str, str]:
        status = program.main([*WORDS, f"hardware.slurm.bin={tmp_path}/bin", *words])
        out, err = capsys.readouterr()
        return status, out, err

    yield called
    GlobalHydra.instance().clear()
    HydraConfig.instance().cfg = None


def answer(monkeypatch: pytest.MonkeyPatch, word: str) -> list[int]:
    """Somebody at a terminal, who answers so; gives the numbers of jobs that were asked about."""
    asked: list[int] = []

    def shall_cancel(self: Console, jobs: int, ask: bool) -> bool:
        asked.append(jobs)
        return word == "y"

    monkeypatch.setattr(Console, "shall_cancel", shall_cancel)
    return asked


def test_a_sweep_is_submitted_whole_and_ends_with_its_table(call: Call) -> None:
    status, out, err = call("--multirun", "gpus=1,2,4", "hydra.sweep.dir=s", "hardware.max_jobs=2")
    assert (status, err) == (0, "")
    assert [(run.spec.gpus, run.spec.nodes) for run in Here.seen] == [(1, 1), (2, 1), (4, 2)]
    assert Here.limits == [2]
    frame = scalebench.load("s")
    assert frame[["gpus", "nodes", "status"]].values.tolist() == [[1, 1, "ok"], [2, 1, "ok"], [4, 2, "ok"]]
    assert "0 of 3 runs over, 3 pending (Priority)" in out and "nodes" in out
    assert all((Path("s") / str(number) / ".hydra" / "overrides.yaml").is_file() for number in range(3))
    plan = json.loads(Path("s/sweep.json").read_text())
    assert plan["ended"] and not any(run["left_out"] for run in plan["runs"])


def test_a_single_run_is_a_job_too(call: Call) -> None:
    status, out, _ = call("gpus=3", "hydra.run.dir=r")
    assert status == 0 and [run.folder for run in Here.seen] == [Path("r").absolute()]
    assert "testcluster" in out


@pytest.mark.slow
def test_runs_of_this_machine_follow_those_of_the_cluster(call: Call) -> None:
    status, *_ = call("--multirun", "hardware=cpu,testcluster", "gpus=1", "hydra.sweep.dir=s")
    assert status == 0 and [run.number for run in Here.seen] == [1]
    assert set(scalebench.load("s").hardware) == {"cpu", "testcluster"}


@pytest.mark.slow
def test_what_the_cluster_cannot_have_is_not_submitted(call: Call) -> None:
    status, out, _ = call("--multirun", "gpus=1,64", "train.batch_per_device=4", "hydra.sweep.dir=s")
    assert status == 0 and [run.spec.gpus for run in Here.seen] == [1]
    assert "gpus=64 asks for 32 nodes, hardware=testcluster has" in out


@pytest.mark.slow
def test_resume_keeps_good_rows_and_takes_up_jobs_that_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sweep's program was killed while the job of gpus=2 ran in its folder."""
    call("--multirun", "gpus=1", "hydra.sweep.dir=m/one")
    going_on = Path("m/killed/0").absolute()
    monkeypatch.setattr(scalebench.runner.jobs, "find_running", lambda root, slurm: {(of_two, 0): going_on})
    call("--multirun", "gpus=2", "baseline=none", "hydra.sweep.dir=n")
    of_two = Here.seen[-1].spec.fingerprint
    going_on.mkdir(parents=True)
    write_submission(Submission("7", 0.0, None), going_on)
    Here.seen.clear()
    status, out, err = call("--multirun", "gpus=1,2,4", "resume=true", "hydra.sweep.dir=m/two")
    assert (status, err) == (0, "")
    assert {run.spec.gpus: run.adopted for run in Here.seen} == {2: True, 4: False}
    assert [run.folder for run in Here.seen if run.adopted] == [going_on]
    assert scalebench.load("m/two").status.tolist() == ["ok"] * 3
    assert "done before, kept" in out


@pytest.mark.slow
def test_cancelled_at_ctrl_c(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """JobRequest once; rows that were there stay, the others say cancelled, and what there is is told."""
    asked = answer(monkeypatch, "y")
    Here.interrupt_after = 1
    status, _, err = call("--multirun", "gpus=1,2,4", "hydra.sweep.dir=s")
    assert (status, asked, Here.cancelled) == (1, [2], 1)
    assert err == "scalebench: cancelled\n"
    assert sorted(scalebench.load("s").status) == ["cancelled", "cancelled", "ok"]
    assert json.loads(Path("s/sweep.json").read_text())["stopped"]


@pytest.mark.slow
def test_ctrl_c_while_a_row_is_taken_in(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is heard when that is done, and asks as always: no job goes on unseen."""
    asked = answer(monkeypatch, "y")
    come = iter([True])

    def run_job(**words: Any) -> Any:
        if next(come, False):
            os.kill(os.getpid(), signal.SIGINT)
        return real(**words)

    real = hydra_launcher.run_job
    monkeypatch.setattr(hydra_launcher, "run_job", run_job)
    status, _, err = call("--multirun", "gpus=1,2,4", "hydra.sweep.dir=s")
    assert (status, asked, err) == (1, [2], "scalebench: cancelled\n")
    assert sorted(scalebench.load("s").status) == ["cancelled", "cancelled", "ok"]
    assert len(list(Path("s").glob("*/.hydra"))) == 3


@pytest.mark.slow
def test_left_at_ctrl_c(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs go on, and nothing of them is touched."""
    answer(monkeypatch, "n")
    Here.interrupt_after = 1
    status, _, err = call("--multirun", "gpus=1,2,4", "hydra.sweep.dir=s")
    assert (status, Here.cancelled) == (1, 0)
    assert err == "scalebench: 2 jobs go on without; the same command with resume=true waits for the rest\n"
    assert scalebench.load("s").status.tolist() == ["ok"]


class Selecting:
    """In place of the module, to look around while somebody is waited for."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look

    def select(self, *words: Any) -> Any:
        self._look()
        return select.select(*words)


def test_nobody_to_ask_means_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()
    assert console.shall_cancel(3, ask=False) and console.shall_cancel(3, ask=True)  # no terminal here


@pytest.mark.parametrize(("said", "cancels"), [("", True), ("y", True), ("n", False), (" No ", False)])
def test_the_answer(monkeypatch: pytest.MonkeyPatch, said: str, cancels: bool) -> None:
    questions: list[str] = []
    monkeypatch.setattr(report_console, "_answer", lambda question: questions.append(question) or said)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    console = Console()
    console.rich._force_terminal = True
    assert console.shall_cancel(3, ask=True) == cancels
    assert questions == ["cancel all 3 jobs? Otherwise they go on without [Y/n] "]
    assert console.shall_cancel(0, ask=True) and len(questions) == 1  # of no job nobody is asked


def test_the_question_stands_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is typed is read up to the end of the line, and the progress line is not written over it."""
    window, its = os.openpty()
    with os.fdopen(window, "wb", buffering=0) as keys, os.fdopen(its) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        console = Console()
        console.rich._force_terminal = True
        with console.following():
            line = console._following._live
            keys.write(b"n\n")
            monkeypatch.setattr(report_console, "select", Selecting(lambda: seen.append(line.is_started)))
            seen: list[bool] = []
            assert not console.shall_cancel(2, ask=True) and seen == [False] and line.is_started
        assert not line.is_started and console._following is None
    assert "cancel all 2 jobs? Otherwise they go on without [Y/n] " in capsys.readouterr().out


def test_clusters_are_not_mixed(tmp_path: Path) -> None:
    asked = [scalebench.runner.jobs.JobRequest(number, simulated_spec(), tmp_path / str(number)) for number in range(2)]
    asked[1].spec.config.hardware.slurm.bin = "/opt/other/bin"
    with pytest.raises(InputError, match=r"hardware.slurm.bin differs between the runs of one sweep; "):
        list(cluster_runs.follow(asked, Console(), None))


def test_a_queue_keeps_no_time(call: Call) -> None:
    status, _, err = call("--multirun", "gpus=1", "hydra.sweep.dir=s", "sweep.max_minutes=5")
    assert (status, Here.seen) == (2, []) and "hardware.slurm.time_minutes limits each job" in err


def test_a_dry_run_prints_the_script_and_submits_nothing(call: Call) -> None:
    status, out, _ = call("gpus=4", "dry_run=true")
    assert (status, Here.seen) == (0, [])
    for line in ("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=2", "#SBATCH --partition=main"):
        assert line in out.splitlines()
    folder = next(line for line in out.splitlines() if "--output=" in line).partition("=")[2]
    assert folder.startswith(f"{Path('multirun/single').absolute()}/")
    assert "srun --nodes=2 --ntasks=4 --ntasks-per-node=2" in out and not Path("multirun").exists()


def test_a_dry_sweep_prints_each_script(call: Call) -> None:
    _, out, _ = call("--multirun", "gpus=1,4", "hydra.sweep.dir=s", "dry_run=true")
    assert [line.rpartition("/s/")[2] for line in out.splitlines() if "--output=" in line] == ["0/job.log", "1/job.log"]
    assert cluster_runs.terminated.is_set() is False


def test_a_job_that_goes_on_keeps_its_folder(tmp_path: Path) -> None:
    """Two runs of a sweep change places; the job of the one would be copied over the other."""
    one, two = (
        scalebench.runner.jobs.JobRequest(number, simulated_spec(seed=number), tmp_path / str(number))
        for number in (0, 1)
    )
    of_one, of_two = ((run.spec.fingerprint, 0) for run in (one, two))
    kept = cluster_runs._with_running([one, two], {of_two: two.folder})
    assert [(run.folder, run.adopted) for run in kept] == [(one.folder, False), (two.folder, True)]
    with pytest.raises(InputError, match=r"/1 is where a job of another run still goes on; "):
        cluster_runs._with_running([one, two], {of_one: two.folder})
    with pytest.raises(InputError, match=r"still go on in other numbers of it; "):
        cluster_runs._with_running([one, two], {of_one: two.folder, of_two: one.folder})
    elsewhere = tmp_path / "other"
    assert cluster_runs._with_running([one], {of_one: elsewhere})[0].folder == elsewhere
