"""Jobs that end from outside, folders that nodes cannot access, nodes that die, ranks that are killed, jobs that SLURM
refuses or never starts, and a scheduler with less information."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from scalebench.core.result import read_result
from tests.cluster import processes
from tests.cluster.fault_cases import JOB_LIMIT_S, LASTING, SHORT, case, cases, run, started
from tests.cluster.fault_cases import no_job_left as no_job_left
from tests.cluster.settings import HEAD

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.usefixtures("no_job_left")]
CANCELLED, LATE, LOW, WAITING = range(4)


def test_every_end_from_outside_has_its_row_and_the_rest_goes_on(cluster, tmp_path):
    """Each job fills a node."""
    told = {
        "cancelled": case("cancelled", gpus=2, lasting=True),
        "late": case("late", gpus=2, lasting=True),
        "low": case("low", gpus=2, lasting=True, slurm="partition: low"),
        "waiting": case("waiting", gpus=2, lasting=True, slurm='lines: ["--begin=now+600"]'),
        "good": case("good", gpus=2),
    }
    with started(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told)) as program:
        cluster.slurm("scancel", program.working(CANCELLED, 2))
        cluster.slurm("scancel", program.until(WAITING, "PENDING"))
        late = program.working(LATE, 2)
        soon = datetime.now() + timedelta(seconds=4)  # that SLURM rounds a limit up to a minute is no matter here
        cluster.slurm("scontrol", "update", f"JobId={late}", f"EndTime={soon:%Y-%m-%dT%H:%M:%S}")
        low = program.working(LOW, 2)
        cluster.slurm("srun", "--partition=main", "--nodes=2", "--ntasks-per-node=2", "true", limit_s=120.0)
        status, said = program.ended()
        rows = [program.row(number) for number in range(5)]
    assert [row.status for row in rows] == ["cancelled", "timeout", "cancelled", "cancelled", "ok"], said
    assert "was cancelled" in str(rows[CANCELLED].reason) and "CANCELLED" in str(rows[CANCELLED].reason)
    assert "was cancelled" in str(rows[WAITING].reason) and "CANCELLED" in str(rows[WAITING].reason)
    assert f"SLURM job {late} ran out of its time limit" in str(rows[LATE].reason)
    assert rows[LOW].reason == f"SLURM job {low} was preempted: it had to make room for another job (PREEMPTED)"
    schedulers = [row.scheduler for row in rows]
    states = [None if each is None else each.state for each in schedulers]
    assert states[:4] == ["CANCELLED", "TIMEOUT", "PREEMPTED", "CANCELLED"]
    nodes = [None if each is None else len(each.nodes) for each in schedulers]
    assert nodes == [1, 1, 1, 0, 1]
    assert status == 1, said


@pytest.fixture
def unshared(cluster):
    """A folder that is another one on each host."""
    folder = cluster.unshared / "results"
    yield folder
    for host in (HEAD, *cluster.nodes):
        cluster.on(host, "rm", "-rf", str(folder))


def test_a_folder_that_no_node_sees(cluster, tmp_path, unshared):
    """The program is on the head, and its results would be there."""
    status, said = run(cluster, unshared, *SHORT, "--multirun", "gpus=1,4", host=HEAD)
    rows = [_copied(cluster, HEAD, unshared / str(number), tmp_path) for number in range(2)]
    assert [row.status for row in rows] == ["failed", "failed"], said
    for number, row in enumerate(rows):
        assert (row.reason or "").endswith(
            f" and left nothing in {unshared / str(number)}: the nodes do not see this folder; "
            "set hydra.sweep.dir (or hydra.run.dir) to one that they share"
        ), row.reason
    assert status == 1


def test_a_folder_that_one_node_does_not_see(cluster, tmp_path, unshared):
    """The program is on the first node, and so is the job's. There SLURM's commands are the system's own."""
    first, second = cluster.nodes
    words = [*SHORT, "gpus=4", "hardware.slurm.bin=null"]
    variables = {"SLURM_CONF": str(cluster.folder / "etc" / "slurm.conf")}
    status, said = run(cluster, unshared, *words, host=first, variables=variables)
    row = _copied(cluster, first, unshared, tmp_path)
    assert row.status == "failed", said
    assert (row.reason or "").startswith(f"{second} cannot read {unshared / 'spec.json'}"), row.reason
    assert "a file system that all its hosts share" in (row.reason or "")
    assert status == 1


def test_two_sweeps_in_one_folder(cluster, tmp_path):
    """The second is refused, and harms nothing; one in another folder runs beside the first."""
    sweep = tmp_path / "sweep"
    with started(cluster, sweep, *LASTING, "--multirun", "gpus=2") as first:
        job = first.working(0, 2)
        before = sorted(path.name for path in (sweep / "0").iterdir())
        status, said = run(cluster, sweep, *SHORT, "--multirun", "gpus=1")
        assert (status, len(said.splitlines())) == (2, 1), said
        assert f"uses {sweep}; wait for its end, or choose another folder" in said
        assert before == sorted(path.name for path in (sweep / "0").iterdir())
        status, said = run(cluster, tmp_path / "another", *SHORT, "--multirun", "gpus=1")
        assert (status, read_result(tmp_path / "another" / "0" / "result.json").status) == (0, "ok"), said
        assert first.until(0, "RUNNING") == job
        cluster.slurm("scancel", job)
        status, said = first.ended()
        assert (status, first.row(0).status) == (1, "cancelled"), said


@pytest.mark.parametrize("sweep", [False, True])
def test_a_job_that_was_left_behind_is_not_spoilt(cluster, tmp_path, sweep):
    """Its program was killed. The same words are refused, and wait for it with resume=true."""
    folder, words = tmp_path / "left", [*LASTING, "gpus=2", *(["--multirun"] if sweep else [])]
    number = 0 if sweep else None
    with started(cluster, folder, *words) as first:
        job = first.working(number, 2)
        first.process.kill()
    status, said = run(cluster, folder, *words)
    assert (status, len(said.splitlines())) == (2, 1), said
    assert f"job {job} of" in said and "resume=true" in said
    with started(cluster, folder, *words, "resume=true") as again:
        again.until_said("1 running")
        assert again.job(number) == job
        cluster.slurm("scancel", job)
        status, said = again.ended()
        row = again.row(number)
        assert (status, row.status) == (1, "cancelled"), said
        assert row.scheduler is not None and row.scheduler.job_id == job


def _copied(cluster, host, folder, tmp_path):
    """The row that is to be seen on that host only."""
    copy = tmp_path / "copied.json"
    copy.write_text(cluster.on(host, "cat", str(folder / "result.json")))
    return read_result(copy)


NODES = "--noheader", "--Node", "--partition=main", "--format=%T"


def test_a_node_that_dies_is_a_row_and_its_return_brings_the_next(cluster, tmp_path):
    """Four ranks on two nodes. The program waits on the head, which sees the other nodes still."""
    told = {
        "second": case("second", gpus=4, lasting=True),
        "first": case("first", gpus=4, lasting=True),
        "good": case("good", gpus=4),
    }
    with started(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told)) as program:
        rows = [_lose(program, cluster, 0, cluster.nodes[1]), _lose(program, cluster, 1, cluster.nodes[0])]
        status, said = program.ended()
        rows.append(program.row(2))
        rows[:2] = [program.row(0), program.row(1)]  # with SLURM's word
    assert [row.status for row in rows] == ["failed", "failed", "ok"], said
    for row in rows[:2]:
        assert row.scheduler is not None and row.scheduler.state == "NODE_FAIL"
        assert row.reason == f"SLURM job {row.scheduler.job_id} lost a node (NODE_FAIL): node[1-2]"
        assert row.scheduler.nodes == cluster.nodes
    assert status == 1, said


def _lose(program, cluster, number, node):
    job = program.working(number, 4)
    cluster.cut(node)
    try:
        program.until(number, "NODE_FAIL")
        return program.until_row(number)
    finally:
        cluster.mend(node)
        processes.until(lambda: "down*" not in cluster.slurm("sinfo", *NODES), JOB_LIMIT_S, f"{node} after job {job}")


GREEDY = 'import os\nif os.environ.get("RANK") == "3":\n    kept = b"x" * 600_000_000\n'
MEMORY, WORKER, AGENT, PARENT, GOOD = range(5)
ROOT = Path(__file__).resolve().parents[2]


def test_the_reason_of_killed_ranks_is_reported_and_other_runs_go_on(cluster, tmp_path):
    """Four ranks on two nodes."""
    (tmp_path / "greedy").mkdir()
    (tmp_path / "greedy" / "sitecustomize.py").write_text(GREEDY)
    path = f', PYTHONPATH: "{tmp_path}/greedy:{ROOT}"'
    told = {
        "memory": case("memory", gpus=4, lasting=True, slurm="memory: 400M", variables=path),
        "worker": case("worker", gpus=4, lasting=True),
        "agent": case("agent", gpus=4, lasting=True),
        "parent": case("parent", gpus=4, lasting=True, slurm="memory: 20M"),  # it takes more itself
        "good": case("good", gpus=4),
    }
    with started(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told)) as program:
        program.working(WORKER, 4)
        cluster.on("node2", "kill", "-KILL", str(_pids(program, WORKER, 3)["worker"]))
        program.working(AGENT, 4)
        cluster.on("node2", "kill", "-KILL", str(_pids(program, AGENT, 3)["agent"]))
        status, said = program.ended()
        rows = [program.row(number) for number in range(5)]
    assert [row.status for row in rows] == ["oom", "failed", "failed", "oom", "ok"], said
    step = rows[MEMORY].scheduler
    assert step is not None and f"SLURM: StepId={step.job_id}.0 exceeded memory limit" in str(rows[MEMORY].reason)
    assert rows[WORKER].reason == "rank 3 was killed by SIGKILL"
    assert rows[AGENT].reason == "rank 3 was killed by SIGKILL"
    batch = rows[PARENT].scheduler
    assert batch is not None and f"StepId={batch.job_id}.batch exceeded memory limit" in str(rows[PARENT].reason)
    assert rows[PARENT].log == "job.log"
    assert all(rank.hostname == node for rank, node in zip(rows[GOOD].ranks, _nodes(cluster), strict=True))
    assert status == 1, said


def _pids(program, number, rank):
    """Of a rank and its agent, in the numbers of their node."""
    found = json.loads((program.folder / str(number) / f"pid{rank}.json").read_text())
    return found


def _nodes(cluster):
    return [node for node in cluster.nodes for _ in range(2)]


# What sbatch says at once.
REFUSED = {
    "partition": ("partition: nowhere", "invalid partition specified: nowhere; Invalid partition name specified"),
    "kind": ('lines: ["--gpus=tesla:1"]', "Requested node configuration is not available"),
    "gres": ('lines: ["--gpus=99"]', "Requested node configuration is not available"),
    "resource": ('lines: ["--gres-flags=none"]', "Invalid --gres-flags specification"),
    "memory": ("memory: 900G", "Memory specification can not be satisfied"),
    "node": ('lines: ["--nodelist=node77"]', "Invalid node name specified"),
    "option": ('lines: ["--no-such-option=1"]', "unrecognized option '--no-such-option=1'"),
    "licence": ('lines: ["--licenses=none_of_it"]', "Invalid license specification"),
}


@pytest.fixture
def narrow(cluster):
    """Partition `short` gives a job one node."""
    cluster.slurm("scontrol", "update", "PartitionName=short", "MaxNodes=1")
    yield
    cluster.slurm("scontrol", "update", "PartitionName=short", "MaxNodes=UNLIMITED")


def test_a_refusal_of_sbatch_is_a_result_with_its_reason(cluster, tmp_path):
    told = {name: case(name, slurm=slurm) for name, (slurm, _) in REFUSED.items()} | {"good": case("good")}
    status, said = run(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told))
    rows = [_row(tmp_path / "sweep", number) for number in range(len(told))]
    assert [row.status for row in rows] == ["unsupported"] * len(REFUSED) + ["ok"], said
    for row, (name, (_, words)) in zip(rows, REFUSED.items(), strict=False):
        assert words in (row.reason or ""), name
        assert "sbatch" not in (row.reason or "") and "\n" not in (row.reason or ""), name
        assert words in said
    assert status == 0, said


def test_a_job_that_would_wait_forever_is_removed_from_the_queue(cluster, tmp_path, narrow):
    """A job that waits for its turn stays."""
    told = {
        "nodes": case("nodes", gpus=5, more="gpus_per_node: 1\nmax_nodes: 5"),  # more than there are
        "minutes": case("minutes", slurm="partition: short, time_minutes: 2"),
        "one_node": case("one_node", gpus=3, slurm="partition: short, time_minutes: 1"),
        "turn": case("turn", slurm='lines: ["--begin=now+8"]'),
    }
    status, said = run(cluster, tmp_path / "sweep", *cases(tmp_path / "cases", **told))
    rows = [_row(tmp_path / "sweep", number) for number in range(len(told))]
    assert [row.status for row in rows] == ["unsupported"] * 3 + ["ok"], said
    reasons = [row.reason or "" for row in rows]
    for reason, words in zip(reasons, ("PartitionNodeLimit", "PartitionTimeLimit", "PartitionNodeLimit"), strict=False):
        assert f"cannot start ({words})" in reason or "cannot start (PartitionConfig)" in reason
    assert all(row.scheduler is not None and row.scheduler.job_id.isdigit() for row in rows)
    assert status == 0, said


def _row(folder, number):
    return read_result(folder / str(number) / "result.json")


# Jobs that are over are in no queue, as some minutes later everywhere.
FORGETS = '#!/bin/bash\nexec {bin}/squeue "${{@/#--states=all/--states=PD,R,CF}}"\n'
NOTHING = '#!/bin/sh\n[ "$*" = "--oneliner show job" ] || exec {bin}/scontrol "$@"\necho "No jobs in the system"\n'


def commands(cluster, folder, **other):
    """SLURM's without sacct, some of them changed."""
    folder.mkdir()
    for path in cluster.bin_nosacct.iterdir():
        if path.name in other:
            (folder / path.name).write_text(other[path.name])
            (folder / path.name).chmod(0o755)
        else:
            (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize("forgotten", ["nothing", "by the queue", "by all"])
def test_a_killed_job_is_not_waited_for_without_accounts(cluster, tmp_path, forgotten):
    """All of its processes are killed at once, so that none leaves a word."""
    squeue, scontrol = FORGETS.format(bin=cluster.bin), NOTHING.format(bin=cluster.bin)
    changed = {"nothing": {}, "by the queue": {"squeue": squeue}, "by all": {"squeue": squeue, "scontrol": scontrol}}
    bin = commands(cluster, tmp_path / "bin", **changed[forgotten])
    with started(cluster, tmp_path / "run", *LASTING, "gpus=2", f"hardware.slurm.bin={bin}") as program:
        job = program.working(None, 2)
        cluster.slurm("scancel", "--batch", "--signal=KILL", job)
        status, said = program.ended()
        row = program.row()
    assert (status, row.status) == (1, "failed"), said
    if forgotten == "by all":
        assert row.reason == f"SLURM does not list job {job} any more, and it left no result.json"
    else:
        assert (row.reason or "").startswith(f"SLURM job {job} failed (FAILED, "), row.reason


@pytest.fixture
def away(cluster, tmp_path):
    """A file; as long as it is there, the commands ask where no controller listens."""
    conf = tmp_path / "slurm.conf"
    told = (cluster.folder / "etc" / "slurm.conf").read_text()
    conf.write_text(f"{told}SlurmctldPort=1\nMessageTimeout=2\n")
    flag = tmp_path / "away"
    flag.touch()
    return flag


def without_controller(cluster, tmp_path, flag):
    changed = {}
    for name in ("sbatch", "squeue", "scontrol", "scancel"):
        text = (cluster.bin / name).read_text()
        assert "export SLURM_CONF=" in text
        # The cluster's own, with another controller in its settings.
        line = next(line for line in text.splitlines() if line.startswith("export SLURM_CONF="))
        changed[name] = text.replace(line, f"{line}\n[ ! -e {flag} ] || export SLURM_CONF={flag.parent}/slurm.conf")
    return f"hardware.slurm.bin={commands(cluster, tmp_path / 'bin', **changed)}"


def test_a_controller_that_is_away_is_a_row_and_the_sweep_ends(cluster, tmp_path, away):
    bin = without_controller(cluster, tmp_path, away)
    words = [*SHORT, "--multirun", "gpus=1,2", bin]
    with started(cluster, tmp_path / "sweep", *words) as program:
        status, said = program.ended()
        rows = [program.row(0), program.row(1)]
    assert [row.status for row in rows] == ["failed", "failed"], said
    for row in rows:
        assert "it could not be submitted: Unable to contact slurm controller" in (row.reason or ""), row.reason
        assert "\n" not in (row.reason or "")
    assert status == 1, said
    away.unlink()
    status, said = run(cluster, tmp_path / "sweep", *words, "resume=true")
    assert status == 0, said


def test_a_controller_that_starts_anew_costs_no_run(cluster, tmp_path, away):
    """It is away when jobs are submitted, and again while they run."""
    bin = without_controller(cluster, tmp_path, away)
    words = [*SHORT, "measure.max_s=15", "measure.min_s=15", "strategy.options.step_s=0.02", bin]
    with started(cluster, tmp_path / "run", *words) as program:
        processes.until((tmp_path / "run" / "slurm" / "job.sh").exists, JOB_LIMIT_S, "the job's script")
        away.unlink()
        program.working(None, 1)
        away.touch()
        status, said = program.ended()
        row = program.row()
    away.unlink()
    assert (status, row.status, row.reason) == (0, "ok", None), said
