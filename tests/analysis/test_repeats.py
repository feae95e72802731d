"""Repeats of one configuration as one row: known figures, and intervals that cover the truth as often as promised."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scalebench.analysis import rows
from scalebench.analysis.columns import FRAME_COLUMNS
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import make_row
from scalebench.core.result import MonitorRecord
from scalebench.core.stats.log_means import mean_of_repeats
from tests.builders.frames import pool_results
from tests.builders.runs import rank, record


def run_of(repeat, seconds, minute=None, **changes):
    """Launches of one sweep start ten minutes after each other; within a repeat, a minute."""
    at = 10 * repeat + changes.get("gpus", 1) if minute is None else minute
    started_at = f"2026-01-01T{at // 60:02}:{at % 60:02}:00+00:00"
    name = f"{changes.get('strategy', 'ddp')}-{changes.get('gpus', 1)}-{repeat}-{at}"
    return record(**{"repeat": repeat, "block_s": seconds, "started_at": started_at, "run_id": name, **changes})


def rows_of(results):
    """Null as None."""
    table = pool_results(results, [Path(f"/runs/{number}") for number in range(len(results))])
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]


T = {3: 4.30265}
NAMES = ("sync_exposed_s_low", "sync_exposed_s", "sync_exposed_s_high")


def test_repeats_that_were_not_interleaved_are_independent():
    """All of one before all of the other: what drifted meanwhile cancels nowhere."""
    seconds = (0.1, 0.12, 0.11)
    made = [
        run_of(r, s, minute=start + r, gpus=gpus) for gpus, start in ((1, 0), (2, 30)) for r, s in enumerate(seconds)
    ]
    _, two = rows_of(made)
    a, b = (mean_of_repeats([samples / s for s in seconds]) for samples in (40, 20))
    limits = [two[f"speedup_self{end}"] for end in ("_low", "", "_high")]
    expected = a.minus(b).to_estimate()
    assert limits == pytest.approx([expected.low, 2, expected.high], rel=1e-3) and expected.low < 1.7


def test_a_failed_repeat_leaves_the_other_pairs():
    made = [run_of(r, 0.1 + 0.01 * r, gpus=g) for r in range(4) for g in (1, 2)]
    made[5] = run_of(2, 0.5, gpus=2, status="failed")
    _, two, failed = rows_of(made)
    assert two["repeats"] == 3 and two["speedup_self_low"] == pytest.approx(2) == two["speedup_self_high"]
    assert (failed["status"], failed["repeats"], failed["speedup_self"]) == ("failed", 1, None)
    made = [run_of(r, 0.1, status="failed", reason=reason) for r, reason in enumerate(("a", "b", "a"))]
    assert [(row["reason"], row["repeats"]) for row in rows_of(made)] == [("a", 2), ("b", 1)]


def test_one_repeat_on_either_side_gives_a_ratio_of_means_without_limits():
    seconds = (0.1, 0.12, 0.11)
    mean = math.prod(seconds) ** (1 / 3)
    for ones, twos, speedup in ((1, 3, 2 * 0.1 / mean), (3, 1, 2 * mean / 0.1)):
        sides = ((1, seconds[:ones]), (2, seconds[:twos]))
        made = [run_of(r, s, gpus=gpus) for gpus, of_side in sides for r, s in enumerate(of_side)]
        _, two = rows_of(made)
        assert two["speedup_self"] == pytest.approx(speedup, rel=1e-4) and two["speedup_self_low"] is None
        assert two["interval_over"] == ("repeats" if twos > 1 else "blocks")


def test_other_columns_are_merged_by_their_kind():
    made = [run_of(r, 0.1 + 0.001 * r) for r in range(3)]
    for r, result in enumerate(made):
        result.flags = [["oversubscribed"], [], ["hot", "oversubscribed"]][r]
        result.phases.wall_s, result.scale.backend_used = [3.0, 4.0, 8.0][r], ["gloo", "nccl", "gloo"][r]
        result.monitor = MonitorRecord(sm_clock_mhz_min=[900.0, 800.0, 850.0][r], gpu_util_mean=[None, 0.5, 0.7][r])
        result.ranks[0].rss_peak_bytes, result.ranks[0].peak_memory_bytes = [10, 30, 20][r], [None]
    (row,) = rows_of(made)
    known = {"flags": "oversubscribed hot", "wall_s": 5.0, "backend_used": "gloo nccl", "sm_clock_mhz_min": 800.0}
    known |= {"gpu_util_mean": 0.6, "rss_peak_bytes": 30, "peak_memory_bytes": None, "seed": 0, "steady": True}
    assert {name: row[name] for name in known} == pytest.approx(known)


@pytest.mark.parametrize("repeat_count", [2, 3])
def test_limits_over_blocks_are_replaced_by_limits_over_repeats(monkeypatch, repeat_count):
    """A figure of the probes, which may be negative: its mean, and Student's t over repeats from three on."""
    exposed, of_run = (-0.01, 0.02, 0.05)[:repeat_count], make_row

    def probed(result, *rest):
        value = exposed[result.scale.repeat]
        return of_run(result, *rest) | dict(zip(NAMES, (value - 0.001, value, value + 0.001), strict=True))

    monkeypatch.setattr(rows, "make_row", probed)
    (pooled_row,) = rows_of([run_of(r, 0.1) for r in range(repeat_count)])
    low, value, high = (pooled_row[name] for name in NAMES)
    assert value == pytest.approx(np.mean(exposed))
    if repeat_count == 2:
        limits = {name for name in FRAME_COLUMNS if name.endswith(("_low", "_high")) and "throughput" not in name}
        assert {pooled_row[name] for name in limits} == {None}
    else:
        assert [low, high] == pytest.approx([0.02 - T[3] * 0.03 / 3**0.5, 0.02 + T[3] * 0.03 / 3**0.5], rel=1e-5)


def test_a_baseline_of_the_own_cohort_goes_before_another_of_the_repeat():
    """The bare baseline takes turns in both cohorts of each repeat; the second one runs on half the machine."""
    made = []
    for r in range(3):
        for minute, (name, cohort, slow) in enumerate(
            [("bare_torch", "x", 1.0), ("ddp", "x", 1.0), ("bare_torch", "y", 2.0), ("horovod", "y", 2.0)]
        ):
            rounds = list(range(8))
            ranks = [rank(0, [0.1 * slow] * 8, block_rounds=rounds, block_started_at_s=[100.0 * n for n in rounds])]
            made.append(run_of(r, 0.1, minute=10 * r + minute, strategy=name, ranks=ranks, cohort=f"{cohort}{r}"))
    for repeats in (1, 3):
        _, ddp, horovod = rows_of(made[: 4 * repeats])
        assert ddp["speedup_bare"] == pytest.approx(1) == horovod["speedup_bare"]
        assert horovod["throughput_samples_per_s"] == pytest.approx(ddp["throughput_samples_per_s"] / 2)


def test_single_repeats_of_different_numbers_have_a_ratio(tmp_path):
    """As where a sweep was stopped, and the folders of others were removed."""
    runs = [record("bare_torch", 1, repeat=0, run_id="a"), record("ddp", 2, repeat=3, run_id="b")]
    configurations = Configurations([rows.summarize_run(run, tmp_path / run.run_id) for run in runs])
    assert math.isfinite(configurations.estimate_ratio(*configurations.rows).mean)
