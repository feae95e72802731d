"""Copies of datasets on a disk of the node: made once, complete or absent, with errors that name the stage."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.core.errors import InputError
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache, node_copy
from scalebench.workloads.source import Source
from tests.builders.runs import simulated_spec

WAIT_S = 60.0


def write(folder: Path) -> None:
    for file, shape in ((cache.INPUTS, (50, 4, 3)), (cache.TARGETS, (50, 2))):
        cache.create_array(folder / file, shape, "float32")[:] = np.arange(np.prod(shape)).reshape(shape)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return cache.ensure_folder(tmp_path / "shared", "toy", {"seed": 0, "shape": [4, 3]}, 1000, write)


def copy_to(folder: Path, stage: Path | str, **more: Any) -> Path:
    return node_copy.copy_to_node(folder, str(stage), WAIT_S, **more)


def is_same(one: Path, other: Path) -> bool:
    return all(
        (one / file).read_bytes() == (other / file).read_bytes() for file in ("inputs.npy", "targets.npy", cache.META)
    )


def test_copied_once_and_kept(folder: Path, tmp_path: Path) -> None:
    chunks: list[int] = []
    stage = tmp_path / "disk" / "stage"
    copy = copy_to(folder, stage, on_copied=lambda: chunks.append(1))
    assert copy == stage / folder.name and is_same(copy, folder) and len(chunks) == 2
    before = os.stat(copy).st_ino
    assert copy_to(folder, stage, on_copied=lambda: chunks.append(1)) == copy
    assert os.stat(copy).st_ino == before and len(chunks) == 2
    assert copy_to(folder, folder.parent) == folder  # the cache itself may be the stage


def test_a_damaged_copy_is_made_anew_and_other_files_are_left(folder: Path, tmp_path: Path) -> None:
    other = cache.ensure_folder(tmp_path / "shared", "toy", {"seed": 1}, 1000, write)
    other_copy, copy = copy_to(other, tmp_path / "stage"), copy_to(folder, tmp_path / "stage")
    (tmp_path / "stage" / "mine.txt").write_text("mine")
    (copy / cache.INPUTS).write_bytes((copy / cache.INPUTS).read_bytes()[:-8])
    assert copy_to(folder, tmp_path / "stage") == copy and is_same(copy, folder)
    assert is_same(other_copy, other) and (tmp_path / "stage" / "mine.txt").read_text() == "mine"


def test_the_stage_may_contain_a_variable(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_DISK", str(tmp_path / "local"))
    assert copy_to(folder, "$LOCAL_DISK/data").parent == tmp_path / "local" / "data"
    monkeypatch.delenv("LOCAL_DISK")
    with pytest.raises(InputError, match=r"^hardware.stage=\$LOCAL_DISK/data has a variable that is not set"):
        copy_to(folder, "$LOCAL_DISK/data")
    with pytest.raises(InputError, match=r"^hardware.stage=data should be an absolute path"):
        copy_to(folder, "data")


COPIER = """
    import sys, time
    from pathlib import Path
    from scalebench.workloads.datasets import node_copy
    folder, stage, mode = sys.argv[1:]
    def on_copied():
        print("copied", flush=True)
        time.sleep(60 if mode == "hang" else 0.05)
    print(node_copy.copy_to_node(Path(folder), stage, 60.0, on_copied), flush=True)
"""


def start_copier(folder: Path, stage: Path, mode: str = "copy") -> subprocess.Popen[str]:
    code = textwrap.dedent(COPIER)
    return subprocess.Popen([sys.executable, "-c", code, str(folder), str(stage), mode], stdout=-1, text=True)


def test_of_several_processes_one_copies(folder: Path, tmp_path: Path) -> None:
    copiers = [start_copier(folder, tmp_path / "stage") for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0].split() for process in copiers]
    copy = str(tmp_path / "stage" / folder.name)
    assert sorted(words.count("copied") for words in outputs) == [0, 0, 2]
    assert [words[-1] for words in outputs] == [copy] * 3 and is_same(Path(copy), folder)


def test_waiting_is_limited_and_a_killed_copier_is_replaced(folder: Path, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    with start_copier(folder, stage, "hang") as first:
        assert first.stdout is not None and first.stdout.readline() == "copied\n"
        line = rf"^stage {stage}: another process has held {folder.name}.lock for 0.1 s .* set hardware.stage="
        with pytest.raises(InputError, match=line):
            node_copy.copy_to_node(folder, str(stage), 0.1)
        second = start_copier(folder, stage)
        first.kill()
    assert second.communicate(timeout=60)[0].split()[-1] == str(stage / folder.name)
    assert is_same(stage / folder.name, folder)
    assert sorted(path.name for path in stage.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_a_stage_that_fills_up(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.raises(InputError, match=r"^stage .*/stage is full \(No space left on device\): set hardware.stage="):
        copy_to(folder, tmp_path / "stage")
    assert [path.name for path in (tmp_path / "stage").iterdir()] == [f"{folder.name}.lock"]


def test_a_dataset_that_this_node_cannot_read(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^dataset .*/nowhere cannot be read on this node \(No such file"):
        copy_to(tmp_path / "nowhere", tmp_path / "stage")
    (folder / cache.TARGETS).unlink()
    with pytest.raises(InputError, match=r"cannot be read on this node .*: set dataset.cache to a folder that all"):
        copy_to(folder, tmp_path / "stage")


def test_a_run_reads_from_the_stage(tmp_path: Path) -> None:
    spec = simulated_spec()
    spec.config.dataset.cache, spec.config.hardware.stage = str(tmp_path / "cache"), str(tmp_path / "stage")
    train, _ = datasets.open_sources(spec, 0, 1)
    assert isinstance(train, Source)
    for stage, place in ((str(tmp_path / "stage"), "stage"), (None, "cache")):
        spec.config.hardware.stage = stage
        inputs, _ = datasets.open_dataset(spec)
        assert isinstance(inputs, np.memmap) and str(inputs.filename).startswith(str(tmp_path / place))
