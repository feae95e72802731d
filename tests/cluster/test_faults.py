"""The table of faults of a cluster: jobs that end from outside, ranks that are killed, nodes that die, and jobs that
SLURM refuses or never starts. And folders that nodes cannot access, and a scheduler with less information."""

import json
import re
import signal
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from scalebench.core.result import read_result
from tests.cluster.processes import until
from tests.cluster.program import ENDLESS, LIMIT_S, PATIENCE_S, Case
from tests.cluster.settings import HEAD

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
WORDS = "strategy=simulated baseline=none"
SHORT = f"{WORDS} gpus=1"
LASTING = f"{WORDS} gpus=2 measure.min_s=600 measure.max_s=600 strategy.options.step_s=0.02"


@pytest.fixture(autouse=True)
def no_job_left(program):
    """All nodes wait for jobs before, and no job of the test is in the queue afterwards."""
    program.environment["COLUMNS"] = "300"
    program.clear(15.0)
    yield
    left = program.clear(15.0)
    assert not left, f"the test left jobs: {left}"


def expire(program, number):
    soon = datetime.now() + timedelta(seconds=4)  # that SLURM rounds a limit up to a minute is no matter here
    job = program.working(number, 2)
    program.cluster.slurm("scontrol", "update", f"JobId={job}", f"EndTime={soon:%Y-%m-%dT%H:%M:%S}")


def preempt(program, number):
    program.working(number, 2)
    program.cluster.slurm("srun", "--partition=main", "--nodes=2", "--ntasks-per-node=2", "true", limit_s=PATIENCE_S)


def kill(name):
    """Of rank 3 or the agent of its node."""

    def act(program, number):
        program.working(number, 4)
        if name == "worker":
            pid = json.loads(program.path(number, "progress3.json").read_text())["pid"]
            program.cluster.on("node2", "kill", "-KILL", str(pid))
            return
        for process in psutil.process_iter(["cmdline"]):
            if "scalebench.runner.node_agent" in (process.info["cmdline"] or []):
                with suppress(psutil.NoSuchProcess):
                    if process.environ().get("SLURMD_NODENAME") == "node2":
                        process.kill()

    return act


def lose(place):
    """Pull the cable of a node, and mend it once the run has its row. The program waits on the head, which sees the
    other node still."""

    def act(program, number):
        program.working(number, 4)
        node = program.cluster.nodes[place]
        program.cluster.cut(node)
        try:
            if place == 0:  # the program is on it, and nobody is there to see that its own node is lost
                program.job(number, "NODE_FAIL")
            until(program.path(number, "result.json").exists, PATIENCE_S, "the row")
        finally:
            program.cluster.mend(node)
            until(lambda: "down*" not in program.cluster.node_states(), PATIENCE_S, f"the return of {node}")

    return act


ROOT = Path(__file__).resolve().parents[2]
GREEDY = 'import os\nif os.environ.get("RANK") == "3":\n    kept = b"x" * 600_000_000\n'
NODE_FAIL = r"SLURM job {job} lost a node \(NODE_FAIL\): node\[1-2\]"
NO_MEMORY = "StepId={job}.%s exceeded memory limit.*"
CANCELLED = Case("cancelled", ".*was cancelled.*CANCELLED.*", "CANCELLED", gpus=2, lasts=True)
KILLED = Case("failed", "rank 3 was killed by SIGKILL", gpus=4, lasts=True)
LOST = "node2, with rank 2, 3, was lost: the connection to its agent ended"
PREEMPTED = r"SLURM job {job} was preempted: it had to make room for another job \(PREEMPTED\)"
# Name -> what happens to the run, and its row. Each fills a node or both, so that they come one by one.
FAULTS = {
    "cancelled": (lambda program, number: program.cluster.slurm("scancel", program.working(number, 2)), CANCELLED),
    "late": (expire, Case("timeout", "SLURM job {job} ran out of its time limit.*", "TIMEOUT", gpus=2, lasts=True)),
    "low": (preempt, Case("cancelled", PREEMPTED, "PREEMPTED", gpus=2, lasts=True, slurm="partition: low")),
    "waiting": (
        lambda program, number: program.cluster.slurm("scancel", program.job(number, "PENDING")),
        replace(CANCELLED, slurm='lines: ["--begin=now+600"]'),
    ),
    "worker": (kill("worker"), KILLED),
    "agent": (kill("agent"), replace(KILLED, reason=LOST)),
    "memory": (None, Case("oom", f".*SLURM: {NO_MEMORY % 0}", gpus=4, lasts=True, slurm="memory: 400M")),
    "parent": (
        None,
        Case("oom", ".*" + NO_MEMORY % "(batch|0)", gpus=4, lasts=True, slurm="memory: 20M"),
    ),  # it takes more itself, and so does an agent
    "second": (lose(1), Case("failed", LOST, gpus=4, lasts=True)),
    "first": (lose(0), Case("failed", NODE_FAIL, "NODE_FAIL", gpus=4, lasts=True)),
    "good": (None, Case(gpus=4)),
}


@pytest.mark.parametrize(
    "names", ["cancelled,late,low,waiting,good", "memory,worker,agent,parent,good", "second,first,good"]
)
def test_every_fault_has_its_row_and_the_rest_goes_on(names, program):
    cases = {name: FAULTS[name][1] for name in names.split(",")}
    if "memory" in cases:
        (program.folder / "sitecustomize.py").write_text(GREEDY)
        cases["memory"] = replace(cases["memory"], environment=f', PYTHONPATH: "{program.folder}:{ROOT}"')
    with program.started(program.words_of_cases(cases)) as process:
        for number in sorted(range(len(cases)), key=lambda number: [*cases][number] == "low"):  # main goes first
            if (bring_about := FAULTS[[*cases][number]][0]) is not None:
                bring_about(program, number)
        out, err = process.communicate(timeout=LIMIT_S)
    rows = dict(zip(cases, program.check_cases(cases), strict=True))
    for name, row in rows.items():
        nodes = {"waiting": 0, "cancelled": 1, "late": 1, "low": 1}.get(name, 2)
        assert row.scheduler.nodes == row.scheduler.nodes[:nodes] and len(row.scheduler.nodes) == nodes, name
        assert name != "parent" or row.log in ("job.log", "srun.log")  # whichever of the two the kernel kills first
    assert [rank.hostname for rank in rows["good"].ranks] == [node for node in program.cluster.nodes for _ in range(2)]
    assert process.returncode == 1, out + err


def test_jobs_over_the_limit_of_their_user_are_submitted_when_others_have_ended(program):
    """A job for each of three sizes, of which two may be in the queue."""

    def limit(jobs):
        program.cluster.slurm("sacctmgr", *f"--immediate modify user root set MaxSubmitJobs={jobs}".split())

    limit(2)
    try:
        done = program.run(f"{WORDS} gpus=1,2,4 hardware.slurm.jobs=per_size measure.min_s=5 measure.max_s=5")
    finally:
        limit(-1)
    assert (done.status, done.err) == (0, ""), done.out
    assert "1 not submitted yet (AssocMaxSubmitJobLimit" in done.out
    assert [(row.status, row.reason) for row in program.rows().values()] == [("ok", None)] * 3


NEVER = r"cannot start \((%s|PartitionConfig)\)"
ABSENT = "Requested node configuration is not available"
# The settings of a job, and what sbatch says to them at once; then those of jobs that would wait forever.
REFUSED = {
    "partition: nowhere": "invalid partition specified: nowhere; Invalid partition name specified",
    'lines: ["--gpus=tesla:1"]': ABSENT,
    'lines: ["--gpus=99"]': ABSENT,
    'lines: ["--gres-flags=none"]': "Invalid --gres-flags specification",
    "memory: 900G": "Memory specification can not be satisfied",
    'lines: ["--nodelist=node77"]': "Invalid node name specified",
    'lines: ["--no-such-option=1"]': "unrecognized option '--no-such-option=1'",
    'lines: ["--licenses=none_of_it"]': "Invalid license specification",
}
CASES = {
    **{f"n{n}": Case("unsupported", f".*{reason}.*", slurm=job) for n, (job, reason) in enumerate(REFUSED.items())},
    "nodes": Case(
        "unsupported", f".*{NEVER % 'PartitionNodeLimit'}.*", gpus=5, hardware="  gpus_per_node: 1\n  max_nodes: 5\n"
    ),
    "minutes": Case("unsupported", f".*{NEVER % 'PartitionTimeLimit'}.*", slurm="partition: short, time_minutes: 2"),
    "one_node": Case(
        "unsupported", f".*{NEVER % 'PartitionNodeLimit'}.*", gpus=3, slurm="partition: short, time_minutes: 1"
    ),
    "turn": Case(slurm='lines: ["--begin=now+8"]'),  # a job that waits for its turn stays
    "good": Case(),
}


def test_a_job_that_cannot_start_is_a_row_with_its_reason(program):
    program.cluster.slurm("scontrol", "update", "PartitionName=short", "MaxNodes=1")
    try:
        done = program.run(program.words_of_cases(CASES))
    finally:
        program.cluster.slurm("scontrol", "update", "PartitionName=short", "MaxNodes=UNLIMITED")
    for row, case in zip(program.check_cases(CASES), CASES.values(), strict=True):
        if case.status == "unsupported":
            assert "sbatch" not in row.reason and "\n" not in row.reason and row.reason[:150] in done.out
        assert (row.scheduler is None) == (case.slurm in REFUSED)
    assert done.status == 0, done.out


@pytest.fixture
def unshared(program):
    """A folder that is another one on each host."""
    cluster = program.cluster
    program.sweep = cluster.unshared / "results"
    yield lambda host, name: read_row(cluster.on(host, "cat", str(program.sweep / name)), program.folder)
    for host in (HEAD, *cluster.nodes):
        cluster.on(host, "rm", "-rf", str(program.sweep))


def read_row(text, folder):
    (folder / "copied.json").write_text(text)
    return read_result(folder / "copied.json")


def test_a_folder_that_no_node_sees(program, unshared):
    """The program is on the head, and its results would be there."""
    done = program.run(f"{WORDS} gpus=1,4", host=HEAD)
    for number in range(2):
        row = unshared(HEAD, f"{number}/result.json")
        assert row.status == "failed" and row.reason.endswith(
            f" and left nothing in {program.sweep / str(number)}: the nodes do not see this folder; "
            "set hydra.sweep.dir (or hydra.run.dir) to one that they share"
        ), row.reason
    assert done.status == 1


def test_a_folder_that_one_node_does_not_see_is_filled_by_its_agent(program, unshared):
    """The program is on the first node, and so is the job's. There SLURM's commands are the system's own."""
    first, _ = program.cluster.nodes
    program.environment["SLURM_CONF"] = str(program.cluster.folder / "etc" / "slurm.conf")
    done = program.run(f"{WORDS} gpus=4 hardware.slurm.bin=null", several=False, host=first)
    row = unshared(first, "result.json")
    assert (row.status, row.reason, row.scheduler.nodes, len(row.ranks)) == ("ok", None, program.cluster.nodes, 4)
    assert done.status == 0


def test_two_sweeps_in_one_folder(program):
    """The second is refused, and harms nothing; one in another folder runs beside the first."""
    sweep = program.sweep
    with program.started(LASTING) as first:
        job = program.working(0, 2)
        before = sorted(path.name for path in (sweep / "0").iterdir())
        done = program.run(SHORT)
        assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
        assert f"uses {sweep}; wait for its end, or choose another folder" in done.err
        assert before == sorted(path.name for path in (sweep / "0").iterdir())
        program.sweep = program.folder / "another"
        assert (program.run(SHORT).status, program.row(0).status) == (0, "ok")
        program.sweep = sweep
        assert program.job(0, "RUNNING") == job
        program.cluster.slurm("scancel", job)
        first.communicate(timeout=LIMIT_S)
    assert (first.returncode, program.row(0).status) == (1, "cancelled")


@pytest.mark.parametrize("number", [None, 0])
def test_a_job_that_was_left_behind_is_not_spoilt(number, program):
    """Its program was killed. The same words are refused, and wait for it with resume=true."""
    several = number is not None
    with program.started(LASTING, several=several) as process:
        job = program.working(number, 2)
        process.kill()
    done = program.run(LASTING, several=several)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"job {job} of" in done.err and "resume=true" in done.err
    with program.started(LASTING, "resume=true", several=several) as process:
        assert process.stdout.readline().startswith("0 of 1 run over, 1 ")
        assert program.job(number) == job
        program.cluster.slurm("scancel", job)
        process.communicate(timeout=LIMIT_S)
    row = program.row(number)
    assert (process.returncode, row.status, row.scheduler.job_id) == (1, "cancelled", job)
    assert f"SLURM job {job} was cancelled" in row.reason and len(program.calls("sbatch")) == 1


# Jobs that are over are in no queue, as some minutes later everywhere.
FORGETS = '#!/bin/bash\nexec {bin}/squeue "${{@/#--states=all/--states=PD,R,CF}}"\n'


def commands(program, **other):
    """SLURM's without sacct, some of them changed."""
    folder = program.folder / "changed"
    folder.mkdir()
    for path in program.cluster.bin_nosacct.iterdir():
        if path.name in other:
            (folder / path.name).write_text(other[path.name])
            (folder / path.name).chmod(0o755)
        else:
            (folder / path.name).symlink_to(path)
    return f"hardware.slurm.bin={folder}"


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_killed_job_is_not_waited_for_without_accounts(is_forgotten, program):
    """All of its processes are killed at once, so that none leaves a word."""
    changed = {"squeue": FORGETS.format(bin=program.cluster.bin)} if is_forgotten else {}
    with program.started(LASTING, commands(program, **changed), several=False) as process:
        job = program.working(None, 2)
        program.cluster.slurm("scancel", "--batch", "--signal=KILL", job)
        process.communicate(timeout=LIMIT_S)
    row = program.row()
    assert (process.returncode, row.status) == (1, "failed")
    if is_forgotten:
        assert row.reason == f"SLURM does not list job {job} any more, and it left no result.json"
    else:
        assert row.reason.startswith(f"SLURM job {job} failed (FAILED, ")


@pytest.fixture
def away(program):
    """A file; as long as it is there, the commands ask where no controller listens."""
    flag, conf = program.folder / "away", program.folder / "slurm.conf"
    own = (program.cluster.folder / "etc" / "slurm.conf").read_text()
    conf.write_text(f"{own}SlurmctldPort=1\nMessageTimeout=2\n")
    flag.touch()
    return flag


def without_controller(program, flag):
    changed = {}
    for name in ("sbatch", "squeue", "scontrol", "scancel"):
        text = (program.cluster.bin / name).read_text()
        # The cluster's own, with another controller in its settings.
        (line,) = (line for line in text.splitlines() if line.startswith("export SLURM_CONF="))
        changed[name] = text.replace(line, f"{line}\n[ ! -e {flag} ] || export SLURM_CONF={flag.parent}/slurm.conf")
    return commands(program, **changed)


def test_a_controller_that_is_away_is_a_row_and_the_sweep_ends(program, away):
    words = f"{WORDS} gpus=1,2", without_controller(program, away)
    assert program.run(*words).status == 1
    for number in range(2):
        row = program.row(number)
        assert (row.status, "\n" in row.reason) == ("failed", False)
        assert "it could not be submitted: Unable to contact slurm controller" in row.reason
    away.unlink()
    assert program.run(*words, "resume=true").status == 0


def test_a_controller_that_starts_anew_costs_no_run(program, away):
    """It is away when jobs are submitted, and again while they run."""
    words = f"{SHORT} measure.max_s=15 measure.min_s=15 strategy.options.step_s=0.02"
    with program.started(words, without_controller(program, away), several=False) as process:
        until((program.sweep / "job.sh").exists, PATIENCE_S, "the job's script")
        away.unlink()
        program.working()
        away.touch()
        process.communicate(timeout=LIMIT_S)
        away.unlink()
    row = program.row()
    assert (process.returncode, row.status, row.reason) == (0, "ok", None)


# Ctrl-C, SIGTERM, SIGHUP and nohup while jobs run: the fate of the jobs, and the messages;
# and sweeps whose program was killed or whose runs failed, continued by a second command.
# One run that measures on one node, one on both that waits for that, and one that is not even submitted.
THREE = ("strategy=simulated gpus=1,4,3 hardware.max_jobs=2 baseline=none", *ENDLESS)


def cancelled(program):
    """All jobs are over, and each run has a row that says so."""
    program.jobs_are(CANCELLED=2)
    assert {number: row.status for number, row in program.rows().items()} == dict.fromkeys(range(3), "cancelled")
    running, waiting, unsent = program.rows().values()
    assert running.scheduler.state == "CANCELLED"
    assert waiting.scheduler.nodes == []
    assert unsent.reason == "cancelled before it was submitted" and unsent.scheduler is None
    assert len(program.calls("sbatch")) == 2


def table_of(said):
    """Strategy and devices of its rows, and whether they were cancelled."""
    rows = re.findall(r"^\d+ +(simulated) +(\d+) +(?:\x1b\[\d+m)?(\w+)", said, re.MULTILINE)
    return sorted([name, devices, status == "cancelled"] for name, devices, status in rows)


ALL_CANCELLED = [["simulated", "1", True], ["simulated", "3", True], ["simulated", "4", True]]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_jobs_are_cancelled_without_a_terminal_to_ask(sign, program):
    with program.started(*THREE) as process:
        program.jobs_are(RUNNING=1, PENDING=1)
        program.working(0)
        process.send_signal(sign)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (1, "scalebench: cancelled; the same command with resume=true does the rest\n")
    cancelled(program)
    assert "[Y/n]" not in out and table_of(out) == ALL_CANCELLED


def test_the_terminal_is_closed(program):
    """SIGHUP ends the program at once, and leaves its jobs; under nohup it stays, and follows them."""
    with program.started(*THREE) as process:
        program.jobs_are(RUNNING=1, PENDING=1)
        program.working(0)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=PATIENCE_S)
    line = "scalebench: 2 jobs keep running; the same command with resume=true waits for the rest\n"
    assert (process.returncode, err, program.rows(), program.calls("scancel")) == (1, line, {}, [])
    program.jobs_are(RUNNING=1, PENDING=1)
    with program.started(*THREE, "resume=true", before=("nohup",)) as process:
        for line in process.stdout:
            if "1 running" in line:
                break
        process.send_signal(signal.SIGHUP)
        for job in program.ids():
            program.cluster.slurm("scancel", job)
        program.jobs_are(CANCELLED=2, RUNNING=1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and len(program.calls("sbatch")) == 3
    assert {row.status for row in program.rows().values()} == {"cancelled"}


def test_a_killed_program_leaves_its_jobs_to_the_next(program):
    """Of four runs one is over, one goes on, and two have not been submitted."""
    words = (
        "strategy=simulated gpus=1,2,3,4 hardware.max_jobs=1 baseline=none measure.min_s=8 measure.max_s=8 "
        "strategy.options.step_s=0.01"
    )
    with program.started(words) as process:
        until(lambda: len(program.rows()) == 1, PATIENCE_S, "the first row")
        until(lambda: len(program.ids()) == 2, PATIENCE_S, "the second job")
        process.send_signal(signal.SIGKILL)
        process.wait()
    first = {number: program.job(number) for number in range(2)}
    assert not (program.sweep / "2" / "job.json").exists()
    over = next(iter(program.rows()))
    whole = program.path(over, "result.json").read_bytes()
    done = program.run(words, "resume=true")
    assert (done.status, done.err) == (0, ""), done.out
    assert {number: program.job(number) for number in range(2)} == first
    assert len(program.calls("sbatch")) == 4, "each run once"
    assert [row.status for row in program.rows().values()] == ["ok"] * 4
    assert program.path(over, "result.json").read_bytes() == whole
    assert [row.scheduler.job_id for row in program.rows().values() if row.scheduler][:2] == list(first.values())
