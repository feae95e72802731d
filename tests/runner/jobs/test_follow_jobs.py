"""Jobs followed to their results: when these are read, how often the scheduler is queried, and what is reported."""

import dataclasses
import errno
import itertools
import os

import pytest

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.result import SchedulerRecord, read_result, write_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import read_spec
from scalebench.runner import parent as run_module
from scalebench.runner.jobs import JobFollower, follow, outcome
from scalebench.slurm.job_states import JobStatePoller
from tests.runner.jobs.fake_scheduler import SUCCESSFUL, Scheduler, Sweep, end_of, leaves, leaves_result, runs, state


def test_results_come_in_the_order_of_completion_and_are_those_of_the_jobs(tmp_path):
    slow = runs((60.0, leaves_result()), (60.5, state("COMPLETED")))
    sweep = Sweep(tmp_path, Scheduler([slow, SUCCESSFUL]))
    requests = sweep.requests()
    results = sweep.ends(requests)
    assert [number for number, _ in results] == [1, 0]
    assert [result.run_id for _, result in results] == ["of job 102", "of job 101"]
    for each, (number, result) in zip(reversed(requests), results, strict=True):
        assert (each.number, read_spec(each.folder)) == (number, each.spec)
        assert read_result(each.folder / RESULT_FILE) == result and result.status == "ok"
    assert sweep.follower.unfinished == 0 and sweep.ends([]) == []


def test_a_result_that_is_ok_does_not_wait_for_the_scheduler(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([runs((31.0, leaves_result()))]))
    sweep.ends()
    assert sweep.scheduler.now_s - 31.0 <= follow.POLL_INTERVAL_S


def test_a_result_that_appears_late_or_in_pieces_is_used(tmp_path):
    for first, ending in ((state("COMPLETED"), "COMPLETED"), (leaves(RESULT_FILE, '{"sche'), None)):
        result = end_of(tmp_path / str(ending), runs((20.0, first), (26.0, leaves_result())))
        assert (result.run_id, result.status) == ("of job 101", "ok")
        assert result.scheduler is not None and result.scheduler.state == ending


def test_the_facts_of_the_scheduler_are_in_the_result(tmp_path):
    """Seconds in the queue by its own clock, from submission to start."""
    result = end_of(tmp_path, runs((30.0, leaves_result()), nodes="h[1-2]"))
    s = result.scheduler
    assert s is not None and (s.name, s.job_id, s.partition, s.nodes) == ("slurm", "101", "main", ["h1", "h2"])
    assert (s.queued_s, s.state) == (8.0, None), "it was not over yet"
    assert read_result(tmp_path / "0" / RESULT_FILE) == result


def test_the_clock_of_the_scheduler_takes_precedence_over_those_of_two_hosts(tmp_path):
    """The job computes its time in the queue from the clocks of the login host and of its node."""
    own = SchedulerRecord("slurm", "101", "main", ["h1"], queued_s=3600.0)
    result = end_of(tmp_path, runs((30.0, leaves_result(scheduler=own)), nodes="h[1-2]"))
    assert result.scheduler == dataclasses.replace(own, queued_s=8.0)
    short = [(1.0, state("RUNNING", nodes="h1")), (2.0, leaves_result(scheduler=own))]
    assert end_of(tmp_path / "short", short).scheduler == own, "which is better than none"


def test_a_pending_job_has_no_start(tmp_path):
    """SLURM tells when it expects one to start."""
    result = end_of(tmp_path, [(1.0, state("PENDING", "Priority", nodes="h1")), (7.0, leaves_result())])
    assert result.scheduler is not None and (result.scheduler.queued_s, result.scheduler.nodes) == (None, ["h1"])


@pytest.mark.parametrize("most", [1, 2, None])
def test_no_more_jobs_than_allowed_are_unfinished_at_a_time(most, tmp_path):
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL] * 4), most)
    unfinished = []
    for each, _ in sweep.follower.follow(sweep.requests()):
        unfinished.append(sweep.follower.unfinished)
        assert each.number == len(unfinished) - 1
    assert max(told.pending + told.running for told in sweep.states_reported) == (most or 4)
    assert sweep.scheduler.submitted == [tmp_path / str(number) for number in range(4)]


def test_with_the_real_poller_one_command_in_five_seconds_is_run_for_all_jobs(tmp_path):
    class Queue(Scheduler):
        def has(self, name):
            return True

        def run(self, name, *words, limit_s=20.0):
            asked_s.append(self.now_s)
            assert name == "squeue", "the jobs are all in the queue"
            return "".join(f"{job_id}|PENDING||N/A|1700000000|5:00|Priority\n" for job_id in self.states)

    asked_s = []
    scheduler = Queue([[(60.0, leaves_result())]] * 100)
    s, watcher = scheduler, JobStatePoller(scheduler, clock=scheduler.clock)
    cluster = JobFollower(s, submit=s.submit, watcher=watcher, clock=s.clock, pause=s.pause)
    assert len(list(cluster.follow(Sweep(tmp_path, scheduler).requests()))) == 100
    assert len(asked_s) > 10 and min(b - a for a, b in itertools.pairwise(asked_s)) >= 5.0


def test_changes_are_reported_and_running_jobs_at_every_check(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL, runs((40.0, leaves_result()))]), max_jobs=1)
    sweep.ends()
    told = [(s.waiting, s.pending, s.reason, [r.number for r in s.runs], s.over) for s in sweep.states_reported]
    calm = [s for s in told if not s[3]]
    assert calm[0] == (1, 1, "Priority", [], 0) and calm[-1] == (0, 0, None, [], 2)
    assert len(calm) == len({*map(str, calm)}), "nothing is told twice"
    assert told.count((1, 0, None, [0], 0)) == 40, "from the answer at 10 s to the row at 30 s"


def test_while_the_scheduler_does_not_answer_results_still_come_in(tmp_path):
    scheduler = Scheduler([SUCCESSFUL], unreachable={"squeue"})
    sweep = Sweep(tmp_path, scheduler)
    ((_, result),) = sweep.ends()
    assert result.status == "ok" and scheduler.now_s <= 30.5
    assert {s.error for s in sweep.states_reported} == {"squeue: Unable to contact slurm controller (connect failure)"}


def test_a_job_is_given_up_where_the_scheduler_stays_silent(tmp_path):
    scheduler = Scheduler([[]], unreachable={"squeue"})
    ((_, result),) = Sweep(tmp_path, scheduler).ends()
    assert result.status == "failed" and scheduler.now_s >= follow.SILENCE_LIMIT_S
    assert result.reason is not None and result.reason.startswith("no news of job 101 for 60 min: squeue: ")


def test_folders_of_running_jobs_are_listed(tmp_path, monkeypatch):
    """Over NFS a mere look at the file may say for a minute that there is none."""
    monkeypatch.setattr(outcome.os.path, "exists", lambda path: False)
    sweep = Sweep(tmp_path, Scheduler([runs((30.0, leaves_result()))]))
    assert [result.status for _, result in sweep.ends()] == ["ok"] and sweep.scheduler.now_s <= 31.0


def test_files_of_the_submission_are_removed_with_the_result(tmp_path):
    hand_over = leaves("slurm/101_submitted.pkl")
    (tmp_path / "0" / "slurm").mkdir(parents=True)
    end_of(tmp_path, runs((9.0, hand_over), (30.0, leaves_result())))
    assert list((tmp_path / "0" / "slurm").iterdir()) == []


def test_a_job_that_the_scheduler_does_not_list_yet_is_not_over(tmp_path):
    """The queue may drop a short job before the first query, and accounting lists it a little later."""

    def hidden(scheduler, job_id, folder):
        kept[job_id] = scheduler.states.pop(job_id)

    kept = {}
    comes = (22.0, lambda scheduler, job_id, folder: scheduler.states.update(kept))
    scheduler = Scheduler([[(0.2, hidden), comes, (60.0, leaves_result())]])
    scheduler.looks_s.append(-4.0)  # the first answer comes when it is hidden
    assert [result.status for _, result in Sweep(tmp_path, scheduler).ends()] == ["ok"]


def test_adopted_jobs_are_followed_and_not_submitted(tmp_path):
    first = Sweep(tmp_path, Scheduler([SUCCESSFUL, SUCCESSFUL]))
    requests = first.requests()
    results = first.follower.follow(requests)
    first.scheduler.scripts[1:] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        next(results)
    scheduler = first.scheduler
    scheduler.scripts = [SUCCESSFUL]
    requests[0].adopted = True
    second = Sweep(tmp_path, scheduler, max_jobs=1)
    assert [(number, result.status) for number, result in second.ends(requests)] == [(0, "ok"), (1, "ok")]
    assert scheduler.submitted == [tmp_path / "0", tmp_path / "1"]


@pytest.mark.parametrize(("left", "word"), [(None, "holds no job.json"), ('{"job', "job.json cannot be read")])
def test_an_adopted_run_without_a_job_id_is_a_failed_result(left, word, tmp_path):
    sweep = Sweep(tmp_path, Scheduler())
    (each,) = sweep.requests(1)
    each.adopted = True
    if left is not None:
        each.folder.mkdir()
        (each.folder / "job.json").write_text(left)
    ((_, result),) = sweep.ends([each])
    assert result.status == "failed" and result.reason is not None and word in result.reason


def test_nothing_is_submitted_where_a_folder_holds_a_result(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL, SUCCESSFUL]))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / RESULT_FILE).write_text("{}")
    with pytest.raises(InputError, match="already holds a result"):
        sweep.follower.follow(sweep.requests())
    assert sweep.scheduler.submitted == [] and sweep.follower.unfinished == 0


def test_a_full_disk_fails_one_run_and_not_the_sweep(tmp_path, monkeypatch):
    real = write_result

    def full(result, folder):
        if folder.name == "0":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(result, folder)

    monkeypatch.setattr(run_module, "write_result", full)
    gone = runs((9.0, state("NODE_FAIL")))
    results = Sweep(tmp_path, Scheduler([gone, gone])).ends()
    assert [result.status for _, result in results] == ["failed", "failed"]
    assert results[0][1].reason is not None and results[0][1].reason.endswith(
        "cannot be written: No space left on device"
    )
    assert os.path.exists(tmp_path / "1" / RESULT_FILE) and not os.path.exists(tmp_path / "0" / RESULT_FILE)


def test_a_pause_ends_at_ctrl_c(monkeypatch):
    monkeypatch.setattr(process, "cancelled", process.threading.Event())
    follow.sleep_until_cancelled(0.001)
    process.cancelled.set()
    with pytest.raises(KeyboardInterrupt):
        follow.sleep_until_cancelled(60.0)
