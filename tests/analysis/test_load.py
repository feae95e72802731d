"""load: the same columns and types for every record, and figures that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import scalebench
from scalebench.analysis import throughput
from scalebench.analysis.load import frame_of_results, load
from scalebench.analysis.read_runs import find_results
from scalebench.core.errors import InputError
from scalebench.core.result import MonitorRecord, Quality, Result, write_result
from scalebench.core.spec import MeasureSpec, TrainSpec
from tests.builders.runs import rank, record

# DESIGN.md's list, in its order. Later work adds columns at the end.
DESIGN = """
run_id, started_at, status, reason, path, fingerprint, repeat, seed, model, dataset, strategy, framework,
framework_version, backend_used, hardware, gpus, nodes, processes, scaling, batch_per_device, global_batch, precision,
data_format, feed, model_params, gradient_bytes, flops_per_sample, throughput_samples_per_s, throughput_low,
throughput_high, interval_over, step_s, epoch_s, steps_per_epoch, launch_s, setup_s, warmup_s, warmup_steps,
measured_s, measured_steps, wall_s, steady, flags, baseline_self_id, baseline_bare_id, speedup_self, speedup_self_low,
speedup_self_high, speedup_bare, speedup_bare_low, speedup_bare_high, efficiency_self, efficiency_self_low,
efficiency_self_high, efficiency_bare, efficiency_bare_low, efficiency_bare_high, mfu, sync_isolated_s,
sync_exposed_s, sync_exposed_share, sync_per_epoch_s, imbalance_s, data_share, forward_s, backward_s,
optimizer_s, gpu_util_mean, gpu_power_w_mean, energy_j_per_sample, peak_memory_bytes, sm_clock_mhz_min,
mem_clock_mhz_min, throttle_reasons, cpu_util_mean, rss_peak_bytes, final_loss, metric_name, metric, time_to_target_s
"""
COLUMNS = DESIGN.replace(",", " ").split()
FAILED = record(gpus=2, status="failed", block_s=None, run_id="bad")


def of(*results: Result) -> list[dict[str, Any]]:
    """Rows as dicts, null as None."""
    table = frame_of_results(results, [Path(f"/runs/{i}") for i in range(len(results))])
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]


def test_the_frame_starts_with_the_documented_columns() -> None:
    assert list(frame_of_results([record()], [Path("x")]).columns)[: len(COLUMNS)] == COLUMNS


@pytest.mark.parametrize("results", [[FAILED], [record(status="unsupported", ranks=[], reason=None)], []])
def test_column_types_do_not_depend_on_the_rows(results: list[Result]) -> None:
    full = frame_of_results([record(), record(gpus=2)], [Path("a"), Path("b")])
    table = frame_of_results(results, [Path("x")] * len(results))
    assert table.dtypes.to_dict() == full.dtypes.to_dict()
    kinds = {name: str(kind) for name, kind in full.dtypes.items()}
    assert {kinds[name] for name in ("run_id", "reason", "flags", "throttle_reasons")} == {"string"}
    assert {kinds[name] for name in ("gpus", "model_params", "measured_steps", "rss_peak_bytes")} == {"Int64"}
    assert {kinds[name] for name in ("throughput_samples_per_s", "speedup_self", "mfu", "final_loss")} == {"Float64"}
    assert kinds["steady"] == "boolean"


def test_figures_of_a_run() -> None:
    changes = {
        "quality": Quality(0.25, "mse", 0.125, {"mse": 0.125}),
        "monitor": MonitorRecord(cpu_util_mean=0.75, throttle_reasons=["hot", "power"]),
    }
    ranks = [
        rank(k, [0.1] * 20, rss_peak_bytes=100 + k, peak_memory_bytes=[None, 7 * k], warmup_block_steps=3,
             warmup_block_s=[1.0, 1.0])
        for k in range(2)
    ]  # fmt: skip
    (row,) = of(record(gpus=2, ranks=ranks, **changes))
    known = {
        "run_id": "ddp-2-0", "status": "ok", "reason": None, "path": "/runs/0", "strategy": "ddp", "gpus": 2,
        "batch_per_device": 10, "global_batch": 20, "model": "materials_cnn", "dataset": "materials",
        "interval_over": "blocks", "steps_per_epoch": 100, "launch_s": 0.5, "setup_s": None, "measured_s": 3.2,
        "wall_s": 5.0, "warmup_steps": 6, "measured_steps": 40, "steady": True, "rss_peak_bytes": 101,
        "peak_memory_bytes": 7, "final_loss": 0.25, "metric_name": "mse", "metric": 0.125,
        "throttle_reasons": "hot power", "cpu_util_mean": 0.75,
    }  # fmt: skip
    assert {name: row[name] for name in known} == known
    assert row["throughput_samples_per_s"] == pytest.approx(40 / 0.1)
    assert row["step_s"] == pytest.approx(0.05)
    assert row["epoch_s"] == pytest.approx(1000 / 400)


def test_speedups_and_efficiencies_with_their_intervals() -> None:
    two, own, bare = record(gpus=2, block_s=0.125), record(block_s=0.1), record("bare_torch", block_s=0.08)
    row = of(two, own, bare)[0]
    assert (row["baseline_self_id"], row["baseline_bare_id"]) == (own.run_id, bare.run_id)
    assert row["speedup_self"] == pytest.approx(2 * 0.1 / 0.125)
    assert row["speedup_bare"] == pytest.approx(2 * 0.08 / 0.125)
    for kind, baseline in (("self", own), ("bare", bare)):
        interval = throughput.speedup(two, baseline)[1]
        assert interval is not None
        speedup = [row[f"speedup_{kind}{end}"] for end in ("_low", "", "_high")]
        efficiency = [row[f"efficiency_{kind}{end}"] for end in ("_low", "", "_high")]
        assert speedup == pytest.approx([interval.low, interval.value, interval.high])
        assert efficiency == pytest.approx([limit / 2 for limit in speedup])
        assert efficiency[0] < efficiency[1] < efficiency[2]


def test_the_baseline_itself_has_speedup_one() -> None:
    _, own = of(record(gpus=2), record())
    assert own["speedup_self"] == own["efficiency_self"] == 1.0
    assert own["speedup_self_low"] is None and own["speedup_self_high"] is None


def test_a_missing_baseline_is_null() -> None:
    (row,) = of(record(gpus=2))
    names = [name for name in COLUMNS if name.startswith(("baseline_", "speedup_", "efficiency_"))]
    assert len(names) == 14 and {row[name] for name in names} == {None}
    (row,) = of(record(gpus=2), record(train=TrainSpec(batch_per_device=20)))[:1]
    assert row["baseline_self_id"] is None


def test_a_failed_run_has_its_reason_and_no_figures() -> None:
    row, _ = of(FAILED, record())
    assert (row["status"], row["reason"], row["flags"]) == ("failed", "told to fail", None)
    assert row["baseline_self_id"] is not None
    measured = "throughput_samples_per_s throughput_low throughput_high interval_over step_s epoch_s measured_steps"
    assert {row[name] for name in [*measured.split(), "warmup_steps", "speedup_self", "efficiency_self"]} == {None}


def test_a_rank_that_failed_before_measuring_has_no_steps() -> None:
    (row,) = of(record(gpus=1, status="failed", ranks=[rank(0)]))
    assert row["measured_steps"] is None and row["warmup_steps"] is None


def test_an_infinite_limit_is_null_and_flagged() -> None:
    """Blocks so unlike each other that nothing bounds the throughput from above."""
    wild = record(gpus=2, ranks=[rank(k, [0.01] * 31 + [50.0]) for k in range(2)])
    interval = throughput.throughput(wild)[1]
    assert interval is not None and math.isinf(interval.high)
    row, _ = of(wild, record())
    assert row["throughput_low"] is not None and row["throughput_high"] is None
    assert row["speedup_self_high"] is None and row["efficiency_self_high"] is None
    assert row["flags"] == "no_interval"
    table = frame_of_results([wild, record()], [Path("x"), Path("y")])
    assert not [c for c in table if table[c].dtype == "Float64" and (table[c].abs() == math.inf).any()]


def test_an_infinite_limit_of_the_baseline_leaves_the_ratio_finite() -> None:
    wild = record(ranks=[rank(0, [0.01] * 31 + [50.0])])
    row, _ = of(record(gpus=2), wild)
    assert row["speedup_self"] is not None and row["speedup_self_high"] is not None
    assert row["speedup_self_low"] == 0


@pytest.mark.parametrize(
    ("own_s", "target", "expected"),
    [
        (0.1, 0.05, None),
        (0.1, 0.001, "target_missed"),
        (0.1003, 0.05, "superlinear_within_noise"),
        (0.2, 0.05, "superlinear"),
    ],
)
def test_flags_of_a_run(own_s: float, target: float, expected: str | None) -> None:
    measure = {"measure": MeasureSpec(target=target)}
    row, _ = of(record(gpus=2, block_s=0.1 if own_s != 0.1 else 0.11, **measure), record(block_s=own_s))
    assert row["flags"] == expected


def test_few_blocks_are_flagged() -> None:
    (row,) = of(record(ranks=[rank(0, [0.1] * 15)], flags=["oversubscribed"]))
    assert row["flags"] == "oversubscribed no_interval"
    assert row["throughput_samples_per_s"] is not None and row["interval_over"] is None


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for number, result in enumerate([record(), record(gpus=2), FAILED]):
        (tmp_path / "sweep" / str(number)).mkdir(parents=True)
        write_result(result, tmp_path / "sweep" / str(number))
    return tmp_path / "sweep"


@pytest.mark.parametrize(
    "paths",
    [
        lambda sweep: sweep,
        lambda sweep: str(sweep),
        lambda sweep: [sweep / "0", sweep / "1", sweep / "2"],
        lambda sweep: (sweep, sweep / "1", sweep / "1" / "result.json"),
        lambda sweep: [sweep, sweep.parent.joinpath("sweep", "..", "sweep")],
    ],
)
def test_each_run_below_several_paths_is_one_row(paths: Callable[[Path], Any], sweep: Path) -> None:
    table = load(paths(sweep))
    assert list(table["run_id"]) == ["ddp-1-0", "ddp-2-0", "bad"]
    assert [Path(path).resolve() for path in table["path"]] == [sweep / "0", sweep / "1", sweep / "2"]
    assert table["speedup_self"].notna().tolist() == [True, True, False]


def test_a_single_result_file_is_one_row(sweep: Path) -> None:
    assert list(load(sweep / "1" / "result.json")["run_id"]) == ["ddp-2-0"]
    assert scalebench.load(sweep / "1").equals(load(sweep / "1"))


def test_relative_and_absolute_paths_of_a_run_count_once(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sweep)
    assert len(find_results([".", sweep, "0"])) == 3


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_path_without_results_is_named(name: str, sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError) as caught:
        load([sweep, tmp_path / name])
    assert str(caught.value) == f"no result.json at or below {tmp_path / name}; give the folder of a run or a sweep"


def test_a_broken_file_among_others_is_named(sweep: Path) -> None:
    (sweep / "1" / "result.json").write_text("{")
    with pytest.raises(InputError, match=r"1/result\.json is no whole JSON file"):
        load(sweep)
