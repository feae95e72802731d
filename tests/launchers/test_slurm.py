"""Ranks as one step of a job: in their places, watched, and ended whatever happens. srun is a stand-in here."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from scalebench import launchers
from scalebench.launchers import leash, mpi, pinning, slurm, watch
from scalebench.launchers.watch import Ended
from scalebench.measure.progress import Progress
from scalebench.records import write_json
from scalebench.run import run
from scalebench.run_folder import (
    SRUN_LOG,
    RankProcesses,
    WorkerExit,
    rank_log_name,
    rank_processes_path,
    worker_exit_path,
)
from scalebench.spec import RunSpec, write_spec
from tests.helpers import alive, wait_until
from tests.launchers.slurm_stand_in import StandIn
from tests.launchers.slurm_stand_in import job as job  # a fixture

LONG = {"min_s": 600.0, "max_s": 600.0}
NOISE = "srun: cluster configuration lacks support for cpu binding\n"
Program = Callable[[str], str]


def launched(spec: RunSpec, folder: Path, **options: Any) -> Ended:
    write_spec(spec, folder)
    return launchers.launch(spec, folder, "an id", **options)


def test_ranks_run_on_the_nodes_of_their_places(job: StandIn, tmp_path: Path, program: Program) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR SLURMD_NODENAME"
    module = program(f"print(*(os.environ[n] for n in '{names}'.split())); print(os.environ['SCALEBENCH_ADDRESSES'])")
    ended = launched(job.spec(3), tmp_path, module=module)
    assert (ended.exit_codes, ended.died_first, ended.timeout, ended.broken) == ([0, 0, 0], [], None, None)
    logs = [(tmp_path / rank_log_name(k)).read_text().splitlines() for k in range(3)]
    assert [log[0] for log in logs] == ["0 3 0 2 0 n1 n1", "1 3 1 2 0 n1 n1", "2 3 0 1 1 n1 n2"]
    assert {log[1] for log in logs} == {logs[0][1]}
    assert [address.partition(":")[0] for address in logs[0][1].split(",")] == ["n1", "n1", "n2"]
    assert not alive(ended.pids) and len(ended.pids) == 3
    assert "--distribution=arbitrary" in job.words(), "unequally many on the nodes"
    assert not {SRUN_LOG, slurm.HOST_FILE} & set(os.listdir(tmp_path)), "srun had nothing to say"


def test_ranks_of_one_node_meet_over_its_loopback(job: StandIn, tmp_path: Path, program: Program) -> None:
    """As they do on a machine without SLURM."""
    module = program("print(os.environ['MASTER_ADDR'], os.environ['GLOO_SOCKET_IFNAME'])")
    assert launched(job.spec(2), tmp_path, module=module).exit_codes == [0, 0]
    assert (tmp_path / rank_log_name(1)).read_text() == "127.0.0.1 lo\n"
    assert {"--nodes=1", "--ntasks=2", "--nodelist=n1"} <= set(job.words())


def test_ranks_get_cores_of_their_node(job: StandIn, tmp_path: Path, program: Program) -> None:
    spec = job.spec(2)
    spec.config.hardware.bind = "numa"
    assert launched(spec, tmp_path, module=program("print(os.environ['SCALEBENCH_CPUS'])")).exit_codes == [0, 0]
    told = [(tmp_path / rank_log_name(rank)).read_text().strip() for rank in range(2)]
    assert told == [pinning.variable(spec, rank)[pinning.CPUS] for rank in range(2)]


def test_a_job_with_other_tasks_on_its_nodes(job: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    even = ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--nodelist=n1,n2", "python"]
    hosts = ["n1", "n1", "n2", "n2"]
    assert slurm._dealt(even, hosts) == even
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3,1")
    assert slurm._dealt(even, hosts) == ["srun", "--distribution=arbitrary", "--nodes=2", "--ntasks=4", "python"]
    assert slurm._dealt(even, ["n1", "n1"]) == even


def test_the_jobs_own_options_are_not_those_of_the_step(
    job: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_HOSTFILE", "/of/the/job")
    found = slurm._variables(["n1", "n2"], "an id", tmp_path)
    assert "SLURM_NTASKS_PER_NODE" not in found
    assert found[leash.LEASH] == leash.ELSEWHERE, "ranks descend from a daemon of SLURM, and not from srun"
    assert (found["SLURM_HOSTFILE"], found["SLURM_JOB_ID"]) == (str(tmp_path / slurm.HOST_FILE), "12")


def test_a_run_in_a_job_leaves_the_jobs_record(job: StandIn, tmp_path: Path) -> None:
    spec = job.spec(2, measure={"min_s": 0.0, "max_s": 0.1})
    result = run(spec, tmp_path / "run")
    assert (result.status, result.reason, result.log) == ("ok", None, None)
    assert result.scheduler is not None
    assert (result.scheduler.job_id, result.scheduler.nodes, result.scheduler.queued_s) == ("12", ["n1"], None)
    ranks = [name for k in range(2) for name in (f"rank{k}.json", f"rank{k}.log")]
    assert sorted(os.listdir(tmp_path / "run")) == sorted(["spec.json", "result.json", *ranks])


FAILURES = {
    "what srun says": (
        f"printf '{NOISE}srun: error: Unable to create step for job 12: Invalid generic resource\\n' >&2; exit 1",
        ("failed", "srun: Unable to create step for job 12: Invalid generic resource"),
    ),
    "srun says nothing": (
        f"printf '{NOISE}' >&2; exit 3",
        ("failed", "srun ended with exit status 3 and no word of why"),
    ),
    "srun is killed": ("kill -9 $$", ("failed", "srun was killed by SIGKILL")),
    "memory": (
        "echo 'slurmstepd-n2: error: StepId=12.0 exceeded memory limit (2 > 1), being killed' >&2; exit 137",
        ("oom", "SLURM: StepId=12.0 exceeded memory limit (2 > 1), being killed"),
    ),
    "its time is over": (
        "echo 'slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***' >&2; exit 1",
        ("timeout", "SLURM: the job was ended, due to time limit"),
    ),
    "a keeper without a word": (
        "echo 'srun: error: n2: task 1: Exited with exit code 2' >&2; sleep 600",
        ("failed", "srun: rank 1: Exited with exit code 2"),
    ),
    "a keeper that was killed": (
        "echo 'srun: error: n2: task 1: Killed' >&2; sleep 600",
        ("failed", "rank 1 was killed by SIGKILL"),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", FAILURES)
def test_a_step_that_goes_wrong(case: str, job: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "LATE_S", 0.2)
    monkeypatch.setattr("scalebench.launchers.kept_group.LATE_S", 0.2)
    monkeypatch.setattr("scalebench.launchers.watch.FOLLOW_S", 0.2)
    script, row = FAILURES[case]
    job.script("srun", script)
    result = run(job.spec(2), tmp_path / "run")
    assert (result.status, result.reason) == row
    assert not (tmp_path / "run" / slurm.HOST_FILE).exists()


def test_no_srun_is_a_failed_row(job: StandIn, tmp_path: Path) -> None:
    (job.bin / "srun").unlink()
    result = run(job.spec(2), tmp_path / "run")
    assert (result.status, result.log) == ("failed", None)
    assert result.reason == f"the processes could not be started: there is no srun in {job.bin}"


def test_a_rank_that_slurm_puts_elsewhere(
    job: StandIn, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures would be those of another layout."""
    monkeypatch.setattr(slurm, "LATE_S", 0.2)
    told = '"$@" || echo "srun: error: $node: task $task: Exited with exit code $?" >&2; } &'
    all_on_one = _body(job).replace('"$((task + 1))p"', "1p")
    job.script("srun", all_on_one.replace("SLURM_PROCID=", "{ SLURM_PROCID=").replace('"$@" &', told))
    ended = launched(job.spec(3), tmp_path, module=program("time.sleep(600)"))
    assert ended.broken == "SLURM started rank 2 on n1 and not on n2; ask for as many tasks on each node"
    assert not alive(ended.pids)


@pytest.mark.slow
def test_a_folder_that_a_node_does_not_see(job: StandIn, tmp_path: Path) -> None:
    job.script("srun", "touch $SLURM_HOSTFILE; mv $(dirname $SLURM_HOSTFILE)/spec.json $(dirname $0)\n" + _body(job))
    result = run(job.spec(2), tmp_path / "run")
    assert result.status == "failed" and result.log == SRUN_LOG
    assert result.reason == (
        f"{os.uname().nodename} cannot read {tmp_path}/run/spec.json (No such file or directory); "
        "a run's folder has to be on a file system that all its hosts share"
    )


def _body(job: StandIn) -> str:
    return (job.bin / "srun").read_text().removeprefix("#!/bin/sh\n")


@pytest.mark.parametrize("victim", ["worker", "keeper", "parent's srun"])
def test_whoever_is_killed_nobody_is_left(victim: str, job: StandIn, tmp_path: Path) -> None:
    folder, pids = tmp_path / "run", []

    def on_look(progress: list[Progress]) -> None:
        if not pids and {p.phase for p in progress} == {"measure"} and len(progress) == 2:
            found = json.loads((folder / "pid1.json").read_text())
            srun = psutil.Process(found["keeper"]).parent()
            assert srun is not None
            pids.extend(process.pid for process in [*srun.children(recursive=True), srun])
            os.kill(found.get(victim, srun.pid), signal.SIGKILL)

    result = run(job.spec(2, measure=LONG), folder, on_look)
    assert len(pids) >= 5, "srun, two keepers, two workers"
    wait_until(lambda: not alive(pids), 10.0)
    assert (result.status, result.reason) == (
        "failed", "srun was killed by SIGKILL" if "srun" in victim else "rank 1 was killed by SIGKILL"
    )  # fmt: skip
    assert not list(folder.glob("pid*")) and not list(folder.glob("exit*"))


class Srun:
    """A step's program that notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[signal.Signals] = []

    def signal(self, sign: signal.Signals) -> None:
        self.sent.append(sign)

    def poll(self) -> int | None:
        return None


def test_ranks_elsewhere_get_the_request_for_stacks_from_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "STACK_S", 0.0)
    group: Any = slurm.StepGroup(tmp_path, 2)
    group.starter = Srun()
    group.ask_for_stacks()
    assert group.starter.sent == [], "nobody has started yet, and srun would end them"
    write_json(rank_processes_path(tmp_path, 1), vars(RankProcesses("far", 1, 2)))
    group.ask_for_stacks()
    assert group.starter.sent == [signal.SIGUSR1]


def test_the_killed_are_the_cause_of_lost_connections(
    job: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that lose one may tell it before srun has told of the cause."""
    group: Any = slurm.StepGroup(tmp_path, 3)
    group.starter = Srun()
    write_json(worker_exit_path(tmp_path, 0), vars(WorkerExit(1, False)))
    assert group.broken() is None
    assert group.first([0]) == [0]
    (tmp_path / SRUN_LOG).write_text(
        "srun: error: far: task 2: Killed\nsrun: error: far: task 0: Exited with exit code 1\n"
    )
    assert group.first([0]) == [2]
    assert [member.poll() for member in group.members] == [1, None, -9]
    monkeypatch.setattr(watch, "FOLLOW_S", 0.0)
    assert watch._watch(job.spec(3), tmp_path, group, lambda progress: None) == ([2], None, None)


@pytest.mark.slow
def test_mpirun_in_a_job_goes_to_the_nodes_of_the_places(
    job: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job.spec(3)
    spec.config.strategy.launcher = "mpi"
    said = (
        'case "$*" in *--version*) echo "mpirun (Open MPI) 4.1.4";; '
        '*) echo " $* tasks=$SLURM_TASKS_PER_NODE" >&2; exit 1;; esac'
    )
    job.script("mpirun", said)
    monkeypatch.setenv("PATH", f"{job.bin}{os.pathsep}{os.environ['PATH']}")
    assert [address.partition(":")[0] for address in mpi.addresses(spec)] == ["n1", "n1", "n2"]
    assert run(spec, tmp_path / "uneven").status == "failed"
    words = (tmp_path / "uneven" / "mpirun.log").read_text()
    assert "-n 3 " in words and "--host n1:2,n2:1 " in words
    assert words.endswith("tasks=2,1\n"), "the job has two on each"
    run(job.spec(4, size=160, strategy=spec.config.strategy), tmp_path / "even")
    words = (tmp_path / "even" / "mpirun.log").read_text()
    assert "--host n1:2,n2:2 " in words and words.endswith("tasks=2(x2)\n")
