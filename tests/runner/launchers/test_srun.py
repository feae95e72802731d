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

from scalebench.config import placement
from scalebench.core import exit_with_parent
from scalebench.core.json_files import write_json
from scalebench.core.process import StartError
from scalebench.core.result import SchedulerRecord
from scalebench.core.run_folder import (
    JOB_FILE,
    SRUN_HOSTS_FILE,
    SRUN_LOG,
    RankProcesses,
    WorkerExit,
    rank_log_name,
    rank_processes_path,
    worker_exit_path,
)
from scalebench.core.spec import RunSpec, write_spec
from scalebench.measure.progress import Progress
from scalebench.runner import launchers
from scalebench.runner.launchers import mpi, srun, supervise
from scalebench.runner.launchers.supervise import GroupExit
from scalebench.runner.parent import run
from scalebench.slurm.commands import SlurmError
from scalebench.slurm.submit import Submission, write_submission
from tests.builders.runs import alive, simulated_spec, wait_until
from tests.runner.launchers import fake_srun
from tests.runner.launchers.fake_srun import StandIn
from tests.runner.launchers.fake_srun import job as job  # a fixture

LONG = {"min_s": 600.0, "max_s": 600.0}
NOISE = "srun: cluster configuration lacks support for cpu binding\n"
Program = Callable[[str], str]


def launched(spec: RunSpec, folder: Path, **options: Any) -> GroupExit:
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
    assert not {SRUN_LOG, SRUN_HOSTS_FILE} & set(os.listdir(tmp_path)), "srun had nothing to say"


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
    assert told == [placement.variable(spec, rank)[placement.CPUS] for rank in range(2)]


def test_a_job_with_other_tasks_on_its_nodes(job: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    even = ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--nodelist=n1,n2", "python"]
    hosts = ["n1", "n1", "n2", "n2"]
    assert srun._with_layout(even, hosts) == even
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3,1")
    assert srun._with_layout(even, hosts) == ["srun", "--distribution=arbitrary", "--nodes=2", "--ntasks=4", "python"]
    assert srun._with_layout(even, ["n1", "n1"]) == even


def test_the_jobs_own_options_are_not_those_of_the_step(
    job: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_HOSTFILE", "/of/the/job")
    found = srun._variables(["n1", "n2"], "an id", tmp_path)
    assert "SLURM_NTASKS_PER_NODE" not in found
    assert found[exit_with_parent.LAUNCHER] == exit_with_parent.REMOTE, (
        "ranks descend from a daemon of SLURM, and not from srun"
    )
    assert (found["SLURM_HOSTFILE"], found["SLURM_JOB_ID"]) == (str(tmp_path / SRUN_HOSTS_FILE), "12")


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
    monkeypatch.setattr(srun, "FS_DELAY_S", 0.2)
    monkeypatch.setattr("scalebench.runner.launchers.remote_ranks.FS_DELAY_S", 0.2)
    monkeypatch.setattr("scalebench.runner.launchers.supervise.FOLLOW_S", 0.2)
    script, row = FAILURES[case]
    job.script("srun", script)
    result = run(job.spec(2), tmp_path / "run")
    assert (result.status, result.reason) == row
    assert not (tmp_path / "run" / SRUN_HOSTS_FILE).exists()


def test_no_srun_is_a_failed_row(job: StandIn, tmp_path: Path) -> None:
    (job.bin / "srun").unlink()
    result = run(job.spec(2), tmp_path / "run")
    assert (result.status, result.log) == ("failed", None)
    assert result.reason == f"the processes could not be started: there is no srun in {job.bin}"


def test_a_rank_that_slurm_puts_elsewhere(
    job: StandIn, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures would be those of another layout."""
    monkeypatch.setattr(srun, "FS_DELAY_S", 0.2)
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


@pytest.mark.parametrize("victim", ["worker", "agent", "parent's srun"])
def test_whoever_is_killed_nobody_is_left(victim: str, job: StandIn, tmp_path: Path) -> None:
    folder, pids = tmp_path / "run", []

    def on_look(progress: list[Progress]) -> None:
        if not pids and {p.phase for p in progress} == {"measure"} and len(progress) == 2:
            found = json.loads((folder / "pid1.json").read_text())
            srun = psutil.Process(found["agent"]).parent()
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
    monkeypatch.setattr(srun, "STACK_S", 0.0)
    group: Any = srun.StepRanks(tmp_path, 2)
    group.starter = Srun()
    group.request_stacks()
    assert group.starter.sent == [], "nobody has started yet, and srun would end them"
    write_json(rank_processes_path(tmp_path, 1), vars(RankProcesses("far", 1, 2)))
    group.request_stacks()
    assert group.starter.sent == [signal.SIGUSR1]


def test_the_killed_are_the_cause_of_lost_connections(
    job: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that lose one may tell it before srun has told of the cause."""
    group: Any = srun.StepRanks(tmp_path, 3)
    group.starter = Srun()
    write_json(worker_exit_path(tmp_path, 0), vars(WorkerExit(1, False)))
    assert group.broken() is None
    assert group.first([0]) == [0]
    (tmp_path / SRUN_LOG).write_text(
        "srun: error: far: task 2: Killed\nsrun: error: far: task 0: Exited with exit code 1\n"
    )
    assert group.first([0]) == [2]
    assert [member.poll() for member in group.members] == [1, None, -9]
    monkeypatch.setattr(supervise, "FOLLOW_S", 0.0)
    request = supervise.LaunchRequest(job.spec(3), tmp_path, "an id")
    assert supervise._watch(request, group) == ([2], None, None)


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


def test_names_are_scontrols(job: StandIn) -> None:
    assert srun.job_nodes(str(job.bin)) == ["n1", "n2"]
    assert (job.folder / "asked").read_text() == "show hostnames n[1-2]\n"


def test_a_single_name_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_srun.variables(monkeypatch, nodes="gpu-07")
    assert srun.job_nodes("/missing") == ["gpu-07"]


def test_outside_a_job_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in srun.NODE_LISTS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SlurmError, match="SLURM_JOB_NODELIST is not set"):
        srun.job_nodes()


def test_a_run_takes_the_first_nodes(job: StandIn) -> None:
    assert srun.rank_nodes(job.spec(2)) == ["n1", "n1"]
    assert srun.rank_nodes(job.spec(3)) == ["n1", "n1", "n2"]


def test_too_few_nodes_are_told(job: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    with pytest.raises(StartError) as caught:
        srun.rank_nodes(job.spec(3))
    assert str(caught.value) == "job 12 has 1 node and gpus=3 wants 2; ask for more nodes, or lower gpus"


def test_what_scontrol_says_is_the_reason(job: StandIn) -> None:
    job.script("scontrol", "echo 'scontrol: error: host list is empty' >&2; exit 1")
    with pytest.raises(StartError, match="host list is empty"):
        srun.rank_nodes(job.spec(2))


@pytest.mark.parametrize(
    ("tasks", "hosts", "same"),
    [
        ("2(x2)", "aabb", True),
        ("2(x3)", "aabb", True),
        ("2", "aa", True),
        ("3,1", "aabb", False),
        ("3,1", "aaab", True),
        ("1(x2)", "aabb", False),
        ("", "ab", False),
    ],
)
def test_where_slurm_deals_as_the_places_are(
    tasks: str, hosts: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
    assert srun.has_task_layout(list(hosts)) == same


def test_tasks_of_a_job_as_the_ranks_are_to_stand(job: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its nodes has some, also those that this run leaves alone."""
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3,1")
    assert srun.task_layout(["n1", "n1", "n2", "n2"], str(job.bin)) == {"SLURM_TASKS_PER_NODE": "2,2"}
    assert srun.task_layout(["n1", "n1"], str(job.bin)) == {"SLURM_TASKS_PER_NODE": "2,1"}
    assert srun.task_layout(["n1", "n1", "n1", "n2"], "/missing") == {}


def test_who_starts_the_ranks(job: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job.spec(2)
    assert launchers.launcher_of(spec) == "slurm"
    spec.config.strategy.launcher = "mpi"
    assert launchers.launcher_of(spec) == "mpi"
    spec.config.hardware.slurm.mpi = "pmix"
    assert launchers.launcher_of(spec) == "slurm"
    assert launchers.launcher_of(simulated_spec(gpus=2)) == "local", (
        "the hardware is this machine, whatever job this is"
    )
    monkeypatch.delenv("SLURM_JOB_ID")
    assert launchers.launcher_of(job.spec(2)) == "local"


def test_the_record_of_a_job(job: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = SchedulerRecord("slurm", "12", "main", ["n1", "n2"])
    assert srun.scheduler_record(job.spec(3), tmp_path) == here, "by hand: nobody knows how long it was queued"
    write_submission(Submission("12", 990.5), tmp_path)
    assert srun.scheduler_record(job.spec(3), tmp_path) == SchedulerRecord("slurm", "12", "main", ["n1", "n2"], 9.0)
    write_submission(Submission("11", 990.5), tmp_path)
    assert srun.scheduler_record(job.spec(3), tmp_path) == here, "an earlier job of this folder"
    (tmp_path / JOB_FILE).write_text("{")
    assert srun.scheduler_record(job.spec(3), tmp_path) == here
    assert srun.scheduler_record(simulated_spec(), tmp_path) is None
    monkeypatch.delenv("SLURM_JOB_ID")
    assert srun.scheduler_record(job.spec(3), tmp_path) is None


def test_slurm_that_does_not_say_when_a_job_started(job: StandIn, tmp_path: Path) -> None:
    job.script("scontrol", "exit 1")
    write_submission(Submission("12", 990.5), tmp_path)
    found = srun.scheduler_record(job.spec(3), tmp_path)
    assert found is not None and found.queued_s is None


NOISE = "srun: cluster configuration lacks support for cpu binding\n"
ENDED = """srun: forcing job termination
srun: got SIGCONT
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
"""
CANCELLED_STEP = "slurmstepd-h1: error: *** STEP 88.0 ON h1 CANCELLED AT 2026-11-21T04:04:19{} ***\n"
MEMORY_LIMIT = """slurmstepd-h2: error: StepId=48.0 exceeded memory limit (1112723456 > 1048576000), being killed
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-h1: error: *** STEP 48.0 ON h1 CANCELLED AT 2026-11-21T03:52:09 ***
srun: error: h2: tasks 2-3: Killed
"""
CGROUP = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed by "
    "the cgroup out-of-memory handler.\nsrun: error: n1: task 0: Out Of Memory\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", None),
        (NOISE + ENDED, None),
        (NOISE + "srun: error: h2: task 3: Killed\n", None),  # which is told of the rank
        (
            NOISE + "srun: error: Unable to create step for job 92: More processors requested than permitted\n",
            "srun: Unable to create step for job 92: More processors requested than permitted",
        ),
        (
            "slurmstepd-h1: error: execve(): /x/python: No such file or directory\n"
            "srun: error: h1: tasks 0-1: Exited with exit code 2\n",
            "slurmstepd-h1: execve(): /x/python: No such file or directory",
        ),
        ("Traceback:\n  File x\nImportError: No module named 'y'\n", "srun: ImportError: No module named 'y'"),
        ("slurmstepd: error: couldn't chdir\nscalebench: h2 cannot read it\n", "h2 cannot read it"),
        ("srun: error: No gres\nand more\n", "srun: No gres"),
        (
            "srun: unrecognized option '--x'\nTry \"srun --help\" for more information\n",
            "srun: unrecognized option '--x'",
        ),
        ("x" * 1000, "srun: " + "x" * 300),
    ],
)  # fmt: skip
def test_the_reason(text: str, said: str | None, tmp_path: Path) -> None:
    log = tmp_path / SRUN_LOG
    assert srun.failure_reason(log) is None
    log.write_text(text)
    assert srun.failure_reason(log) == said


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (NOISE, None),
        ("srun: error: h2: task 3: Killed\n", None),
        (NOISE + CANCELLED_STEP.format(""), ("cancelled", "SLURM: the job was cancelled")),
        (CANCELLED_STEP.format(" DUE TO TIME LIMIT"), ("timeout", "SLURM: the job was ended, due to time limit")),
        (CANCELLED_STEP.format(" DUE TO PREEMPTION"), ("cancelled", "SLURM: the job was ended, due to preemption")),
        (
            "srun: error: Node failure on h2\n" + CANCELLED_STEP.format(" DUE TO NODE FAILURE"),
            ("failed", "SLURM: node failure on h2"),
        ),
        (
            NOISE + MEMORY_LIMIT,
            ("oom", "SLURM: StepId=48.0 exceeded memory limit (1112723456 > 1048576000), being killed"),
        ),
    ],
)
def test_outcome_of_a_step(text: str, outcome: tuple[str, str] | None) -> None:
    assert srun.step_outcome(text) == outcome


def test_memory_is_the_only_thing_that_counts_after_the_end() -> None:
    assert srun.memory_outcome(ENDED + CANCELLED_STEP.format("")) is None
    for text in (MEMORY_LIMIT, CGROUP, "srun: error: n1: task 0: Out Of Memory\n"):
        found = srun.memory_outcome(text)
        assert found is not None and found[0] == "oom"


def test_which_tasks_ended_badly_and_how() -> None:
    text = NOISE + "srun: error: h1: tasks 0-1,4: Killed\nsrun: error: h2: task 3: Exited with exit code 2\n"
    killed = dict.fromkeys((0, 1, 4), "Killed")
    assert srun.ended_tasks(text) == {**killed, 3: "Exited with exit code 2"}
    assert srun.ended_tasks(NOISE) == {}
    assert [bool(srun.EXITED.match(how)) for how in ("Exited with exit code 2", "Killed")] == [True, False]


def test_what_is_of_no_account() -> None:
    assert srun.only_noise("") and srun.only_noise(NOISE + ENDED)
    assert not srun.only_noise(NOISE + "srun: error: h2: task 3: Killed\n")
