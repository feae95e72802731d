"""Runs as steps of an allocation: their turns, their faults, and a sweep that is one job."""

import itertools
import os
import shlex
import signal
import subprocess

import psutil
import pytest

from scalebench.core.json_files import read_json
from scalebench.core.run_folder import turn_path
from scalebench.runner.launchers.supervise import WORKER
from tests.builders.launching import NEEDS_MPIRUN
from tests.builders.runs import find_run_processes
from tests.cluster.processes import until
from tests.cluster.program import LIMIT_S, PATIENCE_S, Done

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
TURNS = "measure.slot_s=0.2 measure.block_s=0.004 measure.min_s=0.5 measure.max_s=8 measure.target=0.5 baseline=none"
LASTING = f"{TURNS} measure.min_s=300 measure.max_s=300 measure.target=0.000001"


def with_mpi(test):
    return pytest.mark.real(pytest.mark.horovod(NEEDS_MPIRUN(test)))


def in_salloc(program, text):
    """The program in an allocation of both nodes, while it goes on; its standard output is that of salloc."""
    salloc = program.salloc("-N2 -n4 --overcommit")
    return program.started(f"measure.monitor=true {text}", before=salloc, stderr=subprocess.STDOUT)


def check_turns(rows):
    """Assert that these runs took turns with each other."""
    assert [(row.scale.strategy, row.status, row.reason) for row in rows if row.status != "ok"] == []
    assert None not in {row.cohort for row in rows} and len({row.cohort for row in rows}) == 1
    spans = []
    for number, row in enumerate(rows):
        first, *others = row.ranks
        assert first.block_rounds and all(rank.block_rounds == first.block_rounds for rank in others)
        blocks = zip(first.block_rounds, first.block_started_at_s, first.block_s, strict=True)
        for _, slot in itertools.groupby(blocks, lambda block: block[0]):
            (_, start_s, _), *_, (_, last_s, block_s) = [*slot] * 2
            spans.append((start_s, last_s + block_s, number))
    assert len(spans) >= 2 * len(rows)
    spans.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "two runs measured at the same time"


def wait_for_turn(program, numbers):
    """Wait until these runs have each had a turn."""

    def had_one(folder):
        return turn_path(folder).exists() and read_json(turn_path(folder))["number"] >= 2

    until(lambda: all(had_one(program.sweep / str(n)) for n in numbers), PATIENCE_S, f"turns of {numbers}")


def parked_workers(program, number):
    """Wait until the workers of a run are all stopped, and return them by rank."""
    folder, found = program.sweep / str(number), []

    def stopped():
        processes = map(psutil.Process, find_run_processes(folder))
        found[:] = [process for process in processes if process.cmdline()[1:3] == ["-m", WORKER]]
        return bool(found) and all(process.status() == psutil.STATUS_STOPPED for process in found)

    until(stopped, PATIENCE_S, f"run {number} to be parked")
    return sorted(found, key=lambda process: int(process.environ()["RANK"]))


def no_process_left(program):
    for folder in program.sweep.iterdir():
        until(lambda folder=folder: not find_run_processes(folder), PATIENCE_S, f"the end of {folder}")


@with_mpi
def test_runs_in_an_allocation_take_turns(program):
    """Started by srun and by mpirun, on both nodes and on one of them."""
    with in_salloc(program, f"strategy=ddp_gloo,horovod_mpi,simulated gpus=4 {TURNS}") as process:
        out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out
    rows = list(program.rows().values())
    check_turns(rows)
    assert len(rows) == 3 and not program.calls("sbatch")
    for number, row in enumerate(rows):
        assert [rank.hostname for rank in row.ranks] == [node for node in program.cluster.nodes for _ in range(2)]
        assert {path.name for path in (program.sweep / str(number)).glob("monitor*")} == {
            "monitor.parquet", "monitor1.parquet"
        }  # fmt: skip


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_run_that_ends_while_it_is_parked_ends_alone(status, program):
    """Its last rank is killed, or its step is cancelled."""
    with in_salloc(program, f"strategy=simulated gpus=4,3,2 {TURNS} measure.min_s=6 measure.max_s=6") as process:
        wait_for_turn(program, [0, 1, 2])
        rank = parked_workers(program, 1)[-1]
        if status == "failed":
            rank.kill()
        else:
            step = rank.parent().environ()  # of its agent
            program.cluster.slurm("scancel", f"{step['SLURM_JOB_ID']}.{step['SLURM_STEP_ID']}")
        out, _ = process.communicate(timeout=LIMIT_S)
    rows = program.rows()
    assert {number: row.status for number, row in rows.items()} == {0: "ok", 1: status, 2: "ok"}, out
    assert status == "cancelled" or "rank 2 was killed by SIGKILL" in rows[1].reason
    no_process_left(program)


@with_mpi
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_no_process_survives_the_program(sign, program):
    with in_salloc(program, f"strategy=simulated,horovod_mpi gpus=4 {LASTING}") as process:
        wait_for_turn(program, [0, 1])
        (child,) = (child for child in psutil.Process(process.pid).children() if "scalebench" in child.cmdline())
        child.send_signal(sign)
        out, _ = process.communicate(timeout=LIMIT_S)
    no_process_left(program)
    statuses = [row.status for row in program.rows().values()]
    assert statuses == ([] if sign == signal.SIGKILL else ["cancelled"] * 2), out


def test_one_job_for_each_size_has_a_baseline_on_its_nodes(program):
    words = f"strategy=simulated,ddp_gloo gpus=1,4 hardware.slurm.jobs=per_size {TURNS}".replace(
        "baseline=none", "baseline=bare"
    )
    done = program.run(words, report=True)
    assert (done.status, done.err) == (0, ""), done.out
    by_job = {}
    for row in program.rows().values():
        by_job.setdefault(row.scheduler.job_id, []).append(row)
    for rows in by_job.values():
        check_turns(rows)
    names = [sorted((row.scale.strategy, row.scale.gpus) for row in rows) for rows in by_job.values()]
    assert sorted(names, key=str) == [
        [("bare_torch", 1), ("ddp_gloo", 1), ("simulated", 1)], [("bare_torch", 1), ("ddp_gloo", 4), ("simulated", 4)]
    ]  # fmt: skip
    assert len(program.calls("sbatch")) == 2 and f"report: {program.sweep}/report.html" in done.out


def test_one_job_is_followed_again_and_cancelled(program):
    words = f"strategy=simulated gpus=2,4 hardware.slurm.jobs=one {LASTING}"
    with program.started(words) as process:
        wait_for_turn(program, [0, 1])
        process.kill()
        process.wait()
    refused = program.run(words)
    job = read_json(program.sweep / "0" / "job.json")["job_id"]
    assert refused.status == 2 and f"job {job} of {program.sweep}/0 still runs; resume=true waits for it" in refused.err
    with program.started(words, "resume=true") as process:
        assert process.stdout is not None and "0 of 2 runs over" in process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, out + err
    assert len(program.calls("sbatch")) == 1 and program.calls("scancel") == [f"scancel {job}"]
    assert {number: row.status for number, row in program.rows().items()} == {0: "cancelled", 1: "cancelled"}, out
    no_process_left(program)


# Runs inside an existing allocation: ranks start as its job steps, and nothing is submitted.
STRATEGIES = ("ddp_gloo", "horovod_mpi", "simulated")


def run_in_salloc(program, options, text):
    """From the shell that salloc gives, which stands on the head: no rank does."""
    salloc = [*program.salloc(options), "sh", "-c", 'hostname >&2; exec "$@"', "sh"]
    with program.started(text, before=salloc) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    lines = [line for line in err.splitlines() if not line.startswith("salloc: ")]
    assert lines[:1] == ["head"]
    return Done(process.returncode, out, "\n".join(lines[1:]), 0.0)


def checked(program, rows):
    """Each run that went well within one job, on its nodes."""
    assert not program.ids() and not program.calls("sbatch")
    for row in rows.values():
        assert (row.scale.strategy, row.status, row.reason) == (row.scale.strategy, "ok", None)
        assert row.scheduler.job_id == rows[0].scheduler.job_id
        assert (row.scheduler.nodes, row.scheduler.queued_s) == (program.cluster.nodes[: row.scale.nodes], None)
        filled = [node for node in program.cluster.nodes for _ in range(2)]
        assert [rank.hostname for rank in row.ranks] == filled[: row.scale.gpus]
        told = [row.machine.hostname, *(machine.hostname for machine in row.other_machines or [])]
        assert told == row.scheduler.nodes, "of the nodes, and not of where the program stands"
        yield row.scale.strategy, row.scale.gpus


@with_mpi
@pytest.mark.parametrize("options", ["-N2 -n4", "-N2 -n3"])
def test_salloc(options, program):
    """Also where SLURM counts fewer tasks on a node than there are ranks."""
    done = run_in_salloc(program, f"{options} --overcommit", f"strategy={','.join(STRATEGIES)} gpus=3,4 baseline=none")
    assert (done.status, done.err) == (0, ""), done.out
    assert set(checked(program, program.rows())) == {(name, gpus) for name in STRATEGIES for gpus in (3, 4)}


@with_mpi
def test_a_batch_script(program):
    """It stands on the first node."""
    log = program.folder / "script.log"
    command = shlex.join(program.words("strategy=ddp_gloo,horovod_mpi gpus=2,4 baseline=none"))
    words = f"{command}; echo status $? on $(hostname)"
    options = f"--wait --nodes=2 --ntasks-per-node=2 --output={log} --parsable".split()
    said = subprocess.run(
        [str(program.cluster.bin / "sbatch"), *options, f"--wrap={words}"],
        cwd=program.folder, env=program.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert f"status 0 on {program.cluster.nodes[0]}" in log.read_text()
    assert len(list(checked(program, rows := program.rows()))) == 4
    assert {row.scheduler.job_id for row in rows.values() if row.scheduler} == {said.stdout.strip()}


@with_mpi
def test_more_nodes_than_it_has(program):
    done = run_in_salloc(program, "-N1 -n2", "strategy=simulated,horovod_mpi gpus=2,4 baseline=none")
    assert (done.status, done.err) == (0, "")
    lacking = "gpus=4 need 2 nodes, and this job has 1 node; ask for more, or lower gpus"
    told = {(row.scale.gpus, row.status, row.reason) for row in program.rows().values()}
    assert told == {(2, "ok", None), (4, "unsupported", lacking)}
