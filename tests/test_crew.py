"""Records read by several processes: the same figures in the same order as by one, whatever becomes of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from scalebench import crew
from scalebench.frame import load
from scalebench.rows import figures_of
from scalebench.run_folder import RESULT_FILE
from scalebench.spec import HardwareSpec
from tests import sweeps
from tests.helpers import rank, record

WILD = record(gpus=2, ranks=[rank(k, [0.01] * 31 + [50.0]) for k in range(2)])  # its interval has no upper limit
PLACED = record(hardware=HardwareSpec("cpu", device_ids=[3, 1], bind="far", environment={"B": "2", "A": "é"}))
KINDS = [sweeps.run("ddp_gloo", 2), sweeps.failed(), WILD, PLACED, record(block_s=None), sweeps.run("bare_torch", 1)]


def test_figures_survive_the_way_between_processes() -> None:
    numbers: dict[str, int] = {}
    keys: list[str] = []
    lines = []
    for result in [*KINDS, *KINDS]:
        figures = figures_of(result, Path("/runs/é"))
        lines.append(json.dumps(crew.packed(figures, numbers)))
        assert crew.unpacked(json.loads(lines[-1]), keys) == figures
    assert len(lines[6]) + len(figures.keys[0]) < len(lines[0]), "keys are told once"
    assert crew.unpacked(json.loads(json.dumps(crew.packed("why", {}))), []) == "why"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Of runs, one of which cannot be read; so few that two processes would not be started for them."""
    sweeps.write(tmp_path / "sweep", KINDS)
    (tmp_path / "sweep" / "3" / RESULT_FILE).write_text("{")
    monkeypatch.setattr(crew, "usable_cpus", lambda: [0, 1])
    monkeypatch.setattr(crew, "FILES_EACH", 3)
    return [tmp_path / "sweep" / str(number) / RESULT_FILE for number in range(len(KINDS))]


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each process was asked for."""
    counts: list[int] = []
    ask = crew._ask

    def counted(share: Any) -> bytes:
        counts.append(len(share))
        return ask(share)

    monkeypatch.setattr(crew, "_ask", counted)
    return counts


def test_two_processes_say_what_one_says(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = asked(monkeypatch)
    monkeypatch.setattr(crew, "read", lambda file: pytest.fail("nothing is left to read here"))
    together = list(crew.read_all(files))
    monkeypatch.undo()
    assert together == [crew.read(file) for file in files] and counts == [3, 3]
    assert [isinstance(answer, str) for answer in together].index(True) == 3


def test_few_files_are_read_here(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = asked(monkeypatch)
    assert len(list(crew.read_all(files[:5]))) == 5 and counts == []
    monkeypatch.setattr(crew, "usable_cpus", lambda: [0])
    assert len(list(crew.read_all(files))) == 6 and counts == []


@pytest.mark.parametrize("trouble", ["no program", "killed", "cut short", "other version"])
def test_what_a_process_leaves_out_is_read_here(
    trouble: str, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = crew._ask(files[::2])
    if trouble == "cut short":
        answers = iter([whole[: len(whole) // 2], b""])
        monkeypatch.setattr(crew, "_ask", lambda share: next(answers))
    else:
        program = tmp_path / "python"
        if trouble != "no program":
            program.write_text(f"#!/bin/sh\n{'kill -9 $$' if trouble == 'killed' else 'echo null; exit 1'}\n")
            program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
    assert list(crew.read_all(files)) == [crew.read(file) for file in files]


def test_the_folder_that_one_stands_in_is_not_on_its_path(files: list[Path], tmp_path: Path) -> None:
    """Other programs' modules may lie there."""
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    assert os.getcwd() == str(tmp_path) and crew._ask(files[:1]).endswith(b"\nnull\n")


def test_a_frame_does_not_tell_how_it_was_read(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    files[3].unlink()
    (files[3].parent / "other").mkdir()
    sweeps.write(files[3].parents[1] / "more", [sweeps.run("ddp_gloo", 4)])
    counts = asked(monkeypatch)
    together = load(files[0].parents[1])
    assert counts == [3, 3]
    monkeypatch.setattr(crew, "FILES_EACH", 100)
    assert together.equals(load(files[0].parents[1])) and counts == [3, 3]
