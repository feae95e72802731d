"""The search for the largest batch with real processes."""

import os
import signal
import subprocess
import sys

import pytest

from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE, try_folders
from tests.builders.runs import find_run_processes, wait_until

pytestmark = pytest.mark.slow
SEARCH = [sys.executable, "-m", "scalebench", "measure=max_batch", "gpus=2", "dataset.size=30000", "sweep.report=false"]


def search(folder, *words):
    """The row, and what was printed."""
    command = [*SEARCH, *words, f"hydra.run.dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert (folder / RESULT_FILE).exists(), done.stderr
    return read_result(folder / RESULT_FILE), done.stdout


@pytest.mark.real
@pytest.mark.parametrize(
    ("strategy", "start", "limit_bytes"),
    [
        ("ddp_gloo", 4000, 1_200_000_000),
        ("horovod_gloo", 4000, 1_200_000_000),
        ("mirrored", 2000, 1_500_000_000),
        ("multiworker_ring", 1000, 1_500_000_000),
    ],
)
def test_a_framework_finds_its_largest_batch(strategy, start, limit_bytes, tmp_path):
    folder = tmp_path / "run"
    words = [f"strategy={strategy}", f"train.batch_per_device={start}", f"measure.memory_limit_bytes={limit_bytes}"]
    result, said = search(folder, *words)
    assert (result.status, result.reason) == ("ok", None)
    found = result.quality.max_batch
    assert found is not None and found.batch_per_device is not None
    assert (found.bounded_by, found.limit_bytes) == ("memory", limit_bytes)
    fits = [each.batch_per_device for each in found.trials if each.status == "ok"]
    too_large = [each for each in found.trials if each.status == "oom"]
    assert max(fits) == found.batch_per_device < min(each.batch_per_device for each in too_large)
    assert all("out of memory" in str(each.reason) for each in too_large)
    assert f"{strategy} 2 devices  the largest batch is {found.batch_per_device} per device" in said
    assert all(each.rss_anon_bytes_max < limit_bytes for each in found.trials if each.rss_anon_bytes_max is not None)
    assert all(find_run_processes(each) == [] for each in try_folders(folder))


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["ddp_gloo", "mirrored"])
def test_not_even_the_framework_itself_fits(strategy, tmp_path):
    words = [f"strategy={strategy}", "train.batch_per_device=2", "measure.memory_limit_bytes=100000000"]
    result, said = search(tmp_path / "run", *words)
    assert result.status == "oom" and "not even one sample per device fits within 0.1 GB" in str(result.reason)
    assert "oom: not even one sample" in said


def test_ctrl_c_ends_the_try_and_leaves_a_result(tmp_path):
    folder = tmp_path / "run"
    words = ["strategy=simulated", "strategy.options.step_s=60", f"hydra.run.dir={folder}"]
    program = subprocess.Popen([*SEARCH, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: find_run_processes(folder / "try_75"), 120.0)
        os.kill(program.pid, signal.SIGINT)
        assert "cancelled" in program.communicate(timeout=60)[0]
    finally:
        program.kill()
        program.wait()
    assert find_run_processes(folder / "try_75") == []
    assert read_result(folder / RESULT_FILE).status == "cancelled"
    assert program.returncode not in (0, 2)


def test_resumed_it_is_not_searched_again(tmp_path):
    words = ["strategy=simulated", "train.batch_per_device=8000", "measure.max_s=0.1", "measure.min_s=0.0"]
    first, _ = search(tmp_path / "run", *words)
    again, said = search(tmp_path / "run", *words, "resume=true")
    assert again == first and "done before, kept" in said
