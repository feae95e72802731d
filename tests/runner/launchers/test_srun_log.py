"""The log of srun: the reason of a failure, the outcome of a step, and the tasks that ended."""

import pytest

from scalebench.core.run_folder import SRUN_LOG
from scalebench.runner.launchers import srun
from tests.runner.launchers.fake_srun import NOISE

ENDED = """srun: forcing job termination
srun: got SIGCONT
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
"""
CANCELLED_STEP = "slurmstepd-h1: error: *** STEP 88.0 ON h1 CANCELLED AT 2026-11-21T04:04:19{} ***\n"
MEMORY_LIMIT = """slurmstepd-h2: error: StepId=48.0 exceeded memory limit (1112723456 > 1048576000), being killed
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-h1: error: *** STEP 48.0 ON h1 CANCELLED AT 2026-11-21T03:52:09 ***
srun: error: h2: tasks 2-3: Killed
"""
CGROUP = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed by "
    "the cgroup out-of-memory handler.\nsrun: error: n1: task 0: Out Of Memory\n"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", None),
        (NOISE + ENDED, None),
        (NOISE + "srun: error: h2: task 3: Killed\n", None),  # the report on a rank
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
def test_the_reason_is_the_most_specific_line(text, reason, tmp_path):
    log = tmp_path / SRUN_LOG
    assert srun.find_srun_failure(log) is None
    log.write_text(text)
    assert srun.find_srun_failure(log) == reason


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (NOISE, None),
        ("srun: error: h2: task 3: Killed\n", None),
        (NOISE + CANCELLED_STEP.format(""), ("cancelled", "SLURM: the job was cancelled")),
        (CANCELLED_STEP.format(" DUE TO TIME LIMIT"), ("timeout", "SLURM: the job was ended, due to time limit")),
        (CANCELLED_STEP.format(" DUE TO PREEMPTION"), ("cancelled", "SLURM: the job was ended, due to preemption")),
        (
            "srun: error: Node failure on h2\n" + CANCELLED_STEP.format(" DUE TO NODE FAILURE"),
            ("failed", "SLURM: node failure on h2"),
        ),
        (
            NOISE + MEMORY_LIMIT,
            ("oom", "SLURM: StepId=48.0 exceeded memory limit (1112723456 > 1048576000), being killed"),
        ),
    ],
)
def test_the_log_of_a_step_gives_its_outcome(text, outcome):
    assert srun.step_outcome(text) == outcome


def test_failed_tasks_are_parsed_and_only_memory_counts_after_the_end():
    text = NOISE + "srun: error: h1: tasks 0-1,4: Killed\nsrun: error: h2: task 3: Exited with exit code 2\n"
    killed = dict.fromkeys((0, 1, 4), "Killed")
    assert srun.parse_ended_tasks(text) == {**killed, 3: "Exited with exit code 2"}
    assert srun.parse_ended_tasks(NOISE) == {}
    assert [bool(srun.EXITED_BY_ITSELF.match(end)) for end in ("Exited with exit code 2", "Killed")] == [True, False]
    # Only memory counts after the step was ended.
    assert srun.memory_outcome(ENDED + CANCELLED_STEP.format("")) is None
    for text in (MEMORY_LIMIT, CGROUP, "srun: error: n1: task 0: Out Of Memory\n"):
        assert (outcome := srun.memory_outcome(text)) is not None and outcome[0] == "oom"
