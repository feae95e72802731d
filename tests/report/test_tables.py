"""The table of configurations in the terminal, and files that hold every column."""

import pandas as pd
import pytest

from scalebench.analysis.columns import FRAME_COLUMNS
from scalebench.report.repeat_commands import make_baseline_commands
from scalebench.report.tables import format_throughput, make_cell, write_tables
from tests.builders.frames import frame_of_results
from tests.builders.runs import record
from tests.builders.sweeps import write_results


def test_the_command_that_makes_a_missing_baseline(tmp_path):
    lone = frame_of_results([record(gpus=4), record(gpus=4)], [tmp_path, tmp_path])
    assert make_baseline_commands(lone) == []  # without a record of what was typed
    kept = tmp_path / ".hydra" / "overrides.yaml"
    kept.parent.mkdir()
    kept.write_text("- strategy=simulated\n- measure=quick\n- hydra.run.dir=with space\n")
    arguments = "strategy=simulated measure=quick gpus=4"
    assert make_baseline_commands(lone) == [f"scalebench --multirun {arguments}"]
    kept.write_text("- strategy=ddp\n- gpus=4\n- measure.repeats=3\n- repeat=1\n")
    assert make_baseline_commands(lone) == ["scalebench --multirun strategy=ddp gpus=4 measure.repeats=3"]
    kept.write_text("- strategy=ddp\n- gpus=4\n- baseline=bare\n")  # by which the same sweep would leave it out again
    assert make_baseline_commands(lone) == ["scalebench --multirun strategy=ddp gpus=4"]
    kept.write_text("- strategy=ddp\n")
    several = frame_of_results([record(gpus=2), record(gpus=4)], [tmp_path, tmp_path])
    assert make_baseline_commands(several) == ["scalebench --multirun strategy=ddp gpus=2,4"]  # its baselines once
    complete = frame_of_results([record(gpus=4), record(), record("bare_torch")], [tmp_path] * 3)
    assert make_baseline_commands(complete) == []


def cells(name, value, low=None, high=None):
    stem = "throughput" if name.startswith("throughput") else name
    return {name: value, f"{stem}_low": low, f"{stem}_high": high}


@pytest.mark.parametrize(("value", "low", "high", "shown"), [
    (12345.4, 12246.6, 12444.2, "12,345 ± 0.8 %"), (99.94, None, None, "99.9"), (100.4, 99.0, None, "100"),
    (0.01234, 0.01222, 0.01246, "0.0123 ± 1.0 %"), (None, None, None, ""),
])  # fmt: skip
def test_throughput(value, low, high, shown):
    row = cells("throughput_samples_per_s", value, low, high)
    assert format_throughput({**row, "interval_over": "repeats"}) == shown
    within = f"{shown} within this repeat" if "±" in shown else shown
    assert format_throughput({**row, "interval_over": "blocks"}) == within
    assert format_throughput({**row, "interval_over": "blocks"}, notes_repeat=False) == shown


@pytest.mark.parametrize(("name", "figures", "text"), [
    ("speedup_self", (1.856, 1.82, 1.904), "1.86 [1.82, 1.90]"), ("speedup_self", (1.0,), "1.00"),
    ("speedup_self", (None,), ""), ("efficiency_self", (0.928, 0.91, 0.952), "93 % [91, 95]"),
    ("efficiency_self", (0.5, 0.4, None), "50 %"), ("overhead_share", (-0.034, -0.05, -0.001), "-3 % [-5, 0]"),
    ("sync_exposed_s", (1.35e-3, 1.2e-3, 1.51e-3), "1.35 ms [1.20, 1.51]"), ("epoch_s", (0.123456,), "123 ms"),
    ("flags", ("swapping",), "swapping"), ("steps_per_epoch", (1234,), "1,234"),
])  # fmt: skip
def test_a_column_is_shown_by_its_name(name, figures, text):
    assert make_cell(cells(name, *figures), name).text == text


@pytest.mark.parametrize("results", [[record(gpus=2), record()], [record(status="failed", block_s=None, ranks=[])]])
def test_csv_and_parquet_hold_the_frame(results, tmp_path):
    write_results(tmp_path, results)
    frame = write_tables(tmp_path)
    parquet = pd.read_parquet(tmp_path / "results.parquet")
    pd.testing.assert_frame_equal(parquet, frame)
    csv = pd.read_csv(tmp_path / "results.csv", dtype=frame.dtypes.to_dict())
    assert list(csv.columns) == list(parquet.columns) == list(FRAME_COLUMNS)
    pd.testing.assert_frame_equal(csv, frame)
    assert not list(tmp_path.glob("pooled.*"))


def test_repeats_leave_their_pooled_rows_too(tmp_path):
    write_results(tmp_path, [record(repeat=r, started_at=f"2026-01-01T00:{10 * r:02}:00+00:00") for r in range(2)])
    assert len(write_tables(tmp_path)) == len(pd.read_csv(tmp_path / "results.csv")) == 2
    parquet = pd.read_parquet(tmp_path / "pooled.parquet")
    assert parquet["repeats"].tolist() == [2] and list(parquet.columns) == [*FRAME_COLUMNS, "repeats"]
    assert len(pd.read_csv(tmp_path / "pooled.csv")) == 1


def test_a_csv_reads_back_without_default_null_values(tmp_path):
    """docs/reference/results.md describes these arguments of read_csv: pandas would read some words as null."""
    write_results(tmp_path, [record(name, run_id=name) for name in ("simulated", "ddp")])
    frame = write_tables(tmp_path)
    csv = pd.read_csv(tmp_path / "results.csv", keep_default_na=False, na_values=[""])
    assert csv["strategy"].tolist() == ["simulated", "ddp"] and csv["reason"].isna().all()
    assert csv["throughput_samples_per_s"].tolist() == frame["throughput_samples_per_s"].tolist()
    assert str(csv["speedup_bare"].dtype) == "float64"
