"""The process that makes samples: what it leaves, and how its end is told. Most tests here start one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scalebench.plugins import PluginError
from scalebench.workloads.datasets import cache, user_function
from scalebench.workloads.datasets.user_function import FunctionCall
from tests.helpers import wait_until

CODE = """\
import os, pathlib, signal, subprocess, sys, time
import numpy as np


def run_function(size, seed, fault="", times=1):
    print("made here", file=sys.stderr)
    if fault == "raise":
        raise ValueError("bad\\nthings")
    if fault == "leave":
        os._exit(4)
    if fault in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), getattr(signal, fault))
    if fault == "sleep":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(300)
    if fault == "fork":
        child = os.fork()
        if child == 0:
            return None
        os.waitpid(child, 0)
        assert not pathlib.Path(sys.argv[1], "answer.json").exists()  # the child said nothing
    if fault == "reads":
        assert sys.stdin.read() == ""
    inputs = np.full((size, 3), seed, np.float32) * times
    return inputs, inputs[:, 0]
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "made").mkdir()


def run_function(tmp_path: Path, limit_s: float = 60.0, **options: object) -> None:
    request = FunctionCall("mine:build", "dataset.builder=mine:build", True, 5, 7, options)
    user_function.run_function(request, limit_s, tmp_path / "made")


@pytest.fixture
def full_stdin() -> Iterator[None]:
    """Something that is typed, and not for the function."""
    kept = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, b"typed\n")
    os.close(writing)
    os.dup2(reading, 0)
    yield
    os.dup2(kept, 0)
    os.close(kept)
    os.close(reading)


@pytest.mark.parametrize("fault", ["fork", "reads"])
def test_both_arrays_are_there(tmp_path: Path, fault: str, full_stdin: None, capfd: pytest.CaptureFixture[str]) -> None:
    run_function(tmp_path, times=2, fault=fault)
    inputs, targets = cache.open_arrays(tmp_path / "made")
    assert inputs.shape == (5, 3) and targets.shape == (5, 1) and float(inputs[0, 0]) == 14.0
    assert "made here" not in capfd.readouterr().err


FAULTS = {
    "raise": "fails: ValueError: bad things",
    "leave": "ended its process with exit status 4 and gave no samples: it should return them",
    "SIGKILL": r"was killed while it made its samples \(out of memory\?\): lower dataset.size",
    "SIGSEGV": "was ended by SIGSEGV while it made its samples",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_with_what_was_printed(tmp_path: Path, fault: str) -> None:
    with pytest.raises(PluginError, match=rf"^dataset.builder=mine:run_function {FAULTS[fault]}") as caught:
        run_function(tmp_path, fault=fault)
    assert "\n" not in str(caught.value) and "made here" in caught.value.log
    if fault == "raise":
        assert 'mine.py", line' in caught.value.log


@pytest.mark.slow
def test_what_is_not_done_in_time_is_ended_with_all_it_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PluginError, match=r"was not done after 4 s: lower dataset.size or raise measure.timeout_s$"):
        run_function(tmp_path, 4.0, fault="sleep")
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(alive(pid) for pid in pids))
    assert capsys.readouterr().err == "dataset.builder=mine:run_function makes its samples, 5 asked for\n"


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "made").rmdir()
    with pytest.raises(OSError) as caught:
        run_function(tmp_path)
    assert caught.value.errno == errno.ENOENT


@pytest.mark.slow
def test_it_ends_with_whoever_asked_for_it(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom scalebench.workloads.datasets.user_function import FunctionCall, run_function\n"
        "build(FunctionCall('mine:build', 'dataset.builder=mine:build', True, 5, 7, {'fault': 'sleep'}), 300, Path('made'))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as asking:
        wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
        asking.send_signal(signal.SIGKILL)
    maker, started = (int(word) for word in (tmp_path / "pids").read_text().split())
    wait_until(lambda: not alive(maker))
    os.kill(started, signal.SIGKILL)  # what it started itself is its own to end


def alive(pid: int) -> bool:
    try:
        return str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
