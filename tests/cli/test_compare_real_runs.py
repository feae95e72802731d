"""`scalebench compare` on runs of the real program: the simulated strategy, made slower by a known share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEP_S = 0.05  # long beside what waking up late costs on a busy machine
SLOWER_S = 0.055  # by 10 %
SHORT = (
    "strategy=simulated hardware=cpu gpus=1 measure=quick measure.min_s=0 measure.max_s=1.5 measure.block_s=0.05 "
    "measure.warmup_steps=2 measure.warmup_max_s=0.1 measure.probes=false measure.monitor=false "
    "measure.evaluate=false measure.repeats=3 dataset.size=1000 sweep.report=false"
).split()


def scalebench(*words):
    return subprocess.run(
        [sys.executable, "-m", "scalebench", *words], env=os.environ, capture_output=True, text=True, timeout=300
    )


def sweep(folder, step_s):
    done = scalebench("--multirun", *SHORT, f"strategy.options.step_s={step_s}", f"hydra.sweep.dir={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(Path(folder).glob("*/result.json"))) == 3


@pytest.mark.slow
def test_a_slow_down_of_10_percent_is_found_and_the_same_sweep_is_not(tmp_path):
    sweep("before", STEP_S)
    sweep("again", STEP_S)
    sweep("after", SLOWER_S)
    gate = ("--threshold", "2%", "--ignore", "strategy.options.step_s")

    same = scalebench("compare", "before", "before", *gate)
    assert same.returncode == 0 and "both sides the same runs" in same.stdout
    again = scalebench("compare", "before", "again", *gate)
    assert again.returncode == 0, again.stdout
    single = scalebench("compare", "before/0", "again/0", *gate)
    assert single.returncode == 6 and "one repeat each gives no verdict" in single.stdout
    assert scalebench("compare", "before/0", "again/0").returncode == 0
    results = scalebench("compare", "before", "after", *gate)
    assert results.returncode == 3, results.stdout + results.stderr
    assert "Welch's t, 3 and 3 repeats" in results.stdout and "REGRESSION" in results.stdout
    assert "strategy.options.step_s: 0.05, 0.055 (1 of 1 pairs)" in results.stdout

    refused = scalebench("compare", "before", "after", "--threshold", "2%")
    assert refused.returncode == 4 and "closest rows differ in strategy.options.step_s" in refused.stdout
    by = scalebench("compare", "before", "after", "--by", "strategy.options.step_s", "--base", "0.05")
    assert by.returncode == 0 and "0.055 over 0.05" in by.stdout

    assert scalebench("compare", "--save", "main", "before").returncode == 0
    assert scalebench("compare", "--against", "main", "after", *gate).returncode == 3
    assert scalebench("compare", "--against", "main", "again", *gate).returncode == 0
