"""What SLURM 22.05 printed of real jobs, and what becomes of it."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.core.result import STATUSES
from scalebench.slurm.job_states import (
    END_STATES,
    JobState,
    classify_end,
    is_over,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    why_never_starts,
)

SQUEUE = """\
5|PENDING||N/A|1795232069|1:00:00|PartitionNodeLimit
7|COMPLETED|h1|1795232069|1795232069|1:00:00|None
13|CANCELLED||1795232248|1795232069|10:00:00|PartitionTimeLimit
15|FAILED|h1|1795232248|1795232248|1:00:00|NonZeroExitCode
17|TIMEOUT|h[1-2]|1795232248|1795232200|1:00|TimeLimit
20_[1-9%2]|PENDING||1795239999|1795232069|UNLIMITED|Nodes required for job are DOWN, DRAINED or reserved|(x)
"""
SACCT = """\
1|CANCELLED by 0|0:0|h[1-2]|1795231447|1795231447|01:00:00
2|CANCELLED by 1000|0:0|None assigned|None|1795231459|00:01:00
14|FAILED|0:9|h1|1795232248|1795232248|01:00:00
14.batch|CANCELLED by 0|0:9|h1|1795232248|1795232248|
17|TIMEOUT|0:0|h1|1795232248|1795232248|1-00:01:00
18|RUNNING|0:0|h1|1795232248|1795232248|Partition_Limit
30+0|CANCELLED+|0:0|h1|1795232248|1795232248|01:00:00
"""
SCONTROL = (
    "JobId=25 JobName=n.sh UserId=root(0) JobState=FAILED Reason=JobLaunchFailure Dependency=(null) ExitCode=0:53 "
    "RunTime=00:00:00 TimeLimit=00:01:00 SubmitTime=1795232686 EligibleTime=1795232686 AccrueTime=1795232686 "
    "StartTime=1795232687 EndTime=1795232686 ReqNodeList=(null) ExcNodeList=(null) NodeList=h1 BatchHost=h1\n"
    "JobId=26 JobName=x JobState=PENDING Reason=Priority ExitCode=0:0 TimeLimit=UNLIMITED SubmitTime=1795232686 "
    "StartTime=Unknown ReqNodeList=(null) NodeList=(null)\n"
)


def test_squeue() -> None:
    found = parse_squeue(SQUEUE)
    assert found["5"] == JobState("5", "PENDING", "PartitionNodeLimit", submitted_at_s=1795232069.0, limit="1:00:00")
    assert found["17"] == JobState("17", "TIMEOUT", "TimeLimit", "h[1-2]", None, 1795232248.0, 1795232200.0, "1:00")
    assert found["7"].reason is None
    assert found["13"].started_at_s is None, "when it was cancelled is no start"
    array = found["20_[1-9%2]"]
    assert array.reason == "Nodes required for job are DOWN, DRAINED or reserved|(x)" and array.started_at_s is None


def test_sacct() -> None:
    found = parse_sacct(SACCT)
    assert list(found) == ["1", "2", "14", "17", "18", "30+0"], "steps are no jobs"
    assert (found["2"].state, found["2"].cancelled_by, found["2"].node_list) == ("CANCELLED", "1000", None)
    assert (found["14"].exit_code, found["14"].started_at_s, found["30+0"].state) == ("0:9", 1795232248.0, "CANCELLED")


def test_scontrol() -> None:
    failed = JobState("25", "FAILED", "JobLaunchFailure", "h1", "0:53", 1795232687.0, 1795232686.0, "00:01:00")
    pending = JobState("26", "PENDING", "Priority", None, "0:0", None, 1795232686.0, "UNLIMITED")
    assert parse_scontrol(SCONTROL) == {"25": failed, "26": pending}


def test_older_versions_write_local_times(monkeypatch: pytest.MonkeyPatch) -> None:
    (state,) = parse_squeue("7|RUNNING|h1|2026-11-21T03:34:29|2026-11-21T03:34:09|1:00|None").values()
    assert state.started_at_s is not None and state.submitted_at_s == state.started_at_s - 20


@pytest.mark.parametrize("parse", [parse_squeue, parse_sacct, parse_scontrol])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "No jobs in the system\n",
        "slurm_load_jobs error: Invalid job id specified\n",
        "12|RUNNING\n",
        "||||||\n",
    ],
)
def test_what_is_no_job_is_passed_over(parse: object, text: str) -> None:
    assert parse(text) == {}  # type: ignore[operator]


word = st.text(string.ascii_letters + string.digits + "[]-_,.:()%+= ", min_size=0, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**9), word, word, word, st.text("abc|,= ()\t", max_size=20))
def test_whatever_is_printed_of_a_job_is_read(number: int, state: str, nodes: str, at: str, reason: str) -> None:
    for found in (
        parse_squeue(f"{number}|{state}|{nodes}|{at}|{at}|{at}|{reason}"),
        parse_sacct(f"{number}|{state}|{at}|{nodes}|{at}|{at}|{at}"),
    ):
        (job,) = found.values()
        assert job.job_id == str(number) and isinstance(is_over(job), bool)
        status, line = classify_end(job)
        assert status in STATUSES and str(number) in line and "\n" not in line
    assert set(parse_scontrol(f"JobId={number} JobState=RUNNING Reason={reason} TimeLimit={at}")) == {str(number)}


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("12|TIMEOUT|0:0|h1|1|1|00:05:00", "timeout", "ran out of its time limit of 5 minutes (TIMEOUT)"),
        ("12|TIMEOUT|0:0|h1|1|1|1-01:00:30", "timeout", "ran out of its time limit of 1500 minutes (TIMEOUT)"),
        ("12|TIMEOUT|0:0|h1|1|1|Partition_Limit", "timeout", "ran out of its time limit (TIMEOUT)"),
        ("12|NODE_FAIL|0:0|h[1-2]|1|1|1:00", "failed", "lost a node (NODE_FAIL): h[1-2]"),
        ("12|CANCELLED by 0|0:0|h1|1|1|1:00", "cancelled", "was cancelled by user root (CANCELLED by 0)"),
        ("12|CANCELLED by 77777|0:0|h1|1|1|1:00", "cancelled", "was cancelled by user 77777 (CANCELLED by 77777)"),
        ("12|CANCELLED+|0:0|h1|1|1|1:00", "cancelled", "was cancelled (CANCELLED)"),
        ("12|PREEMPTED|0:0|h1|1|1|1:00", "cancelled", "was preempted: it had to make room for another job (PREEMPTED)"),
        ("12|REVOKED|0:0|h1|1|1|1:00", "cancelled", "was revoked: another cluster has taken it (REVOKED)"),
        ("12|DEADLINE|0:0|h1|1|1|1:00", "timeout", "could not be over by its deadline (DEADLINE)"),
        ("12|OUT_OF_ME+|0:125|h1|1|1|1:00", "failed", "is lost (OUT_OF_ME)"),
        ("12|OUT_OF_MEMORY|0:125|h1|1|1|1:00", "oom", "ran out of memory (OUT_OF_MEMORY): h1"),
        ("12|BOOT_FAIL|0:0|h1|1|1|1:00", "failed", "was given a node that did not start (BOOT_FAIL): h1"),
        ("12|FAILED|3:0|h1|1|1|1:00", "failed", "failed (FAILED, exit code 3:0)"),
        ("12|FAILED|0:53|h1|1|1|1:00", "failed",
         "failed (FAILED, exit code 0:53): SLURM could not open its log; do the nodes see the run's folder?"),
        ("12|COMPLETED|0:0|h1|1|1|1:00", "failed", "ended without a result (COMPLETED)"),
        ("12|TELEPORTED|0:0|h1|1|1|1:00", "failed", "is lost (TELEPORTED)"),
    ],
)  # fmt: skip
def test_a_job_that_left_no_row_is_judged_in_one_line(line: str, status: str, words: str) -> None:
    (job,) = parse_sacct(line).values()
    assert classify_end(job) == (status, f"SLURM job 12 {words}")


def test_a_state_that_is_new_to_us_is_not_the_end() -> None:
    assert not is_over(JobState("12", "TELEPORTED")) and not is_over("COMPLETING") and is_over("TIMEOUT")
    assert all(is_over(JobState("12", state)) for state in END_STATES)


@pytest.mark.parametrize(
    ("state", "reason", "final"),
    [
        ("PENDING", "PartitionNodeLimit", True),
        ("PENDING", "QOSMaxWallDurationPerJobLimit", True),
        ("PENDING", "AssocMaxGRESPerNode", True),
        ("PENDING", "QOSMinGRES", True),
        ("FAILED", "BadConstraints", True),
        ("PENDING", "QOSMaxGRESPerUser", False),
        ("PENDING", "AssocGrpCpuLimit", False),
        ("PENDING", "AssocMaxJobsLimit", False),
        ("PENDING", "Resources", False),
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:h1", False),
        ("PENDING", None, False),
        ("CANCELLED", "PartitionConfig", False),
        ("RUNNING", "PartitionConfig", False),
    ],
)
def test_some_jobs_wait_for_what_will_not_come(state: str, reason: str | None, final: bool) -> None:
    job = JobState("12", state, reason)
    told = why_never_starts(job)
    assert (told is not None) == final
    if told is not None:
        assert classify_end(job) == ("unsupported", told) and told.startswith(f"SLURM job 12 cannot start ({reason}): ")
