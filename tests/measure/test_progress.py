"""progress<k>.json: written at once on a new phase, rarely within one, and never half."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebench.core.run_folder import progress_path
from scalebench.measure import progress
from scalebench.measure.progress import Progress, ProgressFile, read_progress, rss_peak_bytes
from scalebench.measure.session import Session
from tests.builders.runs import rank, simulated_spec
from tests.builders.sweeps import curve


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(s=50.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.s)
    monkeypatch.setattr(time, "time", lambda: 1000.0 + clock.s)
    return clock


def test_a_new_phase_is_written_at_once(now: SimpleNamespace, tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, 3, 77)
    assert read_progress(tmp_path, 3) is None
    file.phase("setup")
    assert read_progress(tmp_path, 3) == Progress(3, 77, "setup", 1050.0)
    file.phase("measure", 30.0)
    assert read_progress(tmp_path, 3) == Progress(3, 77, "measure", 1050.0, limit_s=30.0)
    assert os.listdir(tmp_path) == ["progress3.json"]


def test_updates_are_at_most_two_a_second(now: SimpleNamespace, tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, 0, 77)
    file.phase("measure", 30.0)
    now.s += progress.INTERVAL_S / 2
    file.update(10, 100, 0.2)
    seen = read_progress(tmp_path, 0)
    assert seen is not None and (seen.steps, seen.at_s) == (0, 1050.0)
    now.s += progress.INTERVAL_S / 2
    file.update(20, 200, 0.5)
    seen = read_progress(tmp_path, 0)
    assert seen == Progress(0, 77, "measure", 1050.5, 20, 400.0, 0.5, 30.0)
    file.update(30, 300, 0.6)
    assert read_progress(tmp_path, 0) == seen


def test_no_time_no_throughput(now: SimpleNamespace, tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, 0, 77)
    file.update(1, 10, 0.0)
    seen = read_progress(tmp_path, 0)
    assert seen is not None and seen.samples_per_s is None and seen.steps == 1


def test_a_new_phase_begins_from_nothing(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, 0, 77)
    file.update(5, 50, 1.0)
    file.phase("evaluate")
    seen = read_progress(tmp_path, 0)
    assert seen is not None and (seen.steps, seen.samples_per_s, seen.elapsed_s) == (0, None, 0.0)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"rank": 0}', '{"rank": 0, "new": 1}'])
def test_what_is_no_progress_is_none(text: str, tmp_path: Path) -> None:
    progress_path(tmp_path, 0).write_text(text)
    assert read_progress(tmp_path, 0) is None


def test_memory_is_looked_at_with_each_write(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, 0, 77)
    assert file.rss_anon_peak_bytes is None
    file.phase("setup")
    before = file.rss_anon_peak_bytes
    assert before is not None and 1 << 20 < before <= rss_peak_bytes()
    held = bytearray(os.urandom(1 << 16) * 1024)  # 64 MiB, each page of its own
    file.phase("measure")
    during = file.rss_anon_peak_bytes
    assert during is not None and during >= before + (32 << 20)
    del held
    file.phase("close")
    assert file.rss_anon_peak_bytes == during, "it is a peak"


def test_a_training_tells_its_epoch_and_metric(now: SimpleNamespace, tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, 0, 77)
    file.update(20, 200, 0.5, 1.5, "mse 0.01")
    seen = read_progress(tmp_path, 0)
    assert seen is not None and (seen.epoch, seen.metric) == (1.5, "mse 0.01")
    file.phase("probes")
    seen = read_progress(tmp_path, 0)
    assert seen is not None and (seen.epoch, seen.metric) == (None, None)


def test_a_session_tells_how_far_its_training_is(now: SimpleNamespace, tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, 0, 77)
    session = Session(simulated_spec(), None, rank(), file)  # type: ignore[arg-type]
    source = SimpleNamespace(steps_per_epoch=50)
    session._report_training(SimpleNamespace(updates=75, samples=750, train_s=3.0, train=source, curve=[]))  # type: ignore[arg-type]
    seen = read_progress(tmp_path, 0)
    assert seen is not None and (seen.steps, seen.epoch, seen.metric) == (75, 1.5, None)
    now.s += progress.INTERVAL_S
    points = curve([0.5, 0.25])
    session._report_training(SimpleNamespace(updates=100, samples=1000, train_s=4.0, train=source, curve=points))  # type: ignore[arg-type]
    seen = read_progress(tmp_path, 0)
    assert seen is not None and (seen.epoch, seen.metric, seen.samples_per_s) == (2.0, "mse 0.25", 250.0)
