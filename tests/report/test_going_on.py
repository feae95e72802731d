"""Runs without a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalebench.report.report_data import find_unfinished_runs
from scalebench.spec import write_spec
from tests.helpers import null_spec
from tests.sweeps import sweep


def begun(folder: Path, **progress: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_spec(null_spec(2), folder)
    said = {"rank": 0, "pid": 1, "phase": "warmup", "at_s": 1_800_000_000.0, **progress}
    (folder / f"progress{said['rank']}.json").write_text(json.dumps(said))


def test_the_last_sign_of_any_rank(tmp_path: Path) -> None:
    sweep(tmp_path, ["ddp_gloo"], gpus=(1,))
    write_spec(null_spec(1), tmp_path / "0")
    begun(tmp_path / "7")
    begun(tmp_path / "7", rank=1, phase="measure", at_s=1_800_000_060.0)
    (found,) = find_unfinished_runs([tmp_path])
    assert found.folder == tmp_path / "7" and (found.gpus, found.phase) == ("2", "measure")
    assert found.tags == {"model": "materials_cnn", "strategy": "null", "hardware": "cpu"}
    assert found.last_sign == "2027-01-15 08:01:00"
    assert list(find_unfinished_runs([tmp_path / "0" / "result.json"])) == []


@pytest.mark.parametrize("at_s", ["soon", None, 1e300, -1e300, {}])
def test_progress_may_say_anything(tmp_path: Path, at_s: object) -> None:
    begun(tmp_path / "7", at_s=at_s)
    (found,) = find_unfinished_runs([tmp_path])
    assert found.last_sign == ""


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"config": {"model": 3}}', '{"config": {"strategy": {"name": null}}}']
)
def test_a_spec_may_be_half_written(tmp_path: Path, content: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "spec.json").write_text(content)
    (found,) = find_unfinished_runs([tmp_path])
    assert (found.tags, found.gpus, found.phase, found.last_sign) == ({}, "", "", "")
