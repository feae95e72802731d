"""Generated datasets: the files equal what the generator gives, whoever made them."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest

from scalebench.workloads.datasets import cache, materials

SAMPLES = 2 * materials.CHUNK + 100


@pytest.mark.parametrize("workers", [1, 2])
def test_files_equal_the_generator_for_any_number_of_processes(tmp_path, workers):
    folder = materials.define_materials(SAMPLES, seed=5).ensure(tmp_path, workers)
    inputs, targets = cache.open_arrays(folder)
    curves, labels = materials.generate_curves(SAMPLES, seed=5)
    assert np.array_equal(inputs, curves) and np.array_equal(targets, labels)
    assert inputs.dtype == targets.dtype == np.float32


def make(start: int, count: int):
    rows = np.arange(start, start + count)
    return np.repeat(rows[:, None], 3, axis=1), rows


TOY = cache.ChunkedDataset("toy", 1, 10, 0, (3,), (), 4, make, input_dtype="uint8", target_dtype="int64")


def test_other_shapes_and_types(tmp_path):
    inputs, targets = cache.open_arrays(TOY.ensure(tmp_path))
    assert inputs.dtype == np.uint8 and targets.dtype == np.int64
    assert np.array_equal(targets, np.arange(10)) and np.array_equal(inputs[:, 2], np.arange(10))
    assert TOY.size_bytes == inputs.nbytes + targets.nbytes


CHANGES = [{"version": 2}, {"samples": 11}, {"seed": 1}, {"input_dtype": "int8"}, {"details": {"classes": 3}}]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_files_changes_the_folder(tmp_path, change):
    assert dataclasses.replace(TOY, **change).ensure(tmp_path) != TOY.ensure(tmp_path)


@pytest.mark.parametrize("change", [{"chunk": 3}, {"pool_bytes": 0}, {"details": {}}])
def test_what_does_not_change_the_files_does_not_change_the_folder(tmp_path, change):
    assert dataclasses.replace(TOY, **change).ensure(tmp_path, workers=1) == TOY.ensure(tmp_path)


@pytest.mark.parametrize(("samples", "pooled"), [(99_000, False), (101_000, True)])
def test_only_large_datasets_start_processes(tmp_path, monkeypatch, samples, pooled):
    pools = []
    monkeypatch.setattr(cache.ChunkedDataset, "fill", lambda *_: None)
    monkeypatch.setattr(cache.ChunkedDataset, "_fill_in_pool", lambda *arguments: pools.append(arguments))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    materials.define_materials(samples, 0).ensure(tmp_path)
    assert bool(pools) == pooled
    if pooled:
        assert pools[0][-1] == 3


def test_a_slow_recipe_says_from_which_size_on_processes_are_worth_it(tmp_path, monkeypatch):
    pools = []
    monkeypatch.setattr(cache.ChunkedDataset, "_fill_in_pool", lambda *arguments: pools.append(arguments))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    dataclasses.replace(TOY, pool_bytes=TOY.size_bytes + 1).ensure(tmp_path / "1")
    assert not pools
    dataclasses.replace(TOY, pool_bytes=TOY.size_bytes).ensure(tmp_path / "2")
    assert len(pools) == 1


class Counted:
    """A recipe's `make` that notes how often it is sent to another process."""

    def __init__(self, log):
        self.log = log

    def __getstate__(self):
        with self.log.open("a") as log:
            log.write("sent\n")
        return self.__dict__

    def __call__(self, start: int, count: int):
        return make(start, count)


def test_the_recipe_is_sent_once_to_each_process(tmp_path):
    log = tmp_path / "log"
    folder = dataclasses.replace(TOY, chunk=1, make=Counted(log)).ensure(tmp_path / "cache", workers=2)
    assert np.array_equal(cache.open_arrays(folder)[1], np.arange(10))
    assert log.read_text().splitlines() == ["sent"] * 2


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


SCRIPT = textwrap.dedent(
    """
    import os, signal, sys, time
    from pathlib import Path
    import numpy as np
    from scalebench.workloads.datasets.cache import ChunkedDataset

    def make(start, count):
        Path(sys.argv[1], f"pid{os.getpid()}").touch()
        if sys.argv[2] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        return np.zeros((count, 1)), np.zeros((count, 1))

    if __name__ == "__main__":
        ChunkedDataset("slow", 1, 100, 0, (1,), (1,), 1, make).ensure(Path(sys.argv[1], "cache"), workers=2)
    """
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_parent(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, script, tmp_path, "sleep"], stderr=subprocess.PIPE)
    try:
        deadline_s = time.monotonic() + 30
        while len(pids := [int(path.name[3:]) for path in tmp_path.glob("pid*")]) < 2:
            assert time.monotonic() < deadline_s and parent.poll() is None
            time.sleep(0.02)
        parent.send_signal(how)
        parent.communicate(timeout=10)
        assert parent.returncode == -how
        deadline_s = time.monotonic() + 5
        while any(map(alive, pids)):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.communicate()


def test_a_killed_worker_is_one_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run([sys.executable, script, tmp_path, "die"], capture_output=True, text=True, timeout=60)
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("scalebench.spec.InputError: a process that makes dataset slow")
    assert "was killed" in line and str(tmp_path / "cache") in line and "dataset.cache=" in line
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
