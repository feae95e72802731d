"""The dataset cache: complete or rebuilt, written once by one of several processes; errors name the folder."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from scalebench.core.errors import InputError
from scalebench.workloads.datasets import cache, materials

IDENTITY = {"seed": 0}
SIZE_BYTES = 1000


def write(folder: Path, value: float = 1.0) -> None:
    for file, shape in ((cache.INPUTS, (5, 4, 3)), (cache.TARGETS, (5, 2))):
        cache.create_array(folder / file, shape, "float32")[:] = value


class Writer:
    """Counts the calls of `write`."""

    def __init__(self):
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        write(folder)


def ensure(cache_dir: Path, writer=write, identity=IDENTITY) -> Path:
    return cache.ensure_folder(cache_dir, "toy", identity, SIZE_BYTES, writer)


def temporaries(cache_dir: Path) -> list[str]:
    return [path.name for path in cache_dir.iterdir() if ".tmp-" in path.name]


def test_written_once_and_opened_as_a_map(tmp_path):
    writer = Writer()
    folder = ensure(tmp_path / "new" / "cache", writer)
    assert ensure(tmp_path / "new" / "cache", writer) == folder
    assert writer.calls == 1
    inputs, targets = cache.open_arrays(folder)
    assert isinstance(inputs, np.memmap) and not inputs.flags.writeable
    assert inputs.shape == (5, 4, 3) and targets.shape == (5, 2) and inputs.min() == 1
    assert {path.name for path in folder.iterdir()} == {cache.INPUTS, cache.TARGETS, cache.META}
    assert not temporaries(folder.parent)


def test_another_identity_or_name_is_another_folder(tmp_path):
    folders = {ensure(tmp_path), ensure(tmp_path, identity={"seed": 1})}
    folders.add(cache.ensure_folder(tmp_path, "other", IDENTITY, SIZE_BYTES, write))
    assert len(folders) == 3


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other_shape(path: Path) -> None:
    np.save(path, np.ones((5, 3, 4), np.float32))  # as many bytes as before


def other_mark(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprint": "0" * 16}))


DAMAGE = {
    "no meta": (cache.META, Path.unlink),
    "garbled meta": (cache.META, lambda path: path.write_bytes(b'{"fingerprint\xff')),
    "meta of another kind": (cache.META, lambda path: path.write_text("[]")),
    "wrong fingerprint": (cache.META, other_mark),
    "no targets": (cache.TARGETS, Path.unlink),
    "empty inputs": (cache.INPUTS, lambda path: path.write_bytes(b"")),
    "cut inputs": (cache.INPUTS, cut),
    "longer inputs": (cache.INPUTS, lambda path: path.write_bytes(path.read_bytes() + b"0")),
    "another shape": (cache.INPUTS, other_shape),
    "a zip": (cache.INPUTS, lambda path: path.write_bytes(b"PK\x03\x04 and so on")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_rebuilt(tmp_path, damage):
    folder = ensure(tmp_path)
    file, spoil = DAMAGE[damage]
    spoil(folder / file)
    writer = Writer()
    assert ensure(tmp_path, writer) == folder
    assert writer.calls == 1
    assert cache.is_complete(folder, cache.cache_key("toy", IDENTITY))
    assert {path.name for path in folder.iterdir()} == {cache.INPUTS, cache.TARGETS, cache.META}


def test_a_failed_writer_leaves_nothing(tmp_path):
    def fail(folder):
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path, fail)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_disk_without_enough_space(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=SIZE_BYTES - 1))
    with pytest.raises(InputError, match=r"full .*GB needed.*dataset\.cache=/another/folder") as caught:
        ensure(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_while_writing(tmp_path, number):
    def fill_up(folder):
        write(folder)
        raise OSError(number, os.strerror(number))

    with pytest.raises(InputError, match=r"is full .*dataset\.cache=/another/folder"):
        ensure(tmp_path, fill_up)
    assert not temporaries(tmp_path)


def test_space_is_reserved_before_mapped_memory_is_written(tmp_path, monkeypatch):
    """A full disk must be an error of create_array, since a write to mapped memory would kill us."""

    def no_room(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(InputError, match="is full"):
        ensure(tmp_path)


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .*dataset\.cache=/another/folder") as caught:
        ensure(tmp_path / "file" / "cache")
    assert str(tmp_path / "file" / "cache") in str(caught.value)


def test_a_complete_cache_may_be_read_only(tmp_path, monkeypatch):
    folder = ensure(tmp_path)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert ensure(tmp_path) == folder


SCRIPT = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from scalebench.workloads.datasets import cache

    def write(folder):
        with open(sys.argv[2], "a") as log:
            log.write("built\\n")
        time.sleep(float(sys.argv[3]))
        for file in (cache.INPUTS, cache.TARGETS):
            cache.create_array(folder / file, (5, 2), "float32")[:] = 1

    print(cache.ensure_folder(Path(sys.argv[1]), "toy", {"seed": int(sys.argv[4])}, 1000, write))
    """
)


def start_writer(cache_dir: Path, log: Path, build_s: float, seed: int = 0) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(cache_dir), str(log), str(build_s), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(log: Path, lines: int) -> None:
    deadline_s = time.monotonic() + 30
    while not log.exists() or log.read_text().count("\n") < lines:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_leftovers_of_dead_writers_are_removed(tmp_path):
    log = tmp_path / "log"
    cache_dir = tmp_path / "cache"
    writers = [start_writer(cache_dir, log, 60, seed) for seed in (0, 1, 2)]
    try:
        wait_for(log, 3)
        (cache_dir / ".foreign.tmp-1234").mkdir()
        assert len(temporaries(cache_dir)) == 4
        for dead in writers[:2]:
            dead.kill()
            dead.wait()
        folder = ensure(cache_dir)  # seed 0, whose writer is dead
        living = cache.cache_key("toy", {"seed": 2})
        assert cache.is_complete(folder, cache.cache_key("toy", IDENTITY))
        assert sorted(name.partition(".tmp")[0] for name in temporaries(cache_dir)) == [
            ".foreign",
            f".toy-{living}",
        ]
    finally:
        for process in writers:
            process.kill()
            process.communicate()


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


IDENTITY_CHANGES = [{"version": 2}, {"samples": 11}, {"seed": 1}, {"input_dtype": "int8"}, {"details": {"classes": 3}}]


@pytest.mark.parametrize("change", IDENTITY_CHANGES)
def test_changed_files_are_another_folder(tmp_path, change):
    assert dataclasses.replace(TOY, **change).ensure(tmp_path) != TOY.ensure(tmp_path)


@pytest.mark.parametrize("change", [{"chunk": 3}, {"min_pool_bytes": 0}, {"details": {}}])
def test_settings_that_do_not_change_the_files_keep_the_folder(tmp_path, change):
    assert dataclasses.replace(TOY, **change).ensure(tmp_path, workers=1) == TOY.ensure(tmp_path)


@pytest.mark.parametrize(("missing_bytes", "workers"), [(0, [3]), (1, [])])
def test_only_large_datasets_start_processes(tmp_path, monkeypatch, missing_bytes, workers):
    pools = []
    monkeypatch.setattr(cache.ChunkedDataset, "_fill_in_pool", lambda *arguments: pools.append(arguments[-1]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    dataclasses.replace(TOY, chunk=1, min_pool_bytes=TOY.size_bytes + missing_bytes).ensure(tmp_path)
    assert pools == workers


class Counted:
    """A `make` function that logs how often it is pickled for another process."""

    def __init__(self, log):
        self.log = log

    def __getstate__(self):
        with self.log.open("a") as log:
            log.write("sent\n")
        return self.__dict__

    def __call__(self, start: int, count: int):
        return make(start, count)


def test_the_dataset_is_sent_once_to_each_process(tmp_path):
    log = tmp_path / "log"
    folder = dataclasses.replace(TOY, chunk=1, make=Counted(log)).ensure(tmp_path / "cache", workers=2)
    assert np.array_equal(cache.open_arrays(folder)[1], np.arange(10))
    assert log.read_text().splitlines() == ["sent"] * 2


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


POOL_SCRIPT = textwrap.dedent(
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
def test_workers_end_with_their_parent(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(POOL_SCRIPT)
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
    script.write_text(POOL_SCRIPT)
    ended = subprocess.run([sys.executable, script, tmp_path, "die"], capture_output=True, text=True, timeout=60)
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("scalebench.core.errors.InputError: a process that makes dataset slow")
    assert "was killed" in line and str(tmp_path / "cache") in line and "dataset.cache=" in line
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
