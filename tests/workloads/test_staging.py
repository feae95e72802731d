"""Copies of data sets on a disk of the node: made once, whole or not there, and errors that name the stage."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.spec import InputError
from scalebench.workloads import cache, datasets, staging
from scalebench.workloads.source import Source
from tests.helpers import simulated_spec, wait_until

WAIT_S = 60.0
ARRAYS = (cache.INPUTS, cache.TARGETS)


def write(folder: Path) -> None:
    for file, shape in ((cache.INPUTS, (50, 4, 3)), (cache.TARGETS, (50, 2))):
        cache.create(folder / file, shape, "float32")[:] = np.arange(np.prod(shape)).reshape(shape)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return cache.ensure(tmp_path / "shared", "toy", {"seed": 0, "shape": [4, 3]}, 1000, write)


def staged(folder: Path, stage: Path | str, **more: Any) -> Path:
    return staging.staged(folder, str(stage), WAIT_S, **more)


def same(one: Path, other: Path) -> bool:
    return all((one / file).read_bytes() == (other / file).read_bytes() for file in (*ARRAYS, cache.META))


def test_copied_once_and_kept(folder: Path, tmp_path: Path) -> None:
    pieces: list[int] = []
    copy = staged(folder, tmp_path / "disk" / "stage", on_copied=lambda: pieces.append(1))
    assert copy == tmp_path / "disk" / "stage" / folder.name and same(copy, folder) and len(pieces) == 2
    before = os.stat(copy).st_ino
    assert staged(folder, tmp_path / "disk" / "stage", on_copied=lambda: pieces.append(1)) == copy
    assert os.stat(copy).st_ino == before and len(pieces) == 2


def test_the_cache_itself_may_be_the_stage(folder: Path) -> None:
    assert staged(folder, folder.parent) == folder


def test_others_in_the_stage_are_left(folder: Path, tmp_path: Path) -> None:
    other = cache.ensure(tmp_path / "shared", "toy", {"seed": 1}, 1000, write)
    kept = staged(other, tmp_path / "stage")
    (tmp_path / "stage" / "mine.txt").write_text("mine")
    staged(folder, tmp_path / "stage")
    assert same(kept, other) and (tmp_path / "stage" / "mine.txt").read_text() == "mine"


def cut(copy: Path) -> None:
    (copy / cache.INPUTS).write_bytes((copy / cache.INPUTS).read_bytes()[:-8])


def stale(copy: Path) -> None:
    text = (copy / cache.META).read_text()
    (copy / cache.META).write_text(text.replace(copy.name[-16:], "0" * 16))


@pytest.mark.parametrize("spoil", [cut, stale, lambda copy: (copy / cache.META).unlink()], ids=["cut", "stale", "bare"])
def test_a_copy_that_is_not_whole_is_made_anew(folder: Path, tmp_path: Path, spoil: Any) -> None:
    copy = staged(folder, tmp_path / "stage")
    spoil(copy)
    assert staged(folder, tmp_path / "stage") == copy and same(copy, folder)


def test_the_stage_may_be_named_by_a_variable(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_DISK", str(tmp_path / "local"))
    assert staged(folder, "$LOCAL_DISK/data").parent == tmp_path / "local" / "data"
    monkeypatch.delenv("LOCAL_DISK")
    with pytest.raises(InputError, match=r"^hardware.stage=\$LOCAL_DISK/data names a variable that is not set"):
        staged(folder, "$LOCAL_DISK/data")
    with pytest.raises(InputError, match=r"^hardware.stage=data should be a folder from the root on"):
        staged(folder, "data")


RACER = """
    import os, sys, time
    from pathlib import Path
    from scalebench.workloads import staging
    folder, stage, mode = sys.argv[1:]
    def copied():
        print("copied", flush=True)
        if mode == "hang":
            time.sleep(60)
        time.sleep(0.05)
    print(staging.staged(Path(folder), stage, 60.0, copied), flush=True)
"""


def racer(folder: Path, stage: Path, mode: str = "copy") -> subprocess.Popen[str]:
    code = textwrap.dedent(RACER)
    return subprocess.Popen([sys.executable, "-c", code, str(folder), str(stage), mode], stdout=-1, text=True)


def test_of_several_processes_one_copies(folder: Path, tmp_path: Path) -> None:
    racers = [racer(folder, tmp_path / "stage") for _ in range(4)]
    said = [process.communicate(timeout=60)[0].split() for process in racers]
    copy = str(tmp_path / "stage" / folder.name)
    assert sorted(words.count("copied") for words in said) == [0, 0, 0, 2]
    assert [words[-1] for words in said] == [copy] * 4 and same(Path(copy), folder)


def test_a_copier_that_is_killed_leaves_the_copying_to_the_next(folder: Path, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    with racer(folder, stage, "hang") as first:
        assert first.stdout is not None and first.stdout.readline() == "copied\n"
        second = racer(folder, stage)
        first.kill()
    assert second.communicate(timeout=60)[0].split()[-1] == str(stage / folder.name)
    assert same(stage / folder.name, folder)
    assert sorted(path.name for path in stage.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_who_waits_does_so_with_a_limit(folder: Path, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    with racer(folder, stage, "hang") as first:
        assert first.stdout is not None and first.stdout.readline() == "copied\n"
        said = rf"^stage {stage}: another process has held {folder.name}.lock for 0.1 s .* set hardware.stage="
        with pytest.raises(InputError, match=said):
            staging.staged(folder, str(stage), 0.1)
        first.kill()


def test_a_stage_that_is_too_small(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(InputError, match=r"^stage .* is full \(1e-07 GB free, .* GB needed\): set hardware.stage="):
        staged(folder, tmp_path / "stage")


def test_a_stage_that_fills_up_meanwhile(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.raises(InputError, match=r"^stage .*/stage is full \(No space left on device\): set hardware.stage="):
        staged(folder, tmp_path / "stage")
    assert [path.name for path in (tmp_path / "stage").iterdir()] == [f"{folder.name}.lock"]


def test_a_stage_that_cannot_be_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match=r"^stage .*/file cannot be written \(File exists\): set hardware.stage="):
        staged(folder, tmp_path / "file")
    copy = staged(folder, tmp_path / "stage")

    def read_only(*args: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    assert staged(folder, tmp_path / "stage") == copy  # what is there already can be read
    with pytest.raises(InputError, match=r"^stage .*/other cannot be written \(Read-only file system\)"):
        staged(folder, tmp_path / "other")


def test_a_data_set_that_this_node_does_not_see(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^data set .*/nowhere cannot be read on this node \(No such file"):
        staged(tmp_path / "nowhere", tmp_path / "stage")
    (folder / cache.TARGETS).unlink()
    with pytest.raises(InputError, match=r"cannot be read on this node .*: set dataset.cache to a folder that all"):
        staged(folder, tmp_path / "stage")


def test_a_run_reads_from_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = simulated_spec()
    spec.config.dataset.cache, spec.config.hardware.stage = str(tmp_path / "cache"), str(tmp_path / "stage")
    train, _ = datasets.sources(spec, 0, 1)
    assert isinstance(train, Source)
    wait_until(lambda: len(list((tmp_path / "stage").glob("materials-*/inputs.npy"))) == 1, 1.0)
    inputs, _ = datasets.arrays(spec)
    assert isinstance(inputs, np.memmap) and str(inputs.filename).startswith(str(tmp_path / "stage"))
    spec.config.hardware.stage = None
    inputs, _ = datasets.arrays(spec)
    assert isinstance(inputs, np.memmap) and str(inputs.filename).startswith(str(tmp_path / "cache"))
