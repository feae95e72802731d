"""The simulated strategy: sleeps as told and meets as told; that it fails as told is in tests/faults. Its ranks are
threads here."""

import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from scalebench.core.spec import StrategySpec, TrainSpec
from scalebench.runner.launchers.rank_environment import find_free_ports
from scalebench.strategies import rank_channel, simulated
from scalebench.strategies.base import LossPart
from scalebench.strategies.simulated import Simulated
from scalebench.workloads import datasets
from tests.builders.runs import simulated_spec

BATCH = SimpleNamespace(samples=10)


@pytest.fixture
def slept(monkeypatch):
    """What was slept, without sleeping; a wait of 0 is none."""
    times = []
    monkeypatch.setattr(simulated, "time", SimpleNamespace(sleep=lambda s: times.append(s) if s else None))
    return times


@pytest.fixture
def meet(monkeypatch):
    """Run `work` on every rank of a group at once; what each gives."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(find_free_ports(1)[0]))
    monkeypatch.setenv("SCALEBENCH_RUN_ID", "an id")

    def together(work, gpus, **changes):
        spec = simulated_spec(gpus, **changes)

        def of(rank):
            strategy = Simulated(spec, rank)
            strategy.setup()
            try:
                return work(strategy)
            finally:
                strategy.close()
                strategy.close()

        with ThreadPoolExecutor(gpus) as pool:
            return list(pool.map(of, range(gpus)))

    return together


def test_a_step_takes_its_time(slept):
    options = {"step_s": 1.0, "warmup_s": 10.0, "warmup_steps": 2, "straggler_rank": 0, "straggler_s": 100.0}
    strategy = Simulated(simulated_spec(options=options), 0)
    parts = [strategy.step(BATCH) for _ in range(3)]
    assert slept == [111.0, 111.0, 101.0]
    assert [part.loss_sum for part in parts] == pytest.approx([10.0, 5.0, 10 / 3])
    assert {part.samples for part in parts} == {10}
    assert all(isinstance(part, LossPart) for part in parts)


def test_setup_loading_and_samples_take_their_time(slept):
    options = {"setup_s": 5.0, "loading_s": 2.0, "step_s": 1.0, "sample_s": 0.5, "sample_bytes": 8}
    spec = simulated_spec(options=options)
    strategy, (train, _) = Simulated(spec, 0), datasets.open_sources(spec, 0, 1)
    strategy.setup()
    assert len(list(itertools.islice(strategy.feed(train), 3))) == 3
    strategy.step(BATCH)
    assert slept == [5.0, *[2.0] * 3, 6.0]


def test_the_validation_error_falls_with_the_steps(slept):
    spec = simulated_spec(options={"learning": 0.5, "evaluate_s": 3.0, "step_s": 0.0})
    strategy, (train, validation) = Simulated(spec, 0), datasets.open_sources(spec, 0, 1)
    assert validation is not None
    strategy.step(BATCH)
    strategy.step(BATCH)
    assert strategy.evaluate(validation) == {"mse": pytest.approx(math.exp(-1.0))}
    assert strategy.evaluate(train) == {"mse": pytest.approx(math.exp(-1.0) / 2)}
    assert slept == [3.0, 3.0]
    assert Simulated(simulated_spec(), 0).evaluate(validation) == {"mse": 0.0}


def test_the_validation_error_depends_on_the_learning_rate():
    for rate, mse in ((0.01, 0.0), (0.1, 1.0), (0.001, 1.0), (1e-4, 4.0)):
        spec = simulated_spec(options={"best_rate": 0.01}, train=TrainSpec(batch_per_device=10, learning_rate=rate))
        _, validation = datasets.open_sources(spec, 0, 1)
        assert Simulated(spec, 0).evaluate(validation) == {"mse": pytest.approx(mse, abs=1e-12)}


def test_it_diverges_and_fails_as_configured(slept):
    strategy = Simulated(simulated_spec(options={"diverge_step": 2, "step_s": 0.0}), 0)
    losses = [strategy.step(BATCH).loss_sum for _ in range(4)]
    assert [math.isnan(loss) for loss in losses] == [False, False, True, False]


def test_synchronization_takes_time_while_it_is_on(slept):
    strategy = Simulated(simulated_spec(options={"step_s": 1.0, "sync_s": 10.0}), 0)
    for on in (True, False, True):
        strategy.set_gradient_sync(on)
        strategy.step(BATCH)
    assert slept == [1.0, 10.0, 1.0, 1.0, 10.0]
    slept.clear()
    strategy.run_isolated_sync([1])
    assert slept == [10.0]


def test_ranks_wait_for_each_other_in_each_step_unless_asynchronous(meet):
    def steps(strategy):
        begin_s = time.monotonic()
        for _ in range(3):
            strategy.step(BATCH)
        return time.monotonic() - begin_s

    options = {"step_s": 0.0, "straggler_rank": 1, "straggler_s": 0.2}
    assert min(meet(steps, 2, options=options)) > 0.55
    replicas = StrategySpec("simulated", baseline="simulated", options=options, independent=True)
    fast, slow = meet(steps, 2, strategy=replicas)
    assert slow > 0.55 and fast < slow / 2


def test_a_group_that_does_not_connect_fails(meet, monkeypatch):
    monkeypatch.setattr(rank_channel, "JOIN_TIMEOUT_S", 0.2)
    spec = simulated_spec(2)
    with pytest.raises(ConnectionRefusedError):
        Simulated(spec, 1).setup()
    with pytest.raises(TimeoutError, match=r"only 1 of 2 ranks met within 0\.2 s"):
        Simulated(spec, 0).setup()
