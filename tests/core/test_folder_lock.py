"""The lock on a sweep's folder: one program at a time, and a killed program loses it."""

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

from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock
from scalebench.core.run_folder import LOCK_FILE

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
