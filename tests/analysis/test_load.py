"""load: the same columns and types for every record, and figures that are known."""

import math
from pathlib import Path

import pandas as pd
import pytest

import scalebench
from scalebench.analysis import throughput
from scalebench.analysis.load import frame_of_results, load, survey
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.errors import InputError
from scalebench.core.result import write_result
from scalebench.core.spec import TrainSpec
from tests.builders.runs import rank, record
from tests.builders.sweeps import write_results

# DESIGN.md's list, in its order. Later work adds columns at the end.
DESIGN = """
run_id, started_at, status, reason, path, fingerprint, repeat, seed, model, dataset, strategy, framework,
framework_version, backend_used, hardware, gpus, nodes, processes, scaling, batch_per_device, global_batch, precision,
data_format, feed, model_params, gradient_bytes, flops_per_sample, throughput_samples_per_s, throughput_low,
throughput_high, interval_over, in_turns, step_s, epoch_s, steps_per_epoch, launch_s, setup_s, warmup_s, warmup_steps,
measured_s, measured_steps, wall_s, steady, flags, baseline_self_id, baseline_bare_id, speedup_self, speedup_self_low,
speedup_self_high, speedup_bare, speedup_bare_low, speedup_bare_high, efficiency_self, efficiency_self_low,
efficiency_self_high, efficiency_bare, efficiency_bare_low, efficiency_bare_high, mfu, sync_isolated_s,
sync_exposed_s, sync_exposed_share, sync_per_epoch_s, imbalance_s, data_share, forward_s, backward_s,
optimizer_s, gpu_util_mean, gpu_power_w_mean, energy_j_per_sample, peak_memory_bytes, sm_clock_mhz_min,
mem_clock_mhz_min, throttle_reasons, cpu_util_mean, rss_peak_bytes, final_loss, metric_name, metric, time_to_target_s
"""
COLUMNS = DESIGN.replace(",", " ").split()
FAILED = record(gpus=2, status="failed", block_s=None, run_id="bad")


def of(*results):
    """Rows as dicts, null as None."""
    table = frame_of_results(results, [Path(f"/runs/{i}") for i in range(len(results))])
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]


def test_the_frame_starts_with_the_documented_columns():
    assert list(frame_of_results([record()], [Path("x")]).columns)[: len(COLUMNS)] == COLUMNS


@pytest.mark.parametrize("results", [[FAILED], [record(status="unsupported", ranks=[], reason=None)], []])
def test_column_types_do_not_depend_on_the_rows(results):
    full = frame_of_results([record(), record(gpus=2)], [Path("a"), Path("b")])
    table = frame_of_results(results, [Path("x")] * len(results))
    assert table.dtypes.to_dict() == full.dtypes.to_dict()
    kinds = {name: str(kind) for name, kind in full.dtypes.items()}
    assert {kinds[name] for name in ("run_id", "reason", "flags", "throttle_reasons")} == {"string"}
    assert {kinds[name] for name in ("gpus", "model_params", "measured_steps", "rss_peak_bytes")} == {"Int64"}
    assert {kinds[name] for name in ("throughput_samples_per_s", "speedup_self", "mfu", "final_loss")} == {"Float64"}
    assert kinds["steady"] == "boolean"


def test_the_baseline_itself_has_speedup_one():
    _, own = of(record(gpus=2), record())
    assert own["speedup_self"] == own["efficiency_self"] == 1.0
    assert own["speedup_self_low"] is None and own["speedup_self_high"] is None


def test_a_missing_baseline_is_null():
    (row,) = of(record(gpus=2))
    names = [name for name in COLUMNS if name.startswith(("baseline_", "speedup_", "efficiency_"))]
    assert len(names) == 14 and {row[name] for name in names} == {None}
    (row,) = of(record(gpus=2), record(train=TrainSpec(batch_per_device=20)))[:1]
    assert row["baseline_self_id"] is None


def test_a_failed_run_has_its_reason_and_no_figures():
    row, _ = of(FAILED, record())
    assert (row["status"], row["reason"], row["flags"]) == ("failed", "failed as configured", None)
    assert row["baseline_self_id"] is not None
    measured = "throughput_samples_per_s throughput_low throughput_high interval_over step_s epoch_s measured_steps"
    assert {row[name] for name in [*measured.split(), "warmup_steps", "speedup_self", "efficiency_self"]} == {None}


def test_a_rank_that_failed_before_measuring_has_no_steps():
    (row,) = of(record(gpus=1, status="failed", ranks=[rank(0)]))
    assert row["measured_steps"] is None and row["warmup_steps"] is None


def test_an_infinite_limit_is_null_and_flagged():
    """Blocks so unlike each other that nothing bounds the throughput from above."""
    wild = record(gpus=2, ranks=[rank(k, [0.01] * 31 + [50.0]) for k in range(2)])
    interval = throughput.throughput(wild)[1]
    assert math.isinf(interval.high)
    row, _ = of(wild, record())
    assert row["throughput_low"] is not None and row["throughput_high"] is None
    assert row["flags"] == "no_interval"
    table = frame_of_results([wild, record()], [Path("x"), Path("y")])
    assert not [c for c in table if table[c].dtype == "Float64" and (table[c].abs() == math.inf).any()]


@pytest.fixture
def sweep(tmp_path):
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
def test_each_run_below_several_paths_is_one_row(paths, sweep):
    table = load(paths(sweep))
    assert (
        list(load(sweep / "1" / "result.json")["run_id"]) == list(scalebench.load(sweep / "1")["run_id"]) == ["ddp-2-0"]
    )
    assert list(table["run_id"]) == ["ddp-1-0", "ddp-2-0", "bad"]
    assert [Path(path).resolve() for path in table["path"]] == [sweep / "0", sweep / "1", sweep / "2"]
    assert table["speedup_self"].notna().tolist() == [True, True, False]


def test_a_frame_for_programs_has_times_and_lists_and_goes_back(tmp_path):
    write_results(tmp_path, [record(flags=["busy_machine", "unsteady"]), record(gpus=2, block_s=None, status="failed")])
    frame, texts = scalebench.load(tmp_path), survey(tmp_path).frame
    assert str(frame["started_at"].dtype).endswith("UTC]") and frame["started_at"].notna().all()
    assert "busy_machine" in frame["flags"][0] and frame["flags"][1] == [] and str(frame["mfu"].dtype) == "Float64"
    assert plain_rows(frame) == plain_rows(texts)
    plain = scalebench.load(tmp_path, dtypes="numpy")
    kinds = {str(dtype) for name, dtype in plain.dtypes.items() if name != "started_at"}
    assert kinds <= {"object", "float64", "int64", "bool"} and str(plain["gpus"].dtype) == "int64"
    assert math.isnan(plain["throughput_samples_per_s"][1]) and plain["reason"][0] is None
    assert plain_rows(plain) == plain_rows(texts) and list(plain.columns) == list(texts.columns)
    assert str(scalebench.pooled(tmp_path, dtypes="numpy")["repeats"].dtype) == "int64"
    with pytest.raises(InputError, match="dtypes='nump': no kind of columns 'nump'; did you mean 'numpy'"):
        scalebench.load(tmp_path, dtypes="nump")
