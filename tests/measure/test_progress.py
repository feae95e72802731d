"""progress<k>.json is written at once on a new phase, rarely within one, and is always complete."""

import os
import time
from types import SimpleNamespace

import pytest

from scalebench.core.run_folder import progress_path
from scalebench.measure import progress
from scalebench.measure.progress import ProgressFile, RankProgress, read_progress, rss_peak_bytes
from scalebench.measure.session import Session
from tests.builders.runs import rank, simulated_spec
from tests.builders.sweeps import make_curve


@pytest.fixture
def now(monkeypatch):
    clock = SimpleNamespace(s=50.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.s)
    monkeypatch.setattr(time, "time", lambda: 1000.0 + clock.s)
    return clock


def test_a_new_phase_is_written_at_once_and_begins_from_nothing(now, tmp_path):
    file = ProgressFile(tmp_path, 3, 77)
    assert read_progress(tmp_path, 3) is None
    file.update(5, 50, 1.0, 1.5, "mse 0.01")
    current = read_progress(tmp_path, 3)
    assert (current.epoch, current.metric, current.samples_per_s) == (1.5, "mse 0.01", 50.0)
    file.enter_phase("setup")
    assert read_progress(tmp_path, 3) == RankProgress(3, 77, "setup", 1050.0)
    file.enter_phase("measure", 30.0)
    assert read_progress(tmp_path, 3) == RankProgress(3, 77, "measure", 1050.0, limit_s=30.0)
    assert os.listdir(tmp_path) == ["progress3.json"]
    ProgressFile(tmp_path, 0, 77).update(1, 10, 0.0)
    current = read_progress(tmp_path, 0)
    assert (current.steps, current.samples_per_s) == (1, None), "without time there is no throughput"


def test_progress_within_a_phase_is_written_at_most_twice_a_second(now, tmp_path):
    file = ProgressFile(tmp_path, 0, 77)
    file.enter_phase("measure", 30.0)
    now.s += progress.WRITE_INTERVAL_S / 2
    file.update(10, 100, 0.2)
    assert read_progress(tmp_path, 0) == RankProgress(0, 77, "measure", 1050.0, limit_s=30.0)
    now.s += progress.WRITE_INTERVAL_S / 2
    for steps, samples, elapsed_s in ((20, 200, 0.5), (30, 300, 0.6)):
        file.update(steps, samples, elapsed_s)
        assert read_progress(tmp_path, 0) == RankProgress(0, 77, "measure", 1050.5, 20, 400.0, 0.5, 30.0)


def test_an_unreadable_file_is_no_progress(tmp_path):
    for text in ("", "{", "[]", "3", '{"rank": 0}', '{"rank": 0, "new": 1}'):
        progress_path(tmp_path, 0).write_text(text)
        assert read_progress(tmp_path, 0) is None


def test_each_write_updates_the_peak_of_memory(tmp_path):
    file = ProgressFile(tmp_path, 0, 77)
    assert file.rss_anon_peak_bytes is None
    file.enter_phase("setup")
    before = file.rss_anon_peak_bytes
    assert 1 << 20 < before <= rss_peak_bytes()
    held = bytearray(os.urandom(1 << 16) * 1024)  # 64 MiB, each page of its own
    file.enter_phase("measure")
    during = file.rss_anon_peak_bytes
    assert during >= before + (32 << 20)
    del held
    file.enter_phase("close")
    assert file.rss_anon_peak_bytes == during, "it is a peak"


def test_a_session_reports_the_epoch_and_metric_of_its_training(now, tmp_path):
    file = ProgressFile(tmp_path, 0, 77)
    session = Session(simulated_spec(), SimpleNamespace(spec=simulated_spec()), rank(), file)
    source = SimpleNamespace(steps_per_epoch=50)
    session._report_training(SimpleNamespace(steps=75, samples=750, train_s=3.0, train=source, curve=[]))
    current = read_progress(tmp_path, 0)
    assert (current.steps, current.epoch, current.metric) == (75, 1.5, None)
    now.s += progress.WRITE_INTERVAL_S
    points = make_curve([0.5, 0.25])
    session._report_training(SimpleNamespace(steps=100, samples=1000, train_s=4.0, train=source, curve=points))
    current = read_progress(tmp_path, 0)
    assert (current.epoch, current.metric, current.samples_per_s) == (2.0, "mse 0.25", 250.0)
