"""Processes that end with their parent, and what the kernel says of one."""

import os
import signal
import subprocess
import sys

import pytest

from scalebench.core import exit_with_parent
from scalebench.core.process import read_process_stat
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
    command = [sys.executable, "-c", PARENT, sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        try:
            wait_until((tmp_path / "up").exists)
            parent.kill()
            parent.wait()
            wait_until(lambda: not find_running([pid]), 10.0)
            assert (tmp_path / "terminated").exists()
        finally:
            parent.kill()
            if find_running([pid]):
                os.kill(pid, signal.SIGKILL)


def test_the_command_replaces_the_program_that_ties_it(tmp_path):
    """Its host and pid are in the environment. Where the parent has already ended, it does not run."""
    program = "import os; print(os.getpid(), os.environ['SCALEBENCH_LAUNCHER'])"
    command = exit_with_parent.tied_command(os.getpid(), [sys.executable, "-c", program])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        out, _ = child.communicate(timeout=60)
    assert out.split() == [str(child.pid), f"{os.uname().nodename}:{child.pid}"]
    command = exit_with_parent.tied_command(1, [sys.executable, "-c", f"open('{tmp_path}/ran', 'w')"])
    assert subprocess.run(command, check=False, timeout=60).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_a_process_checks_whether_its_launcher_still_runs():
    """A process that mpirun started while it was killed has another parent, and no other sign of it."""
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    host, variable = os.uname().nodename, exit_with_parent.LAUNCHER_VARIABLE
    code = "from scalebench.core.exit_with_parent import tie_to_launcher; tie_to_launcher()"
    for launcher, status in ((f"{host}:{os.getpid()}", 0), (f"{host}:{ended.pid}", 1), ("far:1", 0), (None, 0)):
        env = os.environ | ({} if launcher is None else {variable: launcher})
        done = subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=60)
        assert done.returncode == status, launcher


def test_the_parents_and_the_cpu_seconds_of_a_process():
    pids = exit_with_parent.ancestors(os.getpid())
    assert pids[0] == os.getpid() and os.getppid() in (1, *pids[1:2]) and len(set(pids)) == len(pids)
    assert exit_with_parent.ancestors(1) == []
    while os.times().system < 0.3:
        os.listdir("/proc")
    stat, times = read_process_stat(os.getpid()), os.times()
    assert stat.parent == os.getppid() and stat.cpu_s == pytest.approx(times.user + times.system, abs=0.2)
    assert read_process_stat(2**22 + 1) is None  # above the largest number of a process
