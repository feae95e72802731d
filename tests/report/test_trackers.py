"""Finished runs in other trackers: written in their offline modes, and read back by their own readers."""

import importlib.util
import math
import struct

import pytest

from scalebench.core.errors import InputError
from scalebench.core.result import CurvePoint, Quality
from scalebench.report import trackers
from tests.builders.runs import rank, record
from tests.builders.sweeps import write_results

RATE = 200.0  # samples/s of blocks of 20 samples in 0.1 s
STEPS = [5, 7, 9, 12]  # at the ends of the blocks: a point of the curve after step 10 cut one short


def make_results():
    """Make a run with a point of its curve before the last of its four blocks, and one that failed."""
    curve = [CurvePoint(10, 0.1, 200, 1.0, 0.01, 0.7, 200, {"mse": 0.5}), CurvePoint(20, 0.2, 400, 2.0, 0.01, 0.6, 200)]
    first = rank(0, [0.1] * 4, warmup_block_steps=1, warmup_block_s=[0.1] * 3)
    good = record(ranks=[first], run_id="good", quality=Quality(final_loss=0.5, curve=curve))
    return [good, record(gpus=2, status="failed", block_s=None, run_id="bad")]


@pytest.fixture
def sweep(tmp_path):
    write_results(tmp_path / "s", make_results())
    return tmp_path / "s"


def test_a_run_as_trackers_hold_it(sweep):
    good, bad = trackers.list_tracked_runs(trackers.survey(sweep))
    assert (good.run_id, good.name, good.group, good.is_ok) == ("good", "ddp-1", "s", True)
    assert (bad.name, bad.is_ok) == ("ddp-2", False)
    assert good.settings["strategy.name"] == "ddp" and good.figures["throughput_samples_per_s"] == pytest.approx(RATE)
    assert "mfu" not in good.figures and bad.series == {} and bad.texts["reason"] == "failed as configured"
    assert not good.figures.keys() & good.series.keys(), "the last point would stand for the figure"
    assert [point.step for point in good.series["block/loss"]] == STEPS
    rates = good.series["block/throughput_samples_per_s"]
    assert [point.step for point in rates] == STEPS and [point.value for point in rates] == pytest.approx([RATE] * 4)
    assert [point[::2] for point in good.series["curve/train/loss"]] == [(10, 0.7), (20, 0.6)]
    assert [point[::2] for point in good.series["curve/validation/mse"]] == [(10, 0.5)]


def test_a_tracker_that_is_not_installed_is_one_line(sweep, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"mlflow is not installed; pip install 'scalebench-train\[trackers\]'"):
        trackers.export("mlflow", [sweep])


@pytest.mark.extra("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_written(sweep, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (line,) = trackers.export("mlflow", [sweep], project="scaling")
    assert line.startswith("2 runs in experiment 'scaling'")
    (line,) = trackers.export("mlflow", [sweep], project="scaling")
    assert line.startswith("0 runs"), "they are there"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient((sweep / "mlflow/mlruns").as_uri())
    experiment = client.get_experiment_by_name("scaling")
    runs = {run.data.tags[trackers.RUN_ID_TAG]: run for run in client.search_runs([experiment.experiment_id])}
    assert {run_id: run.info.status for run_id, run in runs.items()} == {"good": "FINISHED", "bad": "FAILED"}
    good = runs["good"]
    assert good.data.params["strategy.name"] == "ddp" and good.data.tags["group"] == "s"
    assert good.data.metrics["throughput_samples_per_s"] == pytest.approx(RATE)
    assert len(client.get_metric_history(good.info.run_id, "throughput_samples_per_s")) == 1
    assert [point.step for point in client.get_metric_history(good.info.run_id, "curve/train/loss")] == [10, 20]


def read_offline_run(file):
    """Return the records of wandb's offline file, a log of LevelDB after seven bytes, as its own type: it has no reader
    in Python."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts, records = file.read_bytes(), 7, b"", []
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:  # a header is never divided between two blocks
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or its last part
            records.append(Record.FromString(parts))
            parts = b""
    return records


@pytest.mark.extra("wandb")
@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_what_was_written(sweep, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    try:
        (line,) = trackers.export("wandb", [sweep])
    finally:
        wandb.teardown()  # its service, which else lives as long as this process
    assert line == f"wandb sync {sweep}/wandb/wandb/offline-run-*"
    found = {}
    for file in (sweep / "wandb").rglob("*.wandb"):
        records = read_offline_run(file)
        (run_id,) = {each.run.run_id for each in records if each.WhichOneof("record_type") == "run"}
        found[run_id] = records
    assert sorted(found) == ["bad", "good"]
    history = [item for each in found["good"] for item in each.history.item]
    losses = [float(item.value_json) for item in history if "block/loss" in (item.key, *item.nested_key)]
    assert losses == [0.5] * 4
    updates = [item for each in found["good"] for item in each.summary.update]
    summary = {item.key or item.nested_key[0]: item.value_json for item in updates}
    assert math.isclose(float(summary["throughput_samples_per_s"]), RATE, rel_tol=1e-6)
    assert [each.exit.exit_code for each in found["bad"] if each.WhichOneof("record_type") == "exit"] == [1]
