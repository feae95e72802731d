"""Runs that take turns as steps of one job: a cohort in an allocation, its faults, and a sweep that is one job."""

import itertools
import os
import signal
import subprocess
from contextlib import contextmanager

import psutil
import pytest

from scalebench.core.json_files import read_json
from scalebench.core.run_folder import turn_path
from scalebench.runner.launchers.supervise import WORKER
from tests.builders.launching import NEEDS_MPIRUN
from tests.builders.runs import find_run_processes
from tests.cluster.processes import until
from tests.cluster.program import LIMIT_S, PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
TURNS = "measure.slot_s=0.2 measure.block_s=0.004 measure.min_s=0.5 measure.max_s=2 measure.target=0.5 baseline=none"
LASTING = f"{TURNS} measure.min_s=300 measure.max_s=300 measure.target=0.000001"


@contextmanager
def in_salloc(program, text, report=False):
    """The program in an allocation of both nodes, while it goes on; its standard output is that of salloc."""
    salloc = [str(program.cluster.bin / "salloc"), "-N2", "-n4", "--overcommit"]
    words = program.words(f"measure.monitor=true {text}", report=report)
    process = subprocess.Popen(
        [*salloc, *words], cwd=program.folder, env=program.environment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_in_salloc(program, text):
    with in_salloc(program, text) as process:
        out, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, out


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


@NEEDS_MPIRUN
@pytest.mark.real
@pytest.mark.horovod
def test_runs_in_an_allocation_take_turns(program):
    """Started by srun and by mpirun, on both nodes and on one of them."""
    status, out = run_in_salloc(program, f"strategy=ddp_gloo,horovod_mpi,simulated gpus=4 {TURNS}")
    assert status == 0, out
    rows = list(program.rows().values())
    check_turns(rows)
    assert len(rows) == 3 and not program.calls("sbatch")
    for number, row in enumerate(rows):
        assert [rank.hostname for rank in row.ranks] == [node for node in program.cluster.nodes for _ in range(2)]
        assert {path.name for path in (program.sweep / str(number)).glob("monitor*")} == {
            "monitor.parquet", "monitor1.parquet"
        }  # fmt: skip


def test_a_parked_rank_that_is_killed_ends_its_run_alone(program):
    with in_salloc(program, f"strategy=simulated gpus=4,3,2 {TURNS} measure.min_s=6 measure.max_s=6") as process:
        wait_for_turn(program, [0, 1, 2])
        parked_workers(program, 1)[-1].kill()
        out, _ = process.communicate(timeout=LIMIT_S)
    rows = program.rows()
    assert {number: row.status for number, row in rows.items()} == {0: "ok", 1: "failed", 2: "ok"}, out
    assert "rank 2 was killed by SIGKILL" in (rows[1].reason or "")
    no_process_left(program)


def test_a_step_that_is_cancelled_while_it_is_parked_ends_alone(program):
    with in_salloc(program, f"strategy=simulated gpus=4,3,2 {TURNS} measure.min_s=6 measure.max_s=6") as process:
        wait_for_turn(program, [0, 1, 2])
        environment = parked_workers(program, 1)[0].environ()
        program.cluster.slurm("scancel", f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}")
        out, _ = process.communicate(timeout=LIMIT_S)
    rows = program.rows()
    assert {number: row.status for number, row in rows.items()} == {0: "ok", 1: "cancelled", 2: "ok"}, out
    no_process_left(program)


@NEEDS_MPIRUN
@pytest.mark.real
@pytest.mark.horovod
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


def test_a_sweep_that_is_one_job(program):
    done = program.run(f"strategy=simulated gpus=1,2,4 hardware.slurm.one_job=true {TURNS}", report=True)
    assert (done.status, done.err) == (0, ""), done.out
    rows = list(program.rows().values())
    check_turns(rows)
    assert len(rows) == 3 and len(program.calls("sbatch")) == 1
    (job,) = {row.scheduler.job_id for row in rows if row.scheduler is not None}
    assert job == read_json(program.sweep / "job.json")["job_id"]
    assert "3 of 3 runs over" in done.out and f"report: {program.sweep}/report.html" in done.out


def test_a_sweep_that_is_one_job_is_followed_again_and_cancelled(program):
    words = f"strategy=simulated gpus=2,4 hardware.slurm.one_job=true {LASTING}"
    with program.started(words) as process:
        wait_for_turn(program, [0, 1])
        process.kill()
        process.wait()
    refused = program.run(words)
    job = read_json(program.sweep / "job.json")["job_id"]
    assert refused.status == 2 and f"job {job} of {program.sweep} still runs; resume=true waits for it" in refused.err
    with program.started(words, "resume=true") as process:
        assert process.stdout is not None and "0 of 2 runs over" in process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, out + err
    assert len(program.calls("sbatch")) == 1 and program.calls("scancel") == [f"scancel {job}"]
    assert {number: row.status for number, row in program.rows().items()} == {0: "cancelled", 1: "cancelled"}, out
    no_process_left(program)


def test_rounds_over_jobs_are_refused(program):
    done = program.run("strategy=simulated gpus=1,2 baseline=none measure.order=rounds")
    reason = "simulated gpus=1 cannot take turns, since each run is a job of its own"
    way_out = "set hardware.slurm.one_job=true, or leave it out"
    assert (done.status, done.err) == (2, f"scalebench: measure.order=rounds: {reason}; {way_out}\n")
