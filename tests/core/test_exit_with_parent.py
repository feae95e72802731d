"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.core import exit_with_parent
from tests.builders.runs import alive, wait_until

# Starts a command on a leash, says its pid and waits.
PARENT = """
import os, subprocess, sys, time
from scalebench.core import exit_with_parent as leash
child = subprocess.Popen(leash.command(os.getpid(), sys.argv[1:]))
print(child.pid, flush=True)
time.sleep(600)
"""


def test_what_is_on_the_leash_gets_sigterm_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\nfrom pathlib import Path\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path('{tmp_path}/told').touch()))\n"
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
        wait_until(lambda: not alive([pid]), 10.0)
        assert (tmp_path / "told").exists()
    finally:
        parent.kill()
        if alive([pid]):
            os.kill(pid, signal.SIGKILL)
        parent.communicate()


def test_the_command_takes_the_place_of_the_leash() -> None:
    """It knows by which name it can be found."""
    program = "import os; print(os.getpid(), os.environ['SCALEBENCH_LAUNCHER'])"
    with subprocess.Popen(
        exit_with_parent.command(os.getpid(), [sys.executable, "-c", program]), stdout=subprocess.PIPE, text=True
    ) as child:
        out, _ = child.communicate(timeout=60)
    assert out.split() == [str(child.pid), f"{os.uname().nodename}:{child.pid}"]


def test_a_parent_that_is_gone_already(tmp_path: Path) -> None:
    command = exit_with_parent.command(1, [sys.executable, "-c", f"open('{tmp_path}/ran', 'w')"])
    assert subprocess.run(command, check=False, timeout=60).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_ancestors_are_the_chain_of_parents() -> None:
    found = exit_with_parent.ancestors(os.getpid())
    assert found[:2] == [os.getpid(), os.getppid()] and len(set(found)) == len(found)
    assert exit_with_parent.ancestors(1) == []


@pytest.mark.parametrize(("held", "status"), [("me", 0), ("another", 1), ("elsewhere", 0), ("nobody", 0)])
def test_a_process_below_the_leash_looks_whether_it_is_still_there(held: str, status: int) -> None:
    """Who was started by mpirun while that was killed has another parent, and no other sign of it."""
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    host = os.uname().nodename
    name = {"me": f"{host}:{os.getpid()}", "another": f"{host}:{ended.pid}", "elsewhere": "far:1", "nobody": None}[held]
    env = dict(os.environ) if name is None else os.environ | {exit_with_parent.LAUNCHER: name}
    code = "from scalebench.core import exit_with_parent as leash; leash.exit_with_launcher()"
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=60).returncode == status
