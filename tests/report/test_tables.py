"""The table of configurations in the terminal, and files that hold every column."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalebench.analysis.columns import FRAME_COLUMNS
from scalebench.analysis.load import frame_of_results
from scalebench.core.result import ProbeRecord, Result, write_result
from scalebench.core.spec import HardwareSpec
from scalebench.report.repeat_commands import make_baseline_commands
from scalebench.report.tables import (
    format_data_share,
    format_percent_column,
    format_ratio_column,
    format_seconds,
    format_throughput,
    write_tables,
)
from scalebench.report.terminal import make_configurations
from tests.builders.runs import rank, record
from tests.builders.sweeps import write_results
from tests.report.section_blocks import render_table

GOLDEN = Path(__file__).parents[1] / "golden"
Rows = Callable[[Sequence[Result], Sequence[Path]], pd.DataFrame]


def table_text(*results: Result, width: int = 160, rows: Rows = frame_of_results) -> str:
    return render_table(make_configurations(rows(results, [Path("x")] * len(results))), width)


def test_the_table_of_a_small_sweep() -> None:
    rows = [
        record(
            "lightning_ddp", gpus=2, status="failed", block_s=None, reason="rank 1: RuntimeError: failed as configured"
        ),
        record("ddp", gpus=4, block_s=0.16, flags=["oversubscribed"]),
        record("ddp", gpus=2, block_s=0.11),
        record("ddp", gpus=1, block_s=0.1),
        record("bare_torch", gpus=1, block_s=0.09),
        record("simulated", gpus=2, block_s=2.5, baseline=None, repeat=1),
        record("fsdp", gpus=1, ranks=[rank(0, [0.1, 0.1])]),
        record("horovod_nccl", gpus=8, status="unsupported", ranks=[], reason="needs NCCL [libnccl.so], not here"),
    ]
    assert table_text(*rows) == (GOLDEN / "table.txt").read_text(encoding="utf-8")


def repeated(repeats: int, gpus: int, strategy: str = "ddp", block_s: float = 0.1) -> list[Result]:
    starts = [f"2026-01-01T00:{10 * r + gpus:02}:00+00:00" for r in range(repeats)]
    return [
        record(strategy, gpus=gpus, repeat=r, block_s=block_s * (1 + 0.02 * r * gpus), started_at=start)
        for r, start in enumerate(starts)
    ]


def test_what_a_sweep_varies_is_a_column_and_brackets_are_no_markup() -> None:
    """Rows of the same model and number of devices would look the same without it."""
    plain, other, larger = record(), record(), record(gpus=2)
    other.workload.data_format = "nchw"
    larger.scale.batch_per_device = 5  # as in strong scaling: the number of devices says it already
    columns = table_text(plain, other, larger).splitlines()[2].split()
    assert columns[:2] == ["data_format", "strategy"] and "batch_per_device" not in columns
    assert "data_format" not in table_text(plain, larger)
    shown = table_text(plain, record(hardware=HardwareSpec("box [b]1[/b]")))
    assert shown.splitlines()[2].split()[:2] == ["hardware", "strategy"] and "box [b]1[/b]" in shown
    assert "hardware" not in shown.splitlines()[0] and "model materials_cnn" in shown.splitlines()[0]


def test_the_cost_of_a_batch_is_shown_where_feeding_differs() -> None:
    probes = ProbeRecord(steps=2, sync_on_s=[0.2, 0.2], fixed_batch_s=[0.19, 0.19])  # 5 % of a step of 0.1 s
    runs = [record(block_s=0.2, run_id=feed) for feed in ("host", "device")]
    for run, feed in zip(runs, ("host", "device"), strict=True):
        run.workload.feed = feed
        run.ranks = [dataclasses.replace(rank_record, probes=probes) for rank_record in run.ranks]
    lines = table_text(*runs).splitlines()
    assert lines[2].split()[-3:] == ["data", "status", "remarks"] and "5.0 % [5.0, 5.0]" in lines[4]
    assert " data " not in table_text(runs[0])  # nothing differs
    for run in runs:
        run.ranks[0].probes = None
    assert " data " not in table_text(*runs)
    (row,) = frame_of_results(runs[:1], [Path("x")]).to_dict("records")
    assert format_data_share(row) == ""
    assert format_data_share({"data_share": 0.016, "step_s": 0.1, "data_s_low": None, "data_s_high": 0.002}) == "1.6 %"


def test_the_overhead_is_shown_only_if_there_is_one() -> None:
    bare, ddp, failed = record("bare_torch"), record(), record(status="failed", block_s=None, repeat=1)
    for rows in ([bare], [ddp], [ddp, record(gpus=2)], [failed]):
        assert "overhead" not in table_text(*rows)


def test_the_table_fits_where_strategies_have_long_names() -> None:
    """160 columns: nothing is cut off, and only remarks are broken up."""
    strategies = ["horovod_gloo", "lightning_ddp_gloo", "bare_torch"]
    rows = [record(name, gpus=gpus, block_s=0.00123) for name in strategies for gpus in (1, 2)]
    impossible = record("horovod_nccl", gpus=2, status="unsupported", ranks=[], reason="needs GPUs " * 20)
    lines = table_text(*rows, impossible).splitlines()[4:]
    assert "…" not in "".join(lines)
    names = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith(" " * 40)]
    assert names == sorted([*strategies * 2, "horovod_nccl"])


def test_the_command_that_makes_a_missing_baseline(tmp_path: Path) -> None:
    lone = frame_of_results([record(gpus=4), record(gpus=4)], [tmp_path, tmp_path])
    assert make_baseline_commands(lone) == ["python -m scalebench --multirun strategy=ddp gpus=4"]
    kept = tmp_path / ".hydra" / "overrides.yaml"
    kept.parent.mkdir()
    kept.write_text("- strategy=simulated\n- measure=quick\n- hydra.run.dir=with space\n")
    arguments = "strategy=simulated measure=quick gpus=4"
    assert make_baseline_commands(lone) == [f"python -m scalebench --multirun {arguments}"]
    kept.write_text("- strategy=ddp\n- gpus=4\n- measure.repeats=3\n- repeat=1\n")
    write_result(record(spec={"measure": {"repeats": 3}}), tmp_path)  # which makes the number of the repeat anew
    assert make_baseline_commands(lone) == ["python -m scalebench --multirun strategy=ddp gpus=4 measure.repeats=3"]
    write_result(record(spec={"measure": {"repeats": 1}}), tmp_path)
    assert make_baseline_commands(lone)[0].endswith(" repeat=1")
    kept.write_text("- strategy=ddp\n- gpus=4\n- baseline=bare\n")  # by which the same sweep would leave it out again
    assert make_baseline_commands(lone) == ["python -m scalebench --multirun strategy=ddp gpus=4"]
    complete = frame_of_results([record(gpus=4), record(), record("bare_torch")], [tmp_path] * 3)
    assert make_baseline_commands(complete) == []


def cells(name: str, value: Any, low: Any = None, high: Any = None) -> dict[str, Any]:
    stem = "throughput" if name.startswith("throughput") else name
    return {name: value, f"{stem}_low": low, f"{stem}_high": high}


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (12345.4, 12246.6, 12444.2, "12,345 ± 0.8 %"),
        (99.94, None, None, "99.9"),
        (0.01234, 0.01222, 0.01246, "0.0123 ± 1.0 %"),
        (100.4, 99.0, None, "100"),
        (None, None, None, ""),
        (pd.NA, pd.NA, pd.NA, ""),
        (float("nan"), 1.0, 1.0, ""),
    ],
)
def test_throughput(value: Any, low: Any, high: Any, shown: str) -> None:
    row = cells("throughput_samples_per_s", value, low, high)
    assert format_throughput({**row, "interval_over": "repeats"}) == shown
    within = f"{shown} within this repeat" if "±" in shown else shown
    assert format_throughput({**row, "interval_over": "blocks"}) == within


def test_ratios_and_shares() -> None:
    assert format_ratio_column(cells("speedup_self", 1.856, 1.82, 1.904), "speedup_self") == "1.86 [1.82, 1.90]"
    assert format_ratio_column(cells("speedup_self", 1.0), "speedup_self") == "1.00"
    assert format_ratio_column(cells("speedup_self", pd.NA, pd.NA, pd.NA), "speedup_self") == ""
    assert format_percent_column(cells("efficiency_self", 0.928, 0.91, 0.952), "efficiency_self") == "93 % [91, 95]"
    assert format_percent_column(cells("efficiency_self", 0.5, 0.4, pd.NA), "efficiency_self") == "50 %"
    assert format_percent_column(cells("efficiency_self", pd.NA), "efficiency_self") == ""
    assert format_percent_column(cells("overhead_share", -0.034, -0.05, -0.001), "overhead_share") == "-3 % [-5, 0]"
    assert format_percent_column(cells("overhead_share", -0.001, pd.NA, 0.02), "overhead_share") == "0 %"
    assert (format_seconds(0.123456), format_seconds(pd.NA)) == ("0.123 s", "")


@pytest.mark.parametrize("results", [[record(gpus=2), record()], [record(status="failed", block_s=None, ranks=[])]])
def test_csv_and_parquet_hold_the_frame(results: list[Result], tmp_path: Path) -> None:
    write_results(tmp_path, results)
    frame = write_tables(tmp_path)
    parquet = pd.read_parquet(tmp_path / "results.parquet")
    pd.testing.assert_frame_equal(parquet, frame)
    csv = pd.read_csv(tmp_path / "results.csv", dtype=frame.dtypes.to_dict())
    assert list(csv.columns) == list(parquet.columns) == list(FRAME_COLUMNS)
    pd.testing.assert_frame_equal(csv, frame)
    assert not list(tmp_path.glob("pooled.*"))


def test_repeats_leave_their_pooled_rows_too(tmp_path: Path) -> None:
    results = repeated(2, 1)
    write_results(tmp_path, results)
    assert len(write_tables(tmp_path)) == len(pd.read_csv(tmp_path / "results.csv")) == 2
    parquet = pd.read_parquet(tmp_path / "pooled.parquet")
    assert parquet["repeats"].tolist() == [2] and list(parquet.columns) == [*FRAME_COLUMNS, "repeats"]
    assert len(pd.read_csv(tmp_path / "pooled.csv")) == 1


def test_placement_is_a_column_where_rows_differ_in_it() -> None:
    def placed(ids: list[int], variables: dict[str, str] | None = None) -> Result:
        hardware = HardwareSpec("cpu", device_ids=ids, environment=variables or {})
        return record("bare_torch", run_id=f"{ids}{variables}", hardware=hardware)

    shown = table_text(placed([0]), placed([5]))
    assert "device_ids" in shown and "environment" not in shown and "bind" not in shown
    assert [line.split()[0] for line in shown.splitlines() if "bare_torch" in line] == ["0", "5"]
    shown = table_text(placed([]), placed([], {"NCCL_P2P_DISABLE": "1"}))
    assert "NCCL_P2P_DISABLE=1" in shown and "device_ids" not in shown


def test_a_csv_reads_back_without_default_null_values(tmp_path: Path) -> None:
    """docs/reference/results.md describes these arguments of read_csv: pandas would read some words as null."""
    write_results(tmp_path, [record(name, run_id=name) for name in ("simulated", "ddp")])
    frame = write_tables(tmp_path)
    csv = pd.read_csv(tmp_path / "results.csv", keep_default_na=False, na_values=[""])
    assert csv["strategy"].tolist() == ["simulated", "ddp"] and csv["reason"].isna().all()
    assert csv["throughput_samples_per_s"].tolist() == frame["throughput_samples_per_s"].tolist()
    assert str(csv["speedup_bare"].dtype) == "float64"


def test_a_given_baseline_is_named_in_the_head_of_its_column() -> None:
    table = frame_of_results([record(), record(gpus=2)], [Path("x")] * 2)
    table[["speedup_given", "speedup_given_low", "speedup_given_high"]] = [[1.5, 1.4, 1.6], [None, None, None]]
    shown = render_table(make_configurations(table, "a[b]c gpus=1 on alpha"), 200).splitlines()
    assert "speedup over a[b]c gpus=1 on alpha" in shown[2] and "1.50 [1.40, 1.60]" in shown[4]
    assert "speedup over" not in table_text(record())
