"""All probes of one rank, of a strategy whose time is a clock of our local: what runs, in which state, and what is unmeasured
where it lacks run. Figures against expected truth are in tests/truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalebench.core.result import ProbeRecord, Profile
from scalebench.core.spec import RunSpec, StrategySpec
from scalebench.measure.probes import NO_SYNC, ONE_DEVICE, ProbeRunner
from scalebench.strategies.base import PARTS, LossPart, NotMeasured
from scalebench.strategies.simulated import Simulated
from scalebench.workloads import datasets
from tests.builders.runs import simulated_spec

STEP_S, SYNC_S, PART_S, COPY_S = 0.010, 0.004, {"forward": 0.003, "backward": 0.008, "optimizer": 0.010}, 0.001


class Timed(Simulated):
    """A rank whose peers are always there at once. `lacks` names the hooks that it does not have."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec, 0)
        self.now_s, self.syncing = 0.0, True
        self.during: dict[str, set[bool]] = {}  # hook -> whether the sync was on

    def passes(self, hook: str, seconds: float) -> None:
        if hook in self.lacks:
            raise NotMeasured(f"no {hook} here")
        self.during.setdefault(hook, set()).add(self.syncing)
        self.now_s += seconds

    def set_gradient_sync(self, on: bool) -> None:
        self.passes("set_gradient_sync", 0.0)
        self.syncing = on

    def step(self, batch: Any) -> LossPart:
        self.passes("step", STEP_S + (SYNC_S if self.syncing else 0.0))
        return LossPart(1.0, 1)

    def partial_step(self, batch: Any, until: str) -> None:
        self.passes(until, PART_S[until])

    def run_isolated_sync(self, sizes: list[int]) -> None:
        self.passes("run_isolated_sync", SYNC_S * len(sizes))

    def copy_batch(self, batch: Any) -> None:
        self.passes("copy", COPY_S)

    def profile(self, steps: int, trace: Path | None) -> Profile:
        self.passes("profile", 0.1)
        if trace is not None:
            trace.write_bytes(b"")
        return Profile(steps, 0.02)

    def broadcast(self, value: float) -> float:
        return value


def run_probes(
    folder: Path, kind: type[Timed] = Timed, gpus: int = 2, message_bytes: tuple[int, ...] = (8, 8), **changes: Any
) -> tuple[ProbeRecord, Timed, list[float]]:
    measure = {"block_s": 0.05, "probe_s": 2.0, **changes.pop("measure", {})}
    spec = simulated_spec(gpus, measure=measure, **changes)
    strategy, reports = kind(spec), []
    train, _ = datasets.open_sources(spec, 0, gpus)
    report: Callable[[], None] = lambda: reports.append(strategy.now_s)  # noqa: E731
    runner = ProbeRunner(spec, strategy, STEP_S + SYNC_S, list(message_bytes), report, lambda: strategy.now_s)
    runner.run_step_probes(train, folder)
    return runner.record, strategy, reports


def test_every_quantity_is_measured(tmp_path: Path) -> None:
    record, strategy, reports = run_probes(tmp_path)
    assert record.reasons == {}
    steps = record.steps or 0
    assert steps == 4, "about block_s"
    (local,) = record.local_step_s
    expected = {
        steps * (STEP_S + SYNC_S): [record.sync_on_s],
        steps * STEP_S: [record.sync_off_s, record.fixed_batch_s],
        STEP_S: [local],
        (record.isolated_sync_repeats or 0) * 2 * SYNC_S: [record.isolated_sync_s],
        (record.copy_repeats or 0) * COPY_S: [record.copy_s],
    }
    expected |= {
        (record.part_steps or 0) * PART_S[part]: [getattr(record, f"{part}_s")] for part in ("forward", "backward")
    }
    for seconds, series in expected.items():
        for one in series:
            assert len(one) >= 4 and one == pytest.approx([seconds] * len(one))
    assert record.optimizer_s == pytest.approx(
        [(record.part_steps or 0) * PART_S["optimizer"]] * len(record.optimizer_s)
    )
    assert record.profile == Profile(5, 0.02) and record.trace is None
    assert len(reports) >= 6, "signs of life between probes"
    assert strategy.syncing


def test_parts_are_taken_without_an_exchange_and_the_rest_with_it(tmp_path: Path) -> None:
    _, strategy, _ = run_probes(tmp_path)
    assert all(strategy.during[part] == {False} for part in PARTS)
    assert strategy.during["profile"] == strategy.during["run_isolated_sync"] == {True}
    assert strategy.during["step"] == {True, False}


def test_probes_take_about_as_long_as_they_may(tmp_path: Path) -> None:
    short, long = (run_probes(tmp_path, measure={"probe_s": seconds})[1].now_s for seconds in (1.0, 4.0))
    assert 3 * short < long < 5 * short


@pytest.mark.parametrize(("gpus", "others"), [(2, set()), (1, {"isolated"})])
def test_slow_updates_are_not_made_by_the_dozen(tmp_path: Path, gpus: int, others: set[str]) -> None:
    record, strategy, _ = run_probes(tmp_path, gpus=gpus, measure={"probe_s": 0.01})
    assert set(record.reasons) == {"exposed", "data", "imbalance", *PARTS} | others
    why = "a step takes 0.014 s, longer than measure.probe_s: raise that to have its parts measured"
    assert [record.reasons[name] for name in ("data", *PARTS)] == [why] * 4
    assert {record.reasons["exposed"], record.reasons["imbalance"]} == {why if gpus > 1 else ONE_DEVICE}
    assert record.profile is not None and record.copy_s and bool(record.isolated_sync_s) == (gpus > 1)
    assert "step" not in strategy.during and strategy.syncing


@pytest.mark.parametrize(
    ("lacks", "unmeasured"),
    [
        ({"set_gradient_sync"}, {"exposed", "imbalance"}),
        ({"run_isolated_sync"}, {"isolated"}),
        ({"copy"}, {"copy"}),
        ({"profile"}, {"profile"}),
        ({"optimizer"}, {"optimizer"}),
        (set(PARTS), set(PARTS)),
    ],
)
def test_what_a_strategy_cannot_tell_is_left_out_with_its_reason(
    lacks: set[str], unmeasured: set[str], tmp_path: Path
) -> None:
    kind = type("Limited", (Timed,), {"lacks": frozenset(lacks)})
    record, strategy, _ = run_probes(tmp_path, kind)
    assert set(record.reasons) == unmeasured
    assert all(reason.startswith("no ") for reason in record.reasons.values())
    assert record.sync_on_s and record.fixed_batch_s
    assert bool(record.sync_off_s) == bool(record.local_step_s) == ("set_gradient_sync" not in lacks)
    assert bool(record.isolated_sync_s) == ("run_isolated_sync" not in lacks)
    assert bool(record.forward_s) == ("forward" not in lacks)
    assert bool(record.optimizer_s) == ("optimizer" not in lacks)
    assert strategy.syncing


def test_without_a_switch_data_is_told_by_blocks_with_the_exchange(tmp_path: Path) -> None:
    kind = type("Limited", (Timed,), {"lacks": frozenset({"set_gradient_sync"})})
    record, strategy, _ = run_probes(tmp_path, kind)
    assert record.fixed_batch_s == pytest.approx(record.sync_on_s) and strategy.during["step"] == {True}


def test_one_device_has_nobody_to_wait_for(tmp_path: Path) -> None:
    record, _, _ = run_probes(tmp_path, gpus=1)
    assert record.reasons == dict.fromkeys(("exposed", "imbalance", "isolated"), ONE_DEVICE)
    assert record.sync_on_s and record.fixed_batch_s and record.forward_s and not record.sync_off_s


def test_replicas_without_an_exchange_wait_for_nobody(tmp_path: Path) -> None:
    strategy = StrategySpec("simulated", baseline="simulated", lockstep=False)
    record, _, _ = run_probes(tmp_path, strategy=strategy)
    assert record.reasons == dict.fromkeys(("exposed", "imbalance", "isolated"), NO_SYNC)


def test_unknown_messages_cannot_be_sent(tmp_path: Path) -> None:
    record, _, _ = run_probes(tmp_path, message_bytes=())
    assert record.reasons == {"isolated": "null does not know the sizes of its message_bytes"}


def test_samples_that_others_read_are_not_told_apart(tmp_path: Path) -> None:
    record, _, _ = run_probes(tmp_path, type("Remote", (Timed,), {"reads_in_step": True}))
    assert set(record.reasons) == {"data"} and not record.fixed_batch_s


def test_a_trace_is_kept_where_it_was_requested(tmp_path: Path) -> None:
    record, _, _ = run_probes(tmp_path, measure={"trace": True})
    assert record.trace == "trace0.json.gz"
    assert (tmp_path / record.trace).exists()
