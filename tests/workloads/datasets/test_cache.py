"""The dataset cache: complete or rebuilt, written once by one of several processes; errors name the folder.
And its copies on a disk of the node: made once, complete or absent, with errors that name the stage."""

import dataclasses
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scalebench.core.errors import InputError
from scalebench.core.spec import DatasetSpec
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache
from scalebench.workloads.source import Source
from tests.builders.runs import simulated_spec, wait_until

IDENTITY = {"seed": 0}
SIZE_BYTES = 1000


def write(folder, value=1.0):
    for file, shape in ((cache.INPUTS, (5, 4, 3)), (cache.TARGETS, (5, 2))):
        cache.create_array(folder / file, shape, "float32")[:] = value


def ensure(cache_dir, writer=write, identity=IDENTITY):
    return cache.ensure_folder(cache_dir, "toy", identity, SIZE_BYTES, writer)


def temporaries(cache_dir):
    return [path.name for path in cache_dir.iterdir() if ".tmp" in path.name]


def test_written_once_and_opened_as_a_map(tmp_path):
    calls = []
    folder = ensure(tmp_path / "new" / "cache")
    assert ensure(tmp_path / "new" / "cache", calls.append) == folder and not calls
    inputs, targets = cache.open_arrays(folder)
    assert isinstance(inputs, np.memmap) and not inputs.flags.writeable
    assert inputs.shape == (5, 4, 3) and targets.shape == (5, 2) and inputs.min() == 1
    assert {path.name for path in folder.iterdir()} == {cache.INPUTS, cache.TARGETS, cache.META}
    assert not temporaries(folder.parent)


DAMAGE = {
    "no meta": (cache.META, Path.unlink),
    "garbled meta": (cache.META, lambda path: path.write_bytes(b'{"fingerprint\xff')),
    "meta of another kind": (cache.META, lambda path: path.write_text("[]")),
    "wrong fingerprint": (
        cache.META, lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprint": "0" * 16})),
    ),
    "no targets": (cache.TARGETS, Path.unlink),
    "empty inputs": (cache.INPUTS, lambda path: path.write_bytes(b"")),
    "cut inputs": (cache.INPUTS, lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "longer inputs": (cache.INPUTS, lambda path: path.write_bytes(path.read_bytes() + b"0")),
    "another shape of as many bytes": (cache.INPUTS, lambda path: np.save(path, np.ones((5, 3, 4), np.float32))),
    "a zip": (cache.INPUTS, lambda path: path.write_bytes(b"PK\x03\x04 and so on")),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_rebuilt(tmp_path, damage):
    folder, calls = ensure(tmp_path), []
    file, spoil = DAMAGE[damage]
    spoil(folder / file)
    assert ensure(tmp_path, lambda folder: calls.append(write(folder))) == folder
    assert len(calls) == 1 and cache.is_complete(folder, cache.cache_key("toy", IDENTITY))
    assert {path.name for path in folder.iterdir()} == {cache.INPUTS, cache.TARGETS, cache.META}


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_failed_writer_leaves_nothing_and_a_complete_cache_may_be_read_only(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path, lambda folder: [write(folder), raising(KeyboardInterrupt())()])
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    folder = ensure(tmp_path)
    monkeypatch.setattr(Path, "mkdir", raising(PermissionError(errno.EACCES, "Permission denied")))
    assert ensure(tmp_path) == folder


def test_waiting_for_another_process_is_one_line_and_has_an_end(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(cache, "NOTICE_AFTER_S", 0.1)
    folder = tmp_path / f"toy-{cache.cache_key('toy', IDENTITY)}"
    with open(f"{folder}.lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=rf"has held {folder.name}.lock for 0.4 s .* set dataset.cache="):
            cache.ensure_folder(tmp_path, "toy", IDENTITY, SIZE_BYTES, write, wait_s=0.4)
    line = f"waiting up to 0.4 s for the process that makes {folder.name}: it holds {folder}.lock"
    assert capfd.readouterr().err == f"scalebench: {line}\n"
    assert ensure(tmp_path) == folder and capfd.readouterr().err == ""


def test_a_disk_without_enough_space(tmp_path, monkeypatch):
    """That it fills up must be an error of create_array, since a write to mapped memory would kill us."""

    def fails(message, cache_dir=tmp_path):
        with pytest.raises(InputError, match=rf"{message}.*dataset\.cache=/another/folder") as caught:
            ensure(cache_dir)
        assert str(cache_dir) in str(caught.value) and "\n" not in str(caught.value)
        assert not temporaries(tmp_path)

    (tmp_path / "file").write_text("")
    fails("cannot be written", tmp_path / "file" / "cache")
    for number in (errno.ENOSPC, errno.EDQUOT):
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", raising(OSError(number, os.strerror(number))))
            fails("is full")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=SIZE_BYTES - 1))
    fails("full .*GB needed")


SCRIPT = """
import sys, time
from pathlib import Path
from scalebench.workloads.datasets import cache

def write(folder):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    time.sleep(60)

cache.ensure_folder(Path(sys.argv[1]), "toy", {"seed": 0}, 1000, write)
"""


def test_leftovers_of_a_dead_writer_are_removed(tmp_path):
    log, cache_dir = tmp_path / "log", tmp_path / "cache"
    writer = subprocess.Popen([sys.executable, "-c", SCRIPT, str(cache_dir), str(log)])
    wait_until(log.exists)
    writer.kill()
    writer.wait()
    assert len(temporaries(cache_dir)) == 1
    assert cache.is_complete(ensure(cache_dir), cache.cache_key("toy", IDENTITY)) and not temporaries(cache_dir)


def make(start, count):
    rows = np.arange(start, start + count)
    return np.repeat(rows[:, None], 3, axis=1), rows


TOY = cache.ChunkedDataset(DatasetSpec("toy", size=10, seed=0), 1, (3,), (), 4, make, "uint8", "int64")


def test_changed_files_are_another_folder(tmp_path):
    """Settings that do not change the files keep the folder."""
    folder = TOY.ensure(tmp_path)
    specs = [{"spec": dataclasses.replace(TOY.spec, **change)} for change in ({"name": "b"}, {"size": 11}, {"seed": 1})]
    changes = *specs, {"version": 2}, {"input_dtype": "i1"}, {"details": {"a": 3}}
    folders = {dataclasses.replace(TOY, **change).ensure(tmp_path) for change in changes}
    assert len(folders - {folder}) == len(changes)
    for change in ({"chunk": 3}, {"details": {}}):
        assert dataclasses.replace(TOY, **change).ensure(tmp_path) == folder


WAIT_S = 60.0
CACHED = (cache.INPUTS, cache.TARGETS, cache.META)


def write_more(folder):
    for file, shape in ((cache.INPUTS, (50, 4, 3)), (cache.TARGETS, (50, 2))):
        cache.create_array(folder / file, shape, "float32")[:] = np.arange(np.prod(shape)).reshape(shape)


@pytest.fixture
def folder(tmp_path):
    return cache.ensure_folder(tmp_path / "shared", "toy", {"seed": 0, "shape": [4, 3]}, 1000, write_more)


def copy_to(folder, stage, **more):
    return cache.copy_to_node(folder, str(stage), WAIT_S, **more)


def is_same(one, other):
    return all((one / file).read_bytes() == (other / file).read_bytes() for file in CACHED)


def test_copied_once_and_kept(folder, tmp_path):
    chunks = []
    stage = tmp_path / "disk" / "stage"
    copy = copy_to(folder, stage, on_copied=lambda: chunks.append(1))
    assert copy == stage / folder.name and is_same(copy, folder) and len(chunks) == 2
    before = os.stat(copy).st_ino
    assert copy_to(folder, stage, on_copied=lambda: chunks.append(1)) == copy
    assert os.stat(copy).st_ino == before and len(chunks) == 2
    assert copy_to(folder, folder.parent) == folder  # the cache itself may be the stage


def test_the_stage_may_contain_a_variable(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_DISK", str(tmp_path / "local"))
    assert copy_to(folder, "$LOCAL_DISK/data").parent == tmp_path / "local" / "data"
    monkeypatch.delenv("LOCAL_DISK")
    with pytest.raises(InputError, match=r"^hardware.node_copy=\$LOCAL_DISK/data has a variable that is not set"):
        copy_to(folder, "$LOCAL_DISK/data")
    with pytest.raises(InputError, match=r"^hardware.node_copy=data should be an absolute path"):
        copy_to(folder, "data")


def test_a_stage_that_fills_up_and_a_dataset_that_this_node_cannot_read(folder, tmp_path, monkeypatch):
    def fails(message, source=folder):
        with pytest.raises(InputError, match=message):
            copy_to(source, tmp_path / "stage")

    with monkeypatch.context() as patch:
        patch.setattr(cache.os, "fsync", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        fails(r"^node copy .*/stage is full \(No space left on device\): set hardware.node_copy=")
    assert [path.name for path in (tmp_path / "stage").iterdir()] == [f"{folder.name}.lock"]
    with open(tmp_path / "stage" / f"{folder.name}.lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"^node copy .*/stage: another process has held .*lock for 0.1 s"):
            cache.copy_to_node(folder, str(tmp_path / "stage"), 0.1)
    fails(r"^dataset .*/nowhere cannot be read on this node \(No such file", tmp_path / "nowhere")
    (folder / cache.TARGETS).unlink()
    fails("cannot be read on this node .*: set dataset.cache to a folder that all")


def test_a_run_reads_from_the_stage(tmp_path):
    spec = simulated_spec()
    spec.config.dataset.cache, spec.config.hardware.node_copy = str(tmp_path / "cache"), str(tmp_path / "stage")
    train, _ = datasets.open_sources(spec, 0, 1)
    assert isinstance(train, Source)
    for stage, place in ((str(tmp_path / "stage"), "stage"), (None, "cache")):
        spec.config.hardware.node_copy = stage
        inputs, _ = datasets.open_dataset(spec)
        assert isinstance(inputs, np.memmap) and str(inputs.filename).startswith(str(tmp_path / place))
