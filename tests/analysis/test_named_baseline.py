"""Speedups over a named baseline: what may name it, which runs it is compared with, and the intervals."""

import dataclasses
from pathlib import Path

import pytest

import scalebench
from scalebench.analysis import throughput
from scalebench.analysis.baselines import Baselines
from scalebench.analysis.identity import is_comparable
from scalebench.analysis.load import load, survey
from scalebench.analysis.repeats import pooled
from scalebench.analysis.rows import summarize_run
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.errors import InputError
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import DatasetSpec, HardwareSpec, TrainSpec
from tests.builders import sweeps
from tests.builders.runs import MODEL, record

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
    sweeps.write_results(tmp_path / "other", [made])
    return made


@pytest.mark.parametrize("name", ["other", "other/0", "other/0/result.json"])
def test_a_folder_or_file_of_one_run_names_the_baseline(name, sweep, other, tmp_path):
    rows = by_name(scalebench.load(sweep, baseline=tmp_path / name))
    alone = by_name(load(sweep))
    for run_id, row in rows.items():
        assert row["baseline_given_id"] == "theirs"
        assert {k: v for k, v in row.items() if k not in NAMES} == {
            k: v for k, v in alone[run_id].items() if k not in NAMES
        }
    result, folder = sweeps.run("ddp_gloo", 4), Path("x")
    own_runs, other_runs = summarize_run(result, folder), summarize_run(other, folder)
    row = rows["ddp_gloo-4-0"]
    assert [row[n] for n in SPEEDUP] == [None, throughput.divide_throughputs(own_runs, other_runs), None]
    assert row["efficiency_given"] == pytest.approx(row["speedup_given"] / 4)
    assert plain_rows(scalebench.pooled(sweep, baseline=tmp_path / name))[0]["baseline_given_id"] == "theirs"


def test_a_run_id_among_the_rows_names_the_baseline(sweep):
    rows = by_name(load(sweep, baseline="ddp_gloo-2-0"))
    assert (rows["ddp_gloo-2-0"]["speedup_given"], rows["ddp_gloo-2-0"]["speedup_given_low"]) == (1.0, None)
    assert rows["ddp_gloo-2-0"]["efficiency_given"] == 1.0
    four = rows["ddp_gloo-4-0"]
    assert four["speedup_given"] == pytest.approx(2 * 0.9, rel=0.02)
    assert four["efficiency_given"] == pytest.approx(four["speedup_given"] / 2), "of twice its devices"
    assert rows["bare_torch-1-0"]["efficiency_given"] == pytest.approx(rows["bare_torch-1-0"]["speedup_given"] * 2)
    assert survey(sweep, "ddp_gloo-2-0").baseline_label == "ddp_gloo gpus=2 on cpu"


def test_naming_the_automatic_baseline_gives_its_figures(sweep):
    for table in (load(sweep, "bare_torch-1-0"), pooled(sweep, "bare_torch-1-0")):
        for row in plain_rows(table):
            for end in ("", "_low", "_high"):
                assert row[f"speedup_given{end}"] == row[f"speedup_bare{end}"]
                assert row[f"efficiency_given{end}"] == row[f"efficiency_bare{end}"]


def test_all_repeats_of_the_named_baseline_count(tmp_path):
    sweeps.sweep(tmp_path / "mine", ("bare_torch", "ddp_gloo"), (1, 2), repeats=3)
    for row in plain_rows(pooled(tmp_path / "mine", "bare_torch-1-1")):
        assert row["baseline_given_id"] == "bare_torch-1-0", "the first repeat stands for all"
        assert [row[n] for n in SPEEDUP] == [row[n.replace("given", "bare")] for n in SPEEDUP]
    later = [sweeps.run("ddp_gloo", 2, r, run_id=f"later-{r}", **ALPHA) for r in range(3)]
    sweeps.write_results(tmp_path / "mine", later)
    rows = by_name(pooled(tmp_path / "mine", "later-0"))
    assert rows["ddp_gloo-2-0"]["speedup_given_low"] is not None
    sweeps.write_results(tmp_path / "one", later[:1])
    row = by_name(pooled(tmp_path / "mine", tmp_path / "one"))["ddp_gloo-2-0"]
    assert row["speedup_given_low"] is not None, "a copy of a run among the rows stands for all of them"
    sweeps.write_results(tmp_path / "alone", [sweeps.run("ddp_gloo", 2, run_id="alone", **ALPHA)])
    row = by_name(pooled(tmp_path / "mine", tmp_path / "alone"))["ddp_gloo-2-0"]
    assert row["speedup_given"] is not None and row["speedup_given_low"] is None, "one run says nothing of others"


def weak(batch, gpus, **changes):
    return record("ddp", gpus, train=TrainSpec(batch_per_device=batch), **changes)


def strong(batch, gpus):
    made = record("ddp", gpus, **sweeps.strong_scaling(batch, gpus))
    made.scale.global_batch = batch
    return made


@pytest.mark.parametrize(
    ("row", "baseline", "fits"),
    [
        (weak(10, 4), weak(10, 2), True),
        (weak(10, 4), weak(20, 2), False),
        (strong(40, 4), strong(40, 2), True),
        (strong(40, 4), strong(20, 2), False),
        (strong(40, 4), weak(10, 4), False),
        (weak(20, 2), strong(40, 2), False),
        (strong(40, 4), weak(40, 1), True),
        (strong(40, 4), weak(10, 1), False),
        (weak(10, 4), strong(10, 1), True),
        (weak(10, 4), strong(40, 1), False),
        (weak(40, 1), strong(40, 4), True),
        (weak(10, 1), weak(10, 4), True),
        (weak(10, 1), strong(10, 1), True),
        (weak(10, 1), weak(20, 1), False),
        (weak(10, 2), weak(10, 1, model=dataclasses.replace(MODEL, name="other")), False),
        (weak(10, 2), weak(10, 1, model=dataclasses.replace(MODEL, options={"width": 2})), False),
        (weak(10, 2), weak(10, 1, dataset=DatasetSpec("cifar10", size=64)), False),
        (weak(10, 2), weak(10, 1, dataset=DatasetSpec("materials", size=999)), True),
        (weak(10, 2), weak(10, 1, seed=7, **ALPHA), True),
    ],
)  # fmt: skip
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
    for name, made in {
        "bad": sweeps.failed_run(),
        "model": sweeps.run("ddp_gloo", 1, model=dataclasses.replace(MODEL, name="resnet50")),
        "data": sweeps.run("ddp_gloo", 1, dataset=DatasetSpec("cifar10", size=64)),
        "batch": sweeps.run("ddp_gloo", 1, train=TrainSpec(batch_per_device=75)),
    }.items():
        sweeps.write_results(tmp_path / name, [made])
    assert "has no throughput: failed: failed as configured" in refusal(sweep, tmp_path / "bad")
    of = "none of the rows is (materials_cnn on materials)"
    assert f"is of resnet50 on materials, {of}" in refusal(sweep, tmp_path / "model")
    assert f"is of materials_cnn on cifar10, {of}" in refusal(sweep, tmp_path / "data")
    assert "has 75 samples per device, 75 in all, weak scaling, none" in refusal(sweep, tmp_path / "batch")
    (tmp_path / "bad" / "0" / RESULT_FILE).write_text("{")
    assert "is no whole JSON file" in refusal(sweep, tmp_path / "bad")


def test_a_baseline_among_failed_rows_only(tmp_path, other):
    sweeps.write_results(tmp_path / "failed", [sweeps.failed_run()])
    (row,) = plain_rows(survey(tmp_path / "failed", tmp_path / "other").pooled)
    assert row["speedup_given"] is None


def test_a_named_baseline_is_not_used_as_an_automatic_one(other, tmp_path):
    sweeps.sweep(tmp_path / "twos", ("horovod_nccl",), (2,), **ALPHA)
    (row,) = plain_rows(load(tmp_path / "twos", tmp_path / "other"))
    assert row["baseline_self_id"] is None and row["speedup_given"] is not None
    assert Baselines.among([other]).find_self(sweeps.run("horovod_nccl", 2, **ALPHA)) is other
