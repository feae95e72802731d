"""What is made of srun's words; they were written by SLURM 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.launchers import srun_words
from scalebench.run_folder import SRUN_LOG

NOISE = "srun: cluster configuration lacks support for cpu binding\n"
ENDED = """srun: forcing job termination
srun: got SIGCONT
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
"""
CANCELLED = "slurmstepd-h1: error: *** STEP 88.0 ON h1 CANCELLED AT 2026-11-21T04:04:19{} ***\n"
MEMORY = """slurmstepd-h2: error: StepId=48.0 exceeded memory limit (1112723456 > 1048576000), being killed
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-h1: error: *** STEP 48.0 ON h1 CANCELLED AT 2026-11-21T03:52:09 ***
srun: error: h2: tasks 2-3: Killed
"""
CGROUP = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed by "
    "the cgroup out-of-memory handler.\nsrun: error: n1: task 0: Out Of Memory\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", None),
        (NOISE + ENDED, None),
        (NOISE + "srun: error: h2: task 3: Killed\n", None),  # which is told of the rank
        (
            NOISE + "srun: error: Unable to create step for job 92: More processors requested than permitted\n",
            "srun: Unable to create step for job 92: More processors requested than permitted",
        ),
        (
            "slurmstepd-h1: error: execve(): /x/python: No such file or directory\n"
            "srun: error: h1: tasks 0-1: Exited with exit code 2\n",
            "slurmstepd-h1: execve(): /x/python: No such file or directory",
        ),
        ("Traceback:\n  File x\nImportError: No module named 'y'\n", "srun: ImportError: No module named 'y'"),
        ("slurmstepd: error: couldn't chdir\nscalebench: h2 cannot read it\n", "h2 cannot read it"),
        ("srun: error: No gres\nand more\n", "srun: No gres"),
        (
            "srun: unrecognized option '--x'\nTry \"srun --help\" for more information\n",
            "srun: unrecognized option '--x'",
        ),
        ("x" * 1000, "srun: " + "x" * 300),
    ],
)  # fmt: skip
def test_the_reason(text: str, said: str | None, tmp_path: Path) -> None:
    log = tmp_path / SRUN_LOG
    assert srun_words.words(log) is None
    log.write_text(text)
    assert srun_words.words(log) == said


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (NOISE, None),
        ("srun: error: h2: task 3: Killed\n", None),
        (NOISE + CANCELLED.format(""), ("cancelled", "SLURM: the job was cancelled")),
        (CANCELLED.format(" DUE TO TIME LIMIT"), ("timeout", "SLURM: the job was ended, due to time limit")),
        (CANCELLED.format(" DUE TO PREEMPTION"), ("cancelled", "SLURM: the job was ended, due to preemption")),
        (
            "srun: error: Node failure on h2\n" + CANCELLED.format(" DUE TO NODE FAILURE"),
            ("failed", "SLURM: node failure on h2"),
        ),
        (
            NOISE + MEMORY,
            ("oom", "SLURM: StepId=48.0 exceeded memory limit (1112723456 > 1048576000), being killed"),
        ),
    ],
)
def test_the_verdict(text: str, verdict: tuple[str, str] | None) -> None:
    assert srun_words.verdict(text) == verdict


def test_memory_is_the_only_thing_that_counts_after_the_end() -> None:
    assert srun_words.memory(ENDED + CANCELLED.format("")) is None
    for text in (MEMORY, CGROUP, "srun: error: n1: task 0: Out Of Memory\n"):
        found = srun_words.memory(text)
        assert found is not None and found[0] == "oom"


def test_which_tasks_ended_badly_and_how() -> None:
    text = NOISE + "srun: error: h1: tasks 0-1,4: Killed\nsrun: error: h2: task 3: Exited with exit code 2\n"
    killed = dict.fromkeys((0, 1, 4), "Killed")
    assert srun_words.ended_tasks(text) == {**killed, 3: "Exited with exit code 2"}
    assert srun_words.ended_tasks(NOISE) == {}
    assert [bool(srun_words.EXITED.match(how)) for how in ("Exited with exit code 2", "Killed")] == [True, False]


def test_what_is_of_no_account() -> None:
    assert srun_words.only_noise("") and srun_words.only_noise(NOISE + ENDED)
    assert not srun_words.only_noise(NOISE + "srun: error: h2: task 3: Killed\n")
