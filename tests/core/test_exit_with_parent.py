"""Processes that end with their parent."""

import os
import signal
import subprocess
import sys

import pytest

from scalebench.core import exit_with_parent
from tests.builders.runs import find_running, wait_until

# Starts a command that is tied to this process, prints its pid and waits.
PARENT = """
import os, subprocess, sys, time
from scalebench.core.exit_with_parent import tied_command
child = subprocess.Popen(tied_command(os.getpid(), sys.argv[1:]))
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_tied_command_gets_sigterm_when_its_parent_is_killed(tmp_path):
    program = (
        "import signal, sys, time\nfrom pathlib import Path\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path('{tmp_path}/terminated').touch()))\n"
        f"Path('{tmp_path}/up').touch()\ntime.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    pid = 0
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until((tmp_path / "up").exists)
        parent.kill()
        parent.wait()
        wait_until(lambda: not find_running([pid]), 10.0)
        assert (tmp_path / "terminated").exists()
    finally:
        parent.kill()
        if find_running([pid]):
            os.kill(pid, signal.SIGKILL)
        parent.communicate()


def test_the_command_replaces_the_program_that_ties_it():
    """Its host and pid are in the environment."""
    program = "import os; print(os.getpid(), os.environ['SCALEBENCH_LAUNCHER'])"
    with subprocess.Popen(
        exit_with_parent.tied_command(os.getpid(), [sys.executable, "-c", program]), stdout=subprocess.PIPE, text=True
    ) as child:
        out, _ = child.communicate(timeout=60)
    assert out.split() == [str(child.pid), f"{os.uname().nodename}:{child.pid}"]


def test_a_parent_that_has_already_ended(tmp_path):
    command = exit_with_parent.tied_command(1, [sys.executable, "-c", f"open('{tmp_path}/ran', 'w')"])
    assert subprocess.run(command, check=False, timeout=60).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_ancestors_are_the_chain_of_parents():
    pids = exit_with_parent.ancestors(os.getpid())
    assert pids[0] == os.getpid() and os.getppid() in (1, *pids[1:2]) and len(set(pids)) == len(pids)
    assert exit_with_parent.ancestors(1) == []


@pytest.mark.parametrize(("launcher", "status"), [("running", 0), ("ended", 1), ("remote", 0), ("none", 0)])
def test_a_process_checks_whether_its_launcher_still_runs(launcher, status):
    """A process that mpirun started while it was killed has another parent, and no other sign of it."""
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    host = os.uname().nodename
    names = {"running": f"{host}:{os.getpid()}", "ended": f"{host}:{ended.pid}", "remote": "far:1"}
    env = os.environ | ({exit_with_parent.LAUNCHER_VARIABLE: names[launcher]} if launcher in names else {})
    code = "from scalebench.core.exit_with_parent import tie_to_launcher; tie_to_launcher()"
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=60).returncode == status
