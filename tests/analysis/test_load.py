"""load: the same columns and types for every record, and figures that are known; and what --baseline names."""

import dataclasses
import math
from pathlib import Path

import pytest

import scalebench
from scalebench.analysis import throughput
from scalebench.analysis.identity import Baselines, identify, is_comparable
from scalebench.analysis.load import load, pooled, survey
from scalebench.analysis.rows import divide_throughputs, summarize_run
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.errors import InputError
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import DatasetSpec, HardwareSpec, TrainSpec
from tests.builders import sweeps
from tests.builders.frames import frame_of_results
from tests.builders.runs import MODEL, rank, record
from tests.builders.sweeps import write_results

FAILED = record(gpus=2, status="failed", block_s=None, run_id="bad")


def of(*results):
    """Rows as dicts, null as None."""
    return plain_rows(frame_of_results(results, [Path(f"/runs/{i}") for i in range(len(results))]))


@pytest.mark.parametrize("results", [[FAILED], [record(status="unsupported", ranks=[], reason=None)], []])
def test_columns_and_types_do_not_depend_on_the_rows(results):
    full = frame_of_results([record(), record(gpus=2)], [Path("a"), Path("b")])
    table = frame_of_results(results, [Path("x")] * len(results))
    assert table.dtypes.to_dict() == full.dtypes.to_dict()
    kinds = {name: str(kind) for name, kind in full.dtypes.items()}
    for kind, names in {
        "string": ("run_id", "reason", "flags", "throttle_reasons"), "boolean": ("steady",),
        "Int64": ("gpus", "model_params", "measured_steps", "rss_peak_bytes"),
        "Float64": ("throughput_samples_per_s", "speedup_self", "mfu", "final_loss"),
    }.items():  # fmt: skip
        assert {kinds[name] for name in names} == {kind}


def test_an_infinite_limit_is_null_and_flagged():
    """Blocks so unlike each other that nothing bounds the throughput from above."""
    wild = record(gpus=2, ranks=[rank(k, [0.01] * 31 + [50.0]) for k in range(2)])
    assert math.isinf(throughput.Measurement(wild).throughput.high)
    row, _ = of(wild, record())
    assert row["throughput_low"] is not None and row["throughput_high"] is None and row["flags"] == "no_interval"
    table = frame_of_results([wild, record()], [Path("x"), Path("y")])
    assert not [c for c in table if table[c].dtype == "Float64" and (table[c].abs() == math.inf).any()]


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


SPEEDUP = ("speedup_given_low", "speedup_given", "speedup_given_high")
NAMES = ("baseline_given_id", *SPEEDUP, "efficiency_given_low", "efficiency_given", "efficiency_given_high")
ALPHA = {"hardware": HardwareSpec("alpha", devices="cpu", gpus_per_node=8)}


def by_name(table):
    return {row["run_id"]: row for row in plain_rows(table)}


@pytest.fixture
def sweep(tmp_path):
    sweeps.sweep(tmp_path / "sweep")
    return tmp_path / "sweep"


@pytest.fixture
def other(tmp_path):
    """One device of another machine, under another strategy; alone in its folder."""
    made = sweeps.run("horovod_nccl", 1, run_id="theirs", **ALPHA)
    write_results(tmp_path / "other", [made])
    return made


@pytest.mark.parametrize("name", ["other", "other/0", "other/0/result.json"])
def test_a_folder_or_file_of_one_run_names_the_baseline(name, sweep, other, tmp_path):
    rows, alone = by_name(scalebench.load(sweep, baseline=tmp_path / name)), by_name(load(sweep))
    assert {row["baseline_given_id"] for row in rows.values()} == {"theirs"}
    for run_id, row in rows.items():
        own = {key: value for key, value in row.items() if key not in NAMES}
        assert own == {key: value for key, value in alone[run_id].items() if key not in NAMES}
    runs = [summarize_run(result, Path("x")) for result in (sweeps.run("ddp_gloo", 4), other)]
    row = rows["ddp_gloo-4-0"]
    assert [row[n] for n in SPEEDUP] == [None, divide_throughputs(*runs).value, None]
    assert row["efficiency_given"] == pytest.approx(row["speedup_given"] / 4)
    assert plain_rows(scalebench.pooled(sweep, baseline=tmp_path / name))[0]["baseline_given_id"] == "theirs"


def test_a_run_id_among_the_rows_names_the_baseline(sweep):
    rows = by_name(load(sweep, baseline="ddp_gloo-2-0"))
    one, two, four = (rows[run_id] for run_id in ("bare_torch-1-0", "ddp_gloo-2-0", "ddp_gloo-4-0"))
    assert (two["speedup_given"], two["speedup_given_low"], two["efficiency_given"]) == (1.0, None, 1.0)
    assert four["speedup_given"] == pytest.approx(2 * 0.9, rel=0.02)
    assert four["efficiency_given"] == pytest.approx(four["speedup_given"] / 2), "of twice its devices"
    assert one["efficiency_given"] == pytest.approx(one["speedup_given"] * 2)
    assert survey(sweep, "ddp_gloo-2-0").baseline_label == "ddp_gloo gpus=2 on cpu"
    for table in (load(sweep, "bare_torch-1-0"), pooled(sweep, "bare_torch-1-0")):
        for row in plain_rows(table):  # naming the automatic one gives its figures
            assert all(row[name] == row[name.replace("given", "bare")] for name in NAMES)


def weak(batch, gpus, **changes):
    return record("ddp", gpus, train=TrainSpec(batch_per_device=batch), **changes)


def strong(batch, gpus):
    made = record("ddp", gpus, **sweeps.strong_scaling(batch, gpus))
    made.scale.global_batch = batch
    return made


@pytest.mark.parametrize(("row", "baseline", "fits"), [
    (weak(10, 4), weak(10, 2), True), (weak(10, 4), weak(20, 2), False), (strong(40, 4), strong(40, 2), True),
    (strong(40, 4), strong(20, 2), False), (strong(40, 4), weak(10, 4), False), (weak(20, 2), strong(40, 2), False),
    (strong(40, 4), weak(40, 1), True), (strong(40, 4), weak(10, 1), False), (weak(10, 4), strong(10, 1), True),
    (weak(10, 4), strong(40, 1), False), (weak(40, 1), strong(40, 4), True), (weak(10, 1), weak(10, 4), True),
    (weak(10, 1), strong(10, 1), True), (weak(10, 1), weak(20, 1), False),
    (weak(10, 2), weak(10, 1, model=dataclasses.replace(MODEL, name="other")), False),
    (weak(10, 2), weak(10, 1, model=dataclasses.replace(MODEL, options={"width": 2})), False),
    (weak(10, 2), weak(10, 1, dataset=DatasetSpec("cifar10", size=64)), False),
    (weak(10, 2), weak(10, 1, dataset=DatasetSpec("materials", size=999)), True),
    (weak(10, 2), weak(10, 1, seed=7, **ALPHA), True),
])  # fmt: skip
def test_only_equal_samples_at_an_equal_batch_are_comparable(row, baseline, fits):
    assert is_comparable(summarize_run(row, Path("a")), summarize_run(baseline, Path("b"))) is fits


def refusal(sweep, baseline):
    lines = set()
    for load_them in (load, pooled, survey):
        with pytest.raises(InputError) as caught:
            load_them(sweep, baseline)
        lines.add(str(caught.value))
    (line,) = lines
    assert "\n" not in line
    return line


def test_an_unusable_baseline_is_an_input_error(sweep, tmp_path):
    assert refusal(sweep, "ddp_gloo-2-1").endswith("no run 'ddp_gloo-2-1'; did you mean 'ddp_gloo-2-0'?")
    assert "holds 7 runs; name one of " in refusal(sweep, sweep) and " and 2 more" in refusal(sweep, sweep)
    (tmp_path / "empty").mkdir()
    assert refusal(sweep, tmp_path / "empty").startswith(f"no result.json at or below {tmp_path / 'empty'}")
    none = "none of the rows is (materials_cnn on materials)"
    for name, run, reason in (
        ("bad", sweeps.failed_run(), "has no throughput: failed: failed as configured"),
        ("model", sweeps.run("ddp_gloo", 1, model=dataclasses.replace(MODEL, name="resnet50")),
         f"is of resnet50 on materials, {none}"),
        ("data", sweeps.run("ddp_gloo", 1, dataset=DatasetSpec("cifar10", size=64)),
         f"is of materials_cnn on cifar10, {none}"),
        ("batch", sweeps.run("ddp_gloo", 1, train=TrainSpec(batch_per_device=75)),
         "has 75 samples per device, 75 in all, weak scaling, none"),
    ):  # fmt: skip
        write_results(tmp_path / name, [run])
        assert reason in refusal(sweep, tmp_path / name)
    (tmp_path / "bad" / "0" / RESULT_FILE).write_text("{")
    assert "is not a complete JSON file" in refusal(sweep, tmp_path / "bad")


def test_a_named_baseline_is_not_used_as_an_automatic_one(other, tmp_path):
    sweeps.sweep(tmp_path / "twos", ("horovod_nccl",), (2,), **ALPHA)
    (row,) = plain_rows(load(tmp_path / "twos", tmp_path / "other"))
    assert row["baseline_self_id"] is None and row["speedup_given"] is not None
    assert Baselines([identify(other)]).find_self(identify(sweeps.run("horovod_nccl", 2, **ALPHA))) is not None
    write_results(tmp_path / "failed", [sweeps.failed_run()])
    (row,) = plain_rows(survey(tmp_path / "failed", tmp_path / "other").pooled)
    assert row["speedup_given"] is None
