"""Ctrl-C, SIGTERM and nohup while jobs run: the question, the fate of the jobs, and the messages;
and sweeps whose program was killed or whose runs failed, continued by a second command."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

from tests.cluster.processes import until
from tests.cluster.program import ENDLESS, PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
# One run that measures on one node, one on both that waits for that, and one that is not even submitted.
WORDS = ("strategy=simulated gpus=1,4,3 hardware.max_jobs=2 baseline=none", *ENDLESS)
LOGIN = "import os, sys; os.login_tty(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
CTRL_C = b"\x03"


class Terminal:
    """Somebody's window, with the program in it."""

    def __init__(self, program):
        self.said = ""
        self._window, its = os.openpty()
        command = [sys.executable, "-c", LOGIN, *program.words(*WORDS)[1:]]
        environment = {**program.environment, "TERM": "xterm", "COLUMNS": "250"}
        self.process = subprocess.Popen(
            command, cwd=program.folder, env=environment, stdin=its, stdout=its, stderr=its, pass_fds=[its]
        )
        os.close(its)

    def press(self, keys):
        os.write(self._window, keys)

    def wait_for(self, words):
        """Until the program has said so, and all that it says before."""
        end_s = time.monotonic() + PATIENCE_S
        while words not in self.said:
            assert self._read(end_s - time.monotonic()), self.said

    def end(self):
        """Its exit status; what it said is complete."""
        end_s = time.monotonic() + PATIENCE_S
        while self._read(end_s - time.monotonic()):
            pass
        return self.process.wait(PATIENCE_S)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._window)

    def _read(self, limit_s):
        """Whether there was more."""
        if limit_s > 0 and select.select([self._window], [], [], limit_s)[0]:
            with suppress(OSError):  # EIO: nobody holds the other side any more
                self.said += (found := os.read(self._window, 65536)).decode(errors="replace")
                return bool(found)
        return False


@contextmanager
def terminal(program):
    made = Terminal(program)
    try:
        program.jobs_are(RUNNING=1, PENDING=1)
        program.working(0)
        yield made
    finally:
        made.close()


def cancelled(program):
    """All jobs are over, and each run has a row that says so."""
    program.jobs_are(CANCELLED=2)
    assert {number: row.status for number, row in program.rows().items()} == dict.fromkeys(range(3), "cancelled")
    running, waiting, unsent = program.rows().values()
    assert running.scheduler.state == "CANCELLED"
    assert waiting.scheduler.nodes == []
    assert unsent.reason == "cancelled before it was submitted" and unsent.scheduler is None
    assert len(program.calls("sbatch")) == 2


def table_of(said):
    """Strategy and devices of its rows, and whether they were cancelled."""
    rows = re.findall(r"^\d+ +(simulated) +(\d+) +(?:\x1b\[\d+m)?(\w+)", said, re.MULTILINE)
    return sorted([name, devices, status == "cancelled"] for name, devices, status in rows)


ALL_CANCELLED = [["simulated", "1", True], ["simulated", "3", True], ["simulated", "4", True]]


def test_ctrl_c_asks_and_no_lets_the_jobs_go_on(program):
    with terminal(program) as window:
        window.press(CTRL_C)
        window.wait_for("cancel all 2 jobs? Otherwise they keep running [Y/n]")
        window.press(b"n\r")
        assert window.end() == 1
    assert "2 jobs keep running; the same command with resume=true waits for the rest" in window.said
    program.jobs_are(RUNNING=1, PENDING=1)
    assert program.rows() == {} and not program.calls("scancel")


@pytest.mark.parametrize("answer", [b"y\r", CTRL_C], ids=["yes", "a second Ctrl-C"])
def test_ctrl_c_and_yes_cancels_them(answer, program):
    with terminal(program) as window:
        window.press(CTRL_C)
        window.wait_for("[Y/n]")
        window.press(answer)
        assert window.end() == 1
    cancelled(program)
    assert window.said.count("[Y/n]") == 1 and table_of(window.said) == ALL_CANCELLED, window.said


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_jobs_are_cancelled_without_a_terminal_to_ask(sign, program):
    with program.started(*WORDS) as process:
        program.jobs_are(RUNNING=1, PENDING=1)
        program.working(0)
        process.send_signal(sign)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (1, "scalebench: cancelled\n")
    cancelled(program)
    assert "[Y/n]" not in out and table_of(out) == ALL_CANCELLED


def test_the_terminal_is_closed(program):
    """SIGHUP ends the program at once, and leaves its jobs; under nohup it stays, and follows them."""
    with terminal(program) as window:
        window.process.send_signal(signal.SIGHUP)
        assert window.end() == 1
    program.jobs_are(RUNNING=1, PENDING=1)
    with program.started(*WORDS, "resume=true", before=("nohup",)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "1 running" in line:
                break
        process.send_signal(signal.SIGHUP)
        for job in program.ids():
            program.cluster.slurm("scancel", job)
        program.jobs_are(CANCELLED=2, RUNNING=1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and len(program.calls("sbatch")) == 3
    assert {row.status for row in program.rows().values()} == {"cancelled"}


def test_a_killed_program_leaves_its_jobs_to_the_next(program):
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
    first = {number: program.job(number) for number in range(3)}
    assert not (program.sweep / "3" / "job.json").exists()
    whole = (program.sweep / "0" / "result.json").read_bytes()
    done = program.run(words, "resume=true")
    assert (done.status, done.err) == (0, ""), done.out
    assert {number: program.job(number) for number in range(3)} == first
    assert len(program.calls("sbatch")) == 4, "each run once"
    assert [row.status for row in program.rows().values()] == ["ok"] * 4
    assert (program.sweep / "0" / "result.json").read_bytes() == whole
    assert [row.scheduler.job_id for row in program.rows().values() if row.scheduler][:3] == list(first.values())
