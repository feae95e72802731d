"""The cache folder: whole or rebuilt, built once, and errors that name the folder."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.spec import InputError
from scalebench.workloads.datasets import cache

IDENTITY = {"seed": 0}
SIZE_BYTES = 1000


def write(folder: Path, value: float = 1.0) -> None:
    for file, shape in ((cache.INPUTS, (5, 4, 3)), (cache.TARGETS, (5, 2))):
        cache.create_array(folder / file, shape, "float32")[:] = value


class Writer:
    """`write`, counted."""

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


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 127), byte=st.integers(0, 255))
def test_no_damage_to_a_header_raises(tmp_path_factory, position, byte):
    folder = tmp_path_factory.getbasetemp() / "header"
    if not folder.exists():
        shutil.copytree(ensure(tmp_path_factory.mktemp("cache")), folder)
    whole = (folder / cache.INPUTS).read_bytes()
    try:
        (folder / cache.INPUTS).write_bytes(whole[:position] + bytes([byte]) + whole[position + 1 :])
        # Damage to the blanks of a header changes nothing that is read.
        assert cache.is_complete(folder, cache.cache_key("toy", IDENTITY)) in (True, False)
    finally:
        (folder / cache.INPUTS).write_bytes(whole)


def test_a_failed_writer_leaves_nothing(tmp_path):
    def fail(folder):
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path, fail)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_full_disk_seen_beforehand(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=SIZE_BYTES - 1))
    with pytest.raises(InputError, match=r"full .*GB needed.*dataset\.cache=/another/folder") as caught:
        ensure(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_met_while_writing(tmp_path, number):
    def fill_up(folder):
        write(folder)
        raise OSError(number, os.strerror(number))

    with pytest.raises(InputError, match=r"is full .*dataset\.cache=/another/folder"):
        ensure(tmp_path, fill_up)
    assert not temporaries(tmp_path)


def test_room_is_reserved_before_memory_is_written(tmp_path, monkeypatch):
    """A full disk must show as an error of create, since a write to mapped memory would kill us."""

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


def test_a_whole_cache_needs_no_right_to_write(tmp_path, monkeypatch):
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


def builder(cache_dir: Path, log: Path, build_s: float, seed: int = 0) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(cache_dir), str(log), str(build_s), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_race_build_once(tmp_path):
    cache_dir, log = tmp_path / "cache", tmp_path / "log"
    racers = [builder(cache_dir, log, 0.3) for _ in range(2)]
    folders = {racer.communicate(timeout=30)[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0, 0]
    assert len(folders) == 1 and cache.is_complete(Path(folders.pop()), cache.cache_key("toy", IDENTITY))
    assert log.read_text() == "built\n"
    assert not temporaries(cache_dir)


def wait_for(log: Path, lines: int) -> None:
    deadline_s = time.monotonic() + 30
    while not log.exists() or log.read_text().count("\n") < lines:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_leftovers_of_dead_builders_go_and_those_of_living_ones_stay(tmp_path):
    log = tmp_path / "log"
    cache_dir = tmp_path / "cache"
    builders = [builder(cache_dir, log, 60, seed) for seed in (0, 1, 2)]
    try:
        wait_for(log, 3)
        (cache_dir / ".foreign.tmp-1234").mkdir()
        assert len(temporaries(cache_dir)) == 4
        for dead in builders[:2]:
            dead.kill()
            dead.wait()
        folder = ensure(cache_dir)  # seed 0, whose builder is dead
        living = cache.cache_key("toy", {"seed": 2})
        assert cache.is_complete(folder, cache.cache_key("toy", IDENTITY))
        assert sorted(name.partition(".tmp")[0] for name in temporaries(cache_dir)) == [
            ".foreign",
            f".toy-{living}",
        ]
    finally:
        for process in builders:
            process.kill()
            process.communicate()
