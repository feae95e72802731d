"""All probes of one rank, of a strategy whose time is a clock of our own: what runs, in which state, and what is told
where it cannot run. Figures against known truth are in tests/truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalebench.core.result import ProbeRecord, Profile
from scalebench.core.spec import RunSpec, StrategySpec
from scalebench.measure.probes import ALONE, APART, Probing
from scalebench.strategies.base import PARTS, LossPart, NotMeasured
from scalebench.strategies.simulated import Simulated
from scalebench.workloads import datasets
from tests.builders.runs import simulated_spec

STEP_S, EXCHANGE_S, PART_S, COPY_S = 0.010, 0.004, {"forward": 0.003, "backward": 0.008, "optimizer": 0.010}, 0.001


class Timed(Simulated):
    """A rank whose peers are always there at once. `cannot` names the hooks that it does not have."""

    cannot: frozenset[str] = frozenset()

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec, 0)
        self.now_s, self.exchanging = 0.0, True
        self.during: dict[str, set[bool]] = {}  # hook -> whether the exchange was on

    def passes(self, hook: str, seconds: float) -> None:
        if hook in self.cannot:
            raise NotMeasured(f"no {hook} here")
        self.during.setdefault(hook, set()).add(self.exchanging)
        self.now_s += seconds

    def set_gradient_sync(self, on: bool) -> None:
        self.passes("set_gradient_sync", 0.0)
        self.exchanging = on

    def step(self, batch: Any) -> LossPart:
        self.passes("step", STEP_S + (EXCHANGE_S if self.exchanging else 0.0))
        return LossPart(1.0, 1)

    def partial_step(self, batch: Any, until: str) -> None:
        self.passes(until, PART_S[until])

    def run_isolated_sync(self, sizes: list[int]) -> None:
        self.passes("run_isolated_sync", EXCHANGE_S * len(sizes))

    def copy_batch(self, batch: Any) -> None:
        self.passes("copy", COPY_S)

    def profile(self, updates: int, trace: Path | None) -> Profile:
        self.passes("profile", 0.1)
        if trace is not None:
            trace.write_bytes(b"")
        return Profile(updates, 0.02)

    def broadcast(self, value: float) -> float:
        return value


def probed(
    folder: Path, kind: type[Timed] = Timed, gpus: int = 2, messages: tuple[int, ...] = (8, 8), **changes: Any
) -> tuple[ProbeRecord, Timed, list[float]]:
    measure = {"block_s": 0.05, "probe_s": 2.0, **changes.pop("measure", {})}
    spec = simulated_spec(gpus, measure=measure, **changes)
    strategy, lives = kind(spec), []
    train, _ = datasets.open_sources(spec, 0, gpus)
    report: Callable[[], None] = lambda: lives.append(strategy.now_s)  # noqa: E731
    probing = Probing(spec, strategy, STEP_S + EXCHANGE_S, list(messages), report, lambda: strategy.now_s)
    probing.run(train, folder)
    return probing.found, strategy, lives


def test_every_quantity_is_measured(tmp_path: Path) -> None:
    found, strategy, lives = probed(tmp_path)
    assert found.reasons == {}
    steps = found.steps or 0
    assert steps == 4, "about block_s"
    (own,) = found.local_step_s
    known = {
        steps * (STEP_S + EXCHANGE_S): [found.sync_on_s],
        steps * STEP_S: [found.sync_off_s, found.fixed_batch_s],
        STEP_S: [own],
        (found.isolated_sync_repeats or 0) * 2 * EXCHANGE_S: [found.isolated_sync_s],
        (found.copy_repeats or 0) * COPY_S: [found.copy_s],
    }
    known |= {(found.part_steps or 0) * PART_S[part]: [getattr(found, f"{part}_s")] for part in ("forward", "backward")}
    for seconds, series in known.items():
        for one in series:
            assert len(one) >= 4 and one == pytest.approx([seconds] * len(one))
    assert found.optimizer_s == pytest.approx([(found.part_steps or 0) * PART_S["optimizer"]] * len(found.optimizer_s))
    assert found.profile == Profile(5, 0.02) and found.trace is None
    assert len(lives) >= 6, "signs of life between probes"
    assert strategy.exchanging


def test_parts_are_taken_without_an_exchange_and_the_rest_with_it(tmp_path: Path) -> None:
    _, strategy, _ = probed(tmp_path)
    assert all(strategy.during[part] == {False} for part in PARTS)
    assert strategy.during["profile"] == strategy.during["run_isolated_sync"] == {True}
    assert strategy.during["step"] == {True, False}


def test_probes_take_about_as_long_as_they_may(tmp_path: Path) -> None:
    short, long = (probed(tmp_path, measure={"probe_s": seconds})[1].now_s for seconds in (1.0, 4.0))
    assert 3 * short < long < 5 * short


@pytest.mark.parametrize(("gpus", "others"), [(2, set()), (1, {"isolated"})])
def test_slow_updates_are_not_made_by_the_dozen(tmp_path: Path, gpus: int, others: set[str]) -> None:
    found, strategy, _ = probed(tmp_path, gpus=gpus, measure={"probe_s": 0.01})
    assert set(found.reasons) == {"exposed", "data", "imbalance", *PARTS} | others
    why = "an update takes 0.014 s, longer than measure.probe_s: raise that to have its parts measured"
    assert [found.reasons[name] for name in ("data", *PARTS)] == [why] * 4
    assert {found.reasons["exposed"], found.reasons["imbalance"]} == {why if gpus > 1 else ALONE}
    assert found.profile is not None and found.copy_s and bool(found.isolated_sync_s) == (gpus > 1)
    assert "step" not in strategy.during and strategy.exchanging


@pytest.mark.parametrize(
    ("cannot", "told"),
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
    cannot: set[str], told: set[str], tmp_path: Path
) -> None:
    kind = type("Limited", (Timed,), {"cannot": frozenset(cannot)})
    found, strategy, _ = probed(tmp_path, kind)
    assert set(found.reasons) == told
    assert all(reason.startswith("no ") for reason in found.reasons.values())
    assert found.sync_on_s and found.fixed_batch_s
    assert bool(found.sync_off_s) == bool(found.local_step_s) == ("set_gradient_sync" not in cannot)
    assert bool(found.isolated_sync_s) == ("run_isolated_sync" not in cannot)
    assert bool(found.forward_s) == ("forward" not in cannot)
    assert bool(found.optimizer_s) == ("optimizer" not in cannot)
    assert strategy.exchanging


def test_without_a_switch_data_is_told_by_blocks_with_the_exchange(tmp_path: Path) -> None:
    kind = type("Limited", (Timed,), {"cannot": frozenset({"set_gradient_sync"})})
    found, strategy, _ = probed(tmp_path, kind)
    assert found.fixed_batch_s == pytest.approx(found.sync_on_s) and strategy.during["step"] == {True}


def test_one_device_has_nobody_to_wait_for(tmp_path: Path) -> None:
    found, _, _ = probed(tmp_path, gpus=1)
    assert found.reasons == dict.fromkeys(("exposed", "imbalance", "isolated"), ALONE)
    assert found.sync_on_s and found.fixed_batch_s and found.forward_s and not found.sync_off_s


def test_replicas_without_an_exchange_wait_for_nobody(tmp_path: Path) -> None:
    strategy = StrategySpec("simulated", baseline="simulated", lockstep=False)
    found, _, _ = probed(tmp_path, strategy=strategy)
    assert found.reasons == dict.fromkeys(("exposed", "imbalance", "isolated"), APART)


def test_unknown_messages_cannot_be_sent(tmp_path: Path) -> None:
    found, _, _ = probed(tmp_path, messages=())
    assert found.reasons == {"isolated": "null does not know the sizes of its messages"}


def test_samples_that_others_read_are_not_told_apart(tmp_path: Path) -> None:
    found, _, _ = probed(tmp_path, type("Remote", (Timed,), {"reads_in_step": True}))
    assert set(found.reasons) == {"data"} and not found.fixed_batch_s


def test_a_trace_is_kept_where_it_was_asked_for(tmp_path: Path) -> None:
    found, _, _ = probed(tmp_path, measure={"trace": True})
    assert found.trace == "trace0.json.gz"
    assert (tmp_path / found.trace).exists()
