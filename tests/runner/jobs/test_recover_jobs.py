"""After a parent was killed: its running jobs are found again."""

import pytest

from scalebench.cluster.submit import Submission, write_submission
from scalebench.core.errors import InputError
from scalebench.core.run_folder import JOB_FILE, RESULT_FILE
from scalebench.core.spec import write_spec
from scalebench.runner.jobs.follow import find_running_jobs
from tests.builders.runs import simulated_spec
from tests.runner.jobs.fake_scheduler import BEGUN_S, Scheduler, forgotten, leaves, leaves_result, runs, state

PENDING = []


def submit_and_forget(root, scripts, scheduler):
    """Return the folders of a sweep whose parent was killed after it had submitted these jobs."""
    folders = []
    for number, script in enumerate(scripts):
        folder = root / "sweep" / str(number)
        folder.mkdir(parents=True)
        write_spec(simulated_spec(repeat=number), folder)
        scheduler.submitted.append(folder)
        write_submission(scheduler.start(script, folder), folder)
        folders.append(folder)
    return folders


def find(root, scheduler):
    found = find_running_jobs(root, scheduler)
    assert {fingerprint for fingerprint, _ in found.values()} <= {simulated_spec().fingerprint}
    return {repeat: folder for folder, (_, repeat) in found.items()}


def test_running_jobs_are_found_and_those_that_are_over_are_not(tmp_path):
    scheduler = Scheduler()
    died, done = runs((20.0, state("NODE_FAIL"))), runs((20.0, leaves_result()))
    folders = submit_and_forget(tmp_path, [PENDING, runs(), died, done, runs((9.0, forgotten))], scheduler)
    scheduler.pause(30.0)
    assert find(tmp_path, scheduler) == {0: folders[0], 1: folders[1]} and len(scheduler.looks_s) == 1
    assert [(folder / RESULT_FILE).exists() for folder in folders] == [False, False, False, True, False]


def test_of_equal_runs_the_last_submitted_is_used(tmp_path):
    scheduler = Scheduler()
    one, two = submit_and_forget(tmp_path, [PENDING, PENDING], scheduler)
    write_spec(simulated_spec(repeat=1), one)
    write_submission(Submission("102", BEGUN_S + 5.0, "main"), two)
    assert find(tmp_path, scheduler) == {1: two}


@pytest.mark.parametrize("ending", ["RUNNING", "FAILED"])
def test_a_reused_job_id_is_another_job(ending, tmp_path):
    scheduler = Scheduler()
    (folder,) = submit_and_forget(tmp_path, [[(1.0, state(ending, nodes="h1"))]], scheduler)
    write_submission(Submission("101", BEGUN_S - 86400.0, "main"), folder)
    scheduler.pause(2.0)
    assert find(tmp_path, scheduler) == {} and not (folder / RESULT_FILE).exists()


def test_the_scheduler_is_not_queried_where_nothing_was_submitted(tmp_path):
    (tmp_path / "0").mkdir()
    write_spec(simulated_spec(), tmp_path / "0")
    scheduler = Scheduler(unreachable={"squeue"})
    assert find(tmp_path, scheduler) == {} and scheduler.looks_s == []


def test_without_an_answer_of_the_scheduler_recovery_is_an_error(tmp_path):
    scheduler = Scheduler(unreachable={"squeue"})
    (folder,) = submit_and_forget(tmp_path, [runs()], scheduler)
    with pytest.raises(InputError, match=rf"it is unknown whether job 101 of {folder} still runs \(squeue: .*\); try"):
        find(tmp_path, scheduler)


@pytest.mark.parametrize("name", [JOB_FILE, "spec.json"])
def test_folders_that_cannot_be_read_are_skipped(name, tmp_path):
    scheduler = Scheduler()
    one, two = submit_and_forget(tmp_path, [PENDING, PENDING], scheduler)
    leaves(name, '{"jo')(scheduler, "101", one)
    assert find(tmp_path, scheduler) == {1: two}
