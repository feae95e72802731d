"""What a job of SLURM runs."""

import subprocess
import sys

import pytest

from scalebench.cluster.submit import JOB_MODULE, Submission, read_submission, write_submission
from scalebench.core.json_files import write_json
from scalebench.core.result import read_result
from scalebench.core.run_folder import JOB_RUNS_FILE, RESULT_FILE, SPEC_FILE, remove_run
from scalebench.core.spec import write_spec
from scalebench.runner.jobs.job import JobRuns
from scalebench.sweeps import job_main
from scalebench.workloads import datasets
from tests.builders.runs import find_run_processes, find_running, record, simulated_spec, wait_until


def write_job(folder, *units):
    """Write what a job does: units of runs by their numbers, whose folders are beside that of the job."""
    runs = [{f"../{number}": None for number in unit} for unit in units] or [{".": None}]
    folder.mkdir(exist_ok=True)
    write_json(folder / JOB_RUNS_FILE, JobRuns(runs))


@pytest.mark.parametrize("lacking", [SPEC_FILE, RESULT_FILE])
def test_a_folder_without_a_valid_run_is_an_error_in_the_log(lacking, tmp_path, capsys):
    """A job that SLURM has restarted finds the result of the first start."""
    write_job(tmp_path)
    if lacking == RESULT_FILE:
        write_spec(simulated_spec(), tmp_path)
        (tmp_path / RESULT_FILE).write_text("{}")
    job_main.run_job(str(tmp_path))
    assert str(tmp_path) in capsys.readouterr().out


def test_a_cancelled_job_leaves_a_result_and_no_process(tmp_path):
    spec = simulated_spec(gpus=2, measure={"min_s": 600.0, "max_s": 600.0})
    write_spec(spec, tmp_path)
    write_job(tmp_path)
    job = subprocess.Popen([sys.executable, "-m", JOB_MODULE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        pids = wait_until(lambda: found if len(found := find_run_processes(tmp_path)) == 2 else [])
        wait_until(lambda: len(list(tmp_path.glob("progress*.json"))) == 2)
        job.terminate()
        line = job.communicate(timeout=60)[0]
    finally:
        job.kill()
        job.wait()
    assert (job.returncode, line) == (0, "scalebench: cancelled\n")
    assert read_result(tmp_path / RESULT_FILE).status == "cancelled"
    assert not find_running(pids)


def test_runs_of_a_unit_take_turns_and_units_follow_each_other(tmp_path, capsys):
    spec = simulated_spec(measure={"slot_s": 0.05, "min_s": 0.1, "max_s": 0.2, "probes": False, "monitor": False})
    datasets.prepare(spec.config)
    for number in range(3):
        write_spec(spec, make_folder(tmp_path / str(number)))
    write_job(tmp_path / "job0", [0, 1], [2])
    job_main.run_job(str(tmp_path / "job0"))
    results = [read_result(tmp_path / str(number) / RESULT_FILE) for number in range(3)]
    expected = [("ok", False), ("ok", False), ("ok", True)]
    assert [(result.status, result.cohort is None) for result in results] == expected
    assert results[0].cohort == results[1].cohort and results[1].started_at < results[2].started_at
    assert capsys.readouterr().out == 3 * "scalebench: simulated gpus=1 ok\n"


def test_runs_that_had_no_room_beside_the_others_get_another_chance_and_are_then_done_alone(
    tmp_path, monkeypatch, capsys
):
    """Their folders were removed, but a program that is started again still finds the job that does them."""
    cohorts, alone = [], []

    class OneOfThree:
        def __init__(self, runs, on_progress):
            self.runs = runs
            cohorts.append([run.number for run in runs])

        def run(self):
            if len(cohorts) > 1:
                return
            for run in self.runs[1:]:
                remove_run(run.folder)
            yield self.runs[0], record()

    for number in range(3):
        write_spec(simulated_spec(), make_folder(tmp_path / str(number)))
        write_submission(Submission("7", 0.0), tmp_path / str(number))
    write_job(tmp_path / "job0", [0, 1, 2])
    monkeypatch.setattr(job_main, "Cohort", OneOfThree)

    def run_alone(spec, folder):
        alone.append((spec.flags, folder.name))
        return record(status="failed", reason="no room", block_s=None)

    monkeypatch.setattr(job_main, "run_spec", run_alone)
    job_main.run_job(str(tmp_path / "job0"))
    assert cohorts == [[0, 1, 2], [1, 2]] and alone == [(["not_in_turns"], "1"), (["not_in_turns"], "2")]
    assert [read_submission(tmp_path / str(number)).job_id for number in range(3)] == ["7"] * 3
    assert capsys.readouterr().out.splitlines()[1:] == ["scalebench: ddp gpus=1 failed: no room"] * 2


def make_folder(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder
