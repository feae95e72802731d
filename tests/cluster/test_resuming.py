"""Sweeps whose program was killed or whose runs failed, continued by a second command."""

from __future__ import annotations

import json
import signal

import pytest

from scalebench.core.result import Result
from scalebench.slurm.submit import read_submission
from tests.cluster.processes import until
from tests.cluster.program import ENDLESS, PATIENCE_S, Program

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def job_of(program: Program, number: int) -> str:
    found = read_submission(program.sweep / str(number))
    assert found is not None
    return found.job_id


def ok(rows: dict[int, Result]) -> dict[int, bool]:
    return {number: row.status == "ok" for number, row in rows.items()}


def test_jobs_take_turns(program: Program) -> None:
    """hardware.max_jobs=1: no second job is in the queue, neither waiting nor running."""
    seen: list[int] = []
    with program.started("strategy=simulated gpus=1,2,3,4 hardware.max_jobs=1 baseline=none") as process:
        while process.poll() is None:
            states = list(program.states().values())
            seen.append(sum(state in ("PENDING", "CONFIGURING", "RUNNING") for state in states))
        _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert max(seen) == 1 and len(program.calls("sbatch")) == 4
    assert ok(program.rows()) == dict.fromkeys(range(4), True)


def test_a_killed_program_leaves_its_jobs_to_the_next(program: Program) -> None:
    """Of four runs one is over, two go on, and one has not been submitted; then one of the two ends by itself."""
    words = (
        "strategy=simulated gpus=1,2,3,4 hardware.max_jobs=2 baseline=none measure.min_s=8 measure.max_s=8 "
        "strategy.options.step_s=0.01"
    )
    with program.started(words) as process:
        until(lambda: len(program.rows()) == 1, PATIENCE_S, "the first row")
        until(lambda: len(program.ids()) == 3, PATIENCE_S, "the third job")
        process.send_signal(signal.SIGKILL)
        process.wait()
    first = {number: job_of(program, number) for number in range(3)}
    assert not (program.sweep / "3" / "job.json").exists()
    whole = (program.sweep / "0" / "result.json").read_bytes()
    done = program.run(words, "resume=true")
    assert (done.status, done.err) == (0, ""), done.out
    assert {number: job_of(program, number) for number in range(3)} == first
    assert len(program.calls("sbatch")) == 4, "each run once"
    assert ok(program.rows()) == dict.fromkeys(range(4), True)
    assert (program.sweep / "0" / "result.json").read_bytes() == whole
    assert [row.scheduler.job_id for row in program.rows().values() if row.scheduler][:3] == list(first.values())


def test_results_of_jobs_that_ended_meanwhile_are_used(program: Program) -> None:
    """One job has left its row meanwhile, another was cancelled and has none: only that is done again."""
    words = "strategy=simulated gpus=1,2 baseline=none strategy.options.step_s=0.01 measure.min_s=6 measure.max_s=6"
    with program.started(words) as process:
        program.jobs_are(RUNNING=2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    first, second = job_of(program, 0), job_of(program, 1)
    program.cluster.slurm("scancel", second)
    program.jobs_are(COMPLETED=1, CANCELLED=1)
    done = program.run(words, "resume=true")
    assert (done.status, done.err) == (0, ""), done.out
    assert job_of(program, 0) == first and job_of(program, 1) not in (first, second)
    assert len(program.calls("sbatch")) == 3 and ok(program.rows()) == {0: True, 1: True}


def test_a_failed_run_is_done_again(program: Program) -> None:
    """And the good one is kept. What it failed for, in what is set up on its node, has been put right meanwhile."""
    setup = program.folder / "setup.sh"
    words = f"""strategy=simulated gpus=1,2 baseline=none hardware.slurm.setup='["source {setup}"]'"""
    setup.write_text("[ $SLURM_NTASKS = 1 ] || { echo no such module; exit 3; }\n")
    assert program.run(words).status == 1
    assert ok(program.rows()) == {0: True, 1: False}
    reason = program.rows()[1].reason or ""
    assert reason.endswith("(FAILED, NonZeroExitCode): no such module"), reason
    setup.write_text("export FOUND=1\n")
    again = program.run(words, "resume=true")
    assert (again.status, again.err) == (0, ""), again.out
    assert len(program.calls("sbatch")) == 3 and ok(program.rows()) == {0: True, 1: True}


def test_a_single_run_is_resumed_as_well(program: Program) -> None:
    """Its folder is named by whoever comes back."""
    words = ["strategy=simulated", "gpus=2", *ENDLESS]
    folder = program.folder / "run"
    with program.started(f"hydra.run.dir={folder}", *words, several=False) as process:
        until((folder / "job.json").exists, PATIENCE_S, "the job")
        process.send_signal(signal.SIGKILL)
        process.wait()
    submission = json.loads((folder / "job.json").read_text())
    with program.started(f"hydra.run.dir={folder}", *words, "resume=true", several=False) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("0 of 1 run over, 1 ")
        program.cluster.slurm("scancel", submission["job_id"])
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and len(program.calls("sbatch")) == 1
    assert f"SLURM job {submission['job_id']} was cancelled" in " ".join(out.split()), err
