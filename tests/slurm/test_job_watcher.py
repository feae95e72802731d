"""Few questions, for all jobs at once, and none for ever."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from scalebench.slurm.commands import SlurmError, SlurmUnreachable
from scalebench.slurm.job_states import MAX_LATE_ANSWERS, MAX_POLL_INTERVAL_S, JobState, JobStatePoller
from tests.slurm.builders import Tools

DISABLED = "Slurm accounting storage is disabled"
Answer = str | Exception


class Desk:
    """Stands in for Slurm: answers by the command's name, and counts."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = answers
        self.asked: list[tuple[str, ...]] = []

    def has(self, name: str) -> bool:
        return name in self.answers

    def run(self, name: str, *words: str) -> str:
        self.asked.append((name, *words))
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def names(self) -> list[str]:
        return [words[0] for words in self.asked]


def queue(**states: str) -> str:
    return "".join(f"{job[1:]}|{state}|h1|1795232248|1795232200|1:00|None\n" for job, state in states.items())


def accounts(**states: str) -> str:
    return "".join(f"{job[1:]}|{state}|0:0|h1|1795232248|1795232200|1:00\n" for job, state in states.items())


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def watcher(now: list[float]) -> Callable[..., tuple[JobStatePoller, Desk]]:
    def make(interval_s: float = 5.0, **answers: Answer) -> tuple[JobStatePoller, Desk]:
        desk = Desk(**answers)
        return JobStatePoller(desk, interval_s, lambda: now[0]), desk  # type: ignore[arg-type]

    return make


def words(found: dict[str, JobState]) -> dict[str, str]:
    return {job_id: state.state for job_id, state in found.items()}


def test_one_question_an_interval_for_all_jobs(
    watcher: Callable[..., tuple[JobStatePoller, Desk]], now: list[float]
) -> None:
    watch, desk = watcher(squeue=queue(**{f"j{n}": "RUNNING" for n in range(100)}), sacct="")
    jobs = [str(n) for n in range(100)]
    for _ in range(40):  # 0.5 s apart
        assert len(watch.look(jobs)) == 100
        now[0] += 0.5
    assert desk.names == ["squeue"] * 4 and watch.queries == 4


def test_what_is_over_is_asked_about_no_more(
    watcher: Callable[..., tuple[JobStatePoller, Desk]], now: list[float]
) -> None:
    watch, desk = watcher(squeue=queue(j1="COMPLETED", j2="RUNNING"), sacct="")
    assert words(watch.look(["1", "2"])) == {"1": "COMPLETED", "2": "RUNNING"}
    now[0] += 5.0
    desk.answers["squeue"] = queue(j2="TIMEOUT")
    assert words(watch.look(["1", "2"])) == {"1": "COMPLETED", "2": "TIMEOUT"}
    now[0] += 50.0
    assert words(watch.look(["1", "2"])) == {"1": "COMPLETED", "2": "TIMEOUT"} and watch.queries == 2
    assert watch.look([]) == {}


def test_sacct_tells_of_those_that_the_queue_has_forgotten(
    watcher: Callable[..., tuple[JobStatePoller, Desk]], now: list[float]
) -> None:
    watch, desk = watcher(
        squeue=queue(j1="RUNNING", j2="RUNNING", j3="RUNNING"), sacct=accounts(j1="FAILED", j2="RUNNING")
    )
    watch.look(["1", "2", "3"])
    desk.answers["squeue"] = queue(j3="RUNNING")
    seen = []
    for _ in range(4):
        now[0] += 5.0
        seen.append(words(watch.look(["1", "2", "3"])))
        if len(seen) == 2:
            desk.answers["sacct"] = accounts(j1="FAILED", j2="COMPLETED")
    assert desk.names == ["squeue", "squeue", "sacct", "squeue", "sacct"], "one at a time, in turn"
    assert desk.asked[2][-1] == "--jobs=1,2" and desk.asked[4][-1] == "--jobs=2"
    assert [found["2"] for found in seen] == ["RUNNING", "RUNNING", "RUNNING", "COMPLETED"], "sacct was behind"
    assert seen[-1] == {"1": "FAILED", "2": "COMPLETED", "3": "RUNNING"}


@pytest.mark.parametrize("told", ["", accounts(j1="RUNNING")])
def test_a_job_that_is_never_told_to_be_over_is_let_go(
    told: str, watcher: Callable[..., tuple[JobStatePoller, Desk]], now: list[float]
) -> None:
    watch, desk = watcher(squeue=queue(j1="RUNNING"), sacct=told)
    watch.look(["1"])
    desk.answers["squeue"] = ""
    looks = 0
    while watch.look(["1"]):
        now[0] += 5.0
        looks += 1
        assert looks < 50
    assert desk.names.count("sacct") == MAX_LATE_ANSWERS
    queries = watch.queries
    now[0] += 5.0
    assert watch.look(["1"]) == {} and watch.queries == queries + 1, (
        "whoever counts such answers sees that there are some"
    )


def test_without_accounting_it_is_noticed_once_and_scontrol_is_asked(
    watcher: Callable[..., tuple[JobStatePoller, Desk]], now: list[float]
) -> None:
    scontrol = "JobId=1 JobState=COMPLETED NodeList=h1\n"
    watch, desk = watcher(squeue="", sacct=SlurmError(DISABLED), scontrol=scontrol)
    for _ in range(5):
        found = watch.look(["1", "2"])
        now[0] += 5.0
    assert words(found) == {"1": "COMPLETED"}
    assert desk.names.count("sacct") == 1 and desk.names.count("scontrol") >= 2
    watch, desk = watcher(squeue=queue(j1="RUNNING"), scontrol="")
    watch.look(["1"])
    desk.answers["squeue"] = ""
    for _ in range(4):
        now[0] += 5.0
        found = watch.look(["1"])
    assert found == {} and "sacct" not in desk.names


def test_where_accounting_is_down_for_a_while_the_others_are_followed_on(
    watcher: Callable[..., tuple[JobStatePoller, Desk]], now: list[float]
) -> None:
    watch, desk = watcher(squeue=queue(j2="RUNNING"), sacct=SlurmUnreachable("Connection refused"), scontrol="")
    for _ in range(6):
        assert words(watch.look(["1", "2"])) == {"2": "RUNNING"}
        now[0] += 5.0
    desk.answers["sacct"] = accounts(j1="TIMEOUT")
    for _ in range(2):
        found = watch.look(["1", "2"])
        now[0] += 5.0
    assert words(found) == {"1": "TIMEOUT", "2": "RUNNING"} and "scontrol" not in desk.names


def test_a_controller_that_does_not_answer_is_asked_less_often(
    watcher: Callable[..., tuple[JobStatePoller, Desk]], now: list[float]
) -> None:
    watch, desk = watcher(squeue=queue(j1="RUNNING"), sacct="")
    watch.look(["1"])
    desk.answers["squeue"] = SlurmUnreachable("Unable to contact slurm controller")
    failed_at_s = []
    while now[0] < 700.0:
        now[0] += 1.0
        try:
            assert words(watch.look(["1"])) == {"1": "RUNNING"}, "between two questions it is what was known"
        except SlurmUnreachable:
            failed_at_s.append(now[0])
    pauses = [after - before for before, after in pairwise(failed_at_s)]
    assert pauses[:3] == [10.0, 20.0, 40.0] and set(pauses[3:]) == {MAX_POLL_INTERVAL_S}
    desk.answers["squeue"] = queue(j1="COMPLETED")
    now[0] += MAX_POLL_INTERVAL_S
    assert words(watch.look(["1"])) == {"1": "COMPLETED"}


def test_one_look_without_an_interval_asks_all_that_know(watcher: Callable[..., tuple[JobStatePoller, Desk]]) -> None:
    watch, desk = watcher(0.0, squeue=queue(j2="RUNNING"), sacct=accounts(j1="FAILED"))
    assert words(watch.look(["1", "2", "3"])) == {"1": "FAILED", "2": "RUNNING"}
    assert desk.names == ["squeue", "sacct"]
    watch, desk = watcher(0.0, squeue="", sacct=SlurmError(DISABLED), scontrol="JobId=1 JobState=FAILED\n")
    assert words(watch.look(["1"])) == {"1": "FAILED"}


def test_where_there_is_no_squeue_scontrol_stands_in(watcher: Callable[..., tuple[JobStatePoller, Desk]]) -> None:
    watch, desk = watcher(scontrol="JobId=1 JobState=RUNNING NodeList=h1\n")
    assert words(watch.look(["1"])) == {"1": "RUNNING"} and desk.names == ["scontrol"]


def test_the_questions_are_those_of_slurm(tools: Tools) -> None:
    tools.put("squeue", out="1|RUNNING|h1|1795232248|1795232200|1:00|None\n")
    tools.put("sacct", out="2|FAILED|1:0|h1|1795232248|1795232200|00:01:00\n")
    found = JobStatePoller(tools.slurm, 0.0).look(["1", "2"])
    assert words(found) == {"1": "RUNNING", "2": "FAILED"} and found["2"].exit_code == "1:0"
    (squeue,), (sacct,) = tools.calls("squeue"), tools.calls("sacct")
    assert "--states=all" in squeue and "--user=" in squeue and "--job" not in squeue, (
        "it fails for ids it has forgotten"
    )
    assert "--jobs=2" in sacct and "--allocations" in sacct
