"""The lock on a sweep's folder, which a killed program loses, and processes that end with their parent."""

import errno
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys

import psutil
import pytest

from scalebench.core import exit_with_parent
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock
from scalebench.core.process import read_process_stat
from scalebench.core.run_folder import LOCK_FILE
from tests.builders.runs import find_running, wait_until

HOLDS = """
import sys, time
from pathlib import Path
from scalebench.core.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_folder_is_held_once_and_free_again(tmp_path):
    """Also while a child of its program lives: ranks may outlive a parent that was killed."""
    used = rf"process {os.getpid()} on {platform.node()} \(since .*\) uses {tmp_path}; "
    with FolderLock(tmp_path), pytest.raises(InputError, match=used):
        FolderLock(tmp_path)
    assert os.listdir(tmp_path) == []
    lock = FolderLock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        lock.release()
        lock.release()
        FolderLock(tmp_path).release()
        assert child.poll() is None and os.listdir(tmp_path) == []
        child.communicate(b"\n")


def test_another_program_holds_it_while_it_lives(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(InputError, match=f"process {other.pid} on "):
                FolderLock(tmp_path)
        finally:
            other.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK_FILE).exists(), "a killed program tidies nothing up"
    FolderLock(tmp_path).release()
    assert not (tmp_path / LOCK_FILE).exists()


def left_by(folder, **changes):
    """The file of a program that did not tidy up: this one, but for `changes`."""
    started_s = psutil.Process().create_time()
    holder = {"hostname": platform.node(), "pid": os.getpid(), "pid_started_s": started_s, "since": "yesterday"}
    (folder / LOCK_FILE).write_text(json.dumps({**holder, **changes}))


def test_a_holder_on_another_host_is_assumed_alive_and_a_lock_tells_more_than_a_number(tmp_path):
    left_by(tmp_path, hostname="login2")
    for _ in range(2):  # being refused leaves all as it was
        with pytest.raises(InputError, match=rf"on login2 \(since yesterday\) uses .* remove {tmp_path}/{LOCK_FILE}$"):
            FolderLock(tmp_path)
    (tmp_path / LOCK_FILE).unlink()
    FolderLock(tmp_path).release()
    left_by(tmp_path)
    FolderLock(tmp_path).release()
    (tmp_path / LOCK_FILE).write_text('{"hostname": "lo')
    FolderLock(tmp_path).release()
    left_by(tmp_path, since="the day before " * 20)  # a longer text
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_without_kernel_locks_the_process_is_checked(tmp_path, monkeypatch):
    for number in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO):

        def none_here(file, how, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", none_here)
        if number == errno.EIO:
            with pytest.raises(OSError, match="Input/output error"):
                FolderLock(tmp_path)
            break
        left_by(tmp_path)
        with pytest.raises(InputError, match="choose another folder"):
            FolderLock(tmp_path)
        left_by(tmp_path, pid_started_s=1.0)  # its number is another's by now
        FolderLock(tmp_path).release()
        left_by(tmp_path, pid=2**22 + 1)
        FolderLock(tmp_path).release()


def test_a_file_that_is_removed_meanwhile_is_made_anew(tmp_path, monkeypatch):
    real, removed = fcntl.flock, []

    def slow(file, how):
        if not removed:  # its holder releases it between our opening and our locking
            (tmp_path / LOCK_FILE).unlink()
            removed.append(file)
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with FolderLock(tmp_path):
        assert (tmp_path / LOCK_FILE).exists() and removed
        with pytest.raises(InputError):
            FolderLock(tmp_path)


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
