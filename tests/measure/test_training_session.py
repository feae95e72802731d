"""Whole runs that train to a stop, of the strategy that sleeps as told: what they leave in their record."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from scalebench.analysis.load import load
from scalebench.core.errors import InputError
from scalebench.core.result import RankRecord, Result
from scalebench.core.spec import DatasetSpec, RunSpec, StopSpec, TrainSpec
from scalebench.measure.progress import ProgressFile
from scalebench.measure.session import Session
from scalebench.runner.parent import run_spec
from scalebench.strategies.simulated import Simulated
from scalebench.workloads import datasets
from tests.builders.runs import in_parallel, simulated_spec

LEARNS = {"step_s": 0.001, "learning": 0.05}  # mse after n steps: exp(-n / 20)
PER_EPOCH = 24  # steps, of 480 samples on two devices


def spec_of(
    gpus: int = 2,
    stop: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    measure: dict[str, Any] | None = None,
    size: int = 640,
    share: float = 0.25,
    **train: Any,
) -> RunSpec:
    trains = TrainSpec(batch_per_device=10, stop=StopSpec(**(stop or {})), **train)
    data = DatasetSpec("materials", size=size, validation_share=share)
    return simulated_spec(gpus, {**LEARNS, **(options or {})}, measure, train=trains, dataset=data)


def one_rank(tmp_path: Path, spec: RunSpec) -> tuple[RankRecord, Simulated]:
    record, strategy = RankRecord(0, "here", os.getpid()), Simulated(spec, 0)
    Session(spec, strategy, record, ProgressFile(tmp_path, 0, os.getpid())).run()
    return record, strategy


RUNS: dict[str, dict[str, Any]] = {
    "epochs": {"stop": {"epochs": 2.5}, "options": {"evaluate_s": 0.05}},
    "early": {"stop": {"steps": 3}, "size": 80},
    "target": {"stop": {"target": 0.1}, "evaluate_epochs": 0.5},
    "never": {"stop": {"target": 1e-9, "steps": 40}, "options": {"straggler_rank": 1, "straggler_s": 0.002}},
    "seconds": {"stop": {"seconds": 0.3}, "evaluate_epochs": None, "evaluate_s": 0.1},
    "nothing to validate": {"stop": {"steps": 5}, "share": 0.0},
    "too few to validate": {"stop": {"steps": 5}, "share": 0.001},
    "loss": {"stop": {"epochs": 3}, "options": {"diverge_step": 29}},
    "loss of a throughput run": {"options": {"diverge_step": 29}},
    "probed": {"stop": {"steps": 4}, "measure": {"probes": True}},
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Result, Path]]:
    top = tmp_path_factory.mktemp("trainings")
    return in_parallel(lambda name: (run_spec(spec_of(**RUNS[name]), top / name), top / name), RUNS, at_once=3)


def test_a_training_leaves_its_curve(results: dict[str, tuple[Result, Path]]) -> None:
    result, folder = results["epochs"]
    quality = result.quality
    assert (result.status, quality.stopped_by, quality.time_to_target_s) == ("ok", "epochs", None)
    assert [point.step for point in quality.curve] == [24, 48, 60]
    assert [point.epochs for point in quality.curve] == [1.0, 2.0, 2.5]
    assert quality.curve[0].metrics["mse"] == pytest.approx(2 * quality.curve[0].train_metrics["mse"])
    assert quality.curve[0].loss == pytest.approx(sum(1 / k for k in range(1, 25)) / 24)
    assert quality.metric == quality.curve[-1].metrics["mse"] and quality.learning_rate == 1e-3
    assert [rank.stopped_by for rank in result.ranks] == ["epochs"] * 2
    assert quality.curve[-1].train_s == max(rank.curve[-1].train_s for rank in result.ranks) >= 0.059
    for rank in result.ranks:
        assert rank.block_s and rank.first_step_s is not None
        blocks_s = sum(rank.warmup_block_s[1:]) + sum(rank.block_s)
        assert blocks_s <= rank.curve[-1].train_s + 1e-9, "and what was cut short"
    row = load(folder).iloc[0]
    assert (row["stopped_by"], row["points"], row["trained_steps"]) == ("epochs", 3, 60)
    assert row["generalisation_gap"] == pytest.approx(quality.curve[-1].metrics["mse"] / 2)
    assert row["throughput_samples_per_s"] > 0


def test_looks_are_in_no_other_phase(results: dict[str, tuple[Result, Path]]) -> None:
    """Three points of two looks of 50 ms each, between steps of 1 ms."""
    result, _ = results["epochs"]
    phases = result.phases
    assert phases.evaluate_s is not None and phases.evaluate_s >= 0.3
    whole_s = result.ranks[0].marks_s["probes"] - result.ranks[0].marks_s["warmup"]
    assert phases.warmup_s + phases.measure_s + phases.evaluate_s == pytest.approx(whole_s)  # type: ignore[operator]
    assert result.quality.curve[-1].train_s < whole_s - 0.3


def test_a_training_that_was_over_within_warm_up(results: dict[str, tuple[Result, Path]]) -> None:
    """An epoch is three steps: its seconds are those of the training, of which the first does not count."""
    result, folder = results["early"]
    assert (result.status, result.flags, result.phases.measure_s) == ("ok", ["over_in_warmup"], None)
    assert result.quality.final_loss == result.quality.curve[-1].loss
    row = load(folder).iloc[0]
    assert row[["throughput_samples_per_s", "step_s", "epoch_s"]].isna().all()
    assert row["trained_s"] == result.quality.curve[-1].train_s and "over_in_warmup" in row["flags"]


def test_the_time_to_the_target_is_of_its_first_point(results: dict[str, tuple[Result, Path]]) -> None:
    result, _ = results["target"]
    curve = result.quality.curve
    assert [point.step for point in curve] == [12, 24, 36, 48], "exp(-48 / 20) is the first below 0.1"
    assert (result.status, result.quality.stopped_by) == ("ok", "target")
    assert result.quality.time_to_target_s == curve[-1].train_s > 0
    assert result.spec["train"]["stop"]["seconds"] == 60.0, "a target alone gives up"


def test_a_target_that_is_never_reached_is_null(results: dict[str, tuple[Result, Path]]) -> None:
    result, folder = results["never"]
    assert (result.status, result.quality.stopped_by, result.quality.time_to_target_s) == ("ok", "steps", None)
    assert load(folder)["time_to_target_s"].isna().all()
    assert [point.step for point in result.quality.curve] == [24, 40]


def test_seconds_are_of_rank_0_and_all_stop_at_its_word(results: dict[str, tuple[Result, Path]]) -> None:
    result, _ = results["seconds"]
    first, second = result.ranks
    assert result.quality.stopped_by == "seconds" and first.curve[-1].train_s >= 0.3
    assert [p.step for p in first.curve] == [p.step for p in second.curve] and len(first.curve) >= 2
    assert len(first.block_s) == len(second.block_s)


@pytest.mark.parametrize("name", ["nothing to validate", "too few to validate"])
def test_without_validation_there_are_losses_alone(name: str, results: dict[str, tuple[Result, Path]]) -> None:
    result, folder = results[name]
    (point,) = result.quality.curve
    assert (result.status, point.metrics, point.train_metrics) == ("ok", {}, {}) and point.loss is not None
    assert result.quality.metric is None
    assert load(folder)[["metric", "generalisation_gap", "train_metric"]].isna().all(axis=None)


def test_a_loss_that_is_no_number_is_a_failed_run_with_its_update(results: dict[str, tuple[Result, Path]]) -> None:
    for name in ("loss", "loss of a throughput run"):
        result, _ = results[name]
        assert result.status == "failed" and result.reason is not None
        assert "Diverged: the loss of step 30 is nan; lower train.learning_rate" in result.reason
    assert [point.step for point in results["loss"][0].quality.curve] == [24], "what there was before"


def test_probes_come_after_a_training_that_measured_nothing(results: dict[str, tuple[Result, Path]]) -> None:
    result, _ = results["probed"]
    assert result.status == "ok" and all(rank.probes is not None and rank.probes.sync_on_s for rank in result.ranks)


def test_rates_follow_the_schedule_through_both_stages(tmp_path: Path) -> None:
    spec = spec_of(1, {"steps": 400}, schedule="linear", learning_rate=0.4, evaluate_epochs=None)
    record, strategy = one_rank(tmp_path, spec)
    assert strategy.rates[:400] == pytest.approx([0.4 * (1 - k / 400) for k in range(400)])
    assert [point.learning_rate for point in record.curve] == [pytest.approx(0.001)]
    assert record.block_s, "warm-up is over before"


def test_a_look_that_finds_no_number_fails(tmp_path: Path) -> None:
    class Lost(Simulated):
        def evaluate(self, source: Any) -> dict[str, float]:
            return {"mse": float("nan")}

    spec = spec_of(1, {"steps": 40}, evaluate_epochs=0.5)
    record = RankRecord(0, "here", os.getpid())
    with pytest.raises(RuntimeError, match="mse is nan after step 24"):
        Session(spec, Lost(spec, 0), record, ProgressFile(tmp_path, 0, os.getpid())).run()
    assert record.curve == [] and record.metrics == {}


def test_a_file_with_too_few_samples_to_validate(tmp_path: Path) -> None:
    """How many it has is not known before."""
    spec = spec_of(1, {"target": 0.1, "steps": 40})
    spec.config.dataset = dataclasses.replace(spec.config.dataset, validation_share=0.0)
    with pytest.raises(InputError, match="fewer samples to validate than replicas"):
        one_rank(tmp_path, spec)


def test_as_many_samples_trained_on_as_there_are_to_validate() -> None:
    spec = spec_of(2, size=100)
    alike = datasets.open_training_subset(spec, 0, 2)
    assert alike is not None and (alike.samples, alike.first) == (25, 0)
    mostly = spec_of(2, size=100, share=0.7)
    alike = datasets.open_training_subset(mostly, 1, 2)
    assert alike is not None and alike.samples == 30, "all there are"
    assert datasets.open_training_subset(spec_of(2, size=100, share=0.01), 0, 2) is None
