"""A group whose clock is made up: every duration is drawn beforehand from known noise, so that each figure has a truth.

All ranks are simulated wherever one of them runs, by the same numbers; so each rank's session runs alone, in full, and
what rank 0 broadcast is kept and told to the others.

Noise of known shape: factors that durations are multiplied by, update after update.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from scipy.signal import lfilter

from scalebench.core.result import RankRecord
from scalebench.core.spec import MeasureSpec
from scalebench.core.stats.estimates import FloatArray
from scalebench.measure.session import Session
from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER, LossPart, Strategy
from tests.builders.runs import record, simulated_spec

Shape = tuple[int, ...]  # the last axis is time
Noise = Callable[[np.random.Generator, Shape], FloatArray]
SPIKE, SPIKES = 5.0, 0.01  # how much longer, and how often


def white(width=0.05):
    """Independent and normal; `width` is the standard deviation, here and below."""
    return lambda rng, shape: 1 + width * rng.standard_normal(shape)


def lognormal(width=0.15):
    """Skewed, as times are; of median less than 1 and mean 1."""
    return lambda rng, shape: np.exp(width * rng.standard_normal(shape) - width**2 / 2)


def spikes(width=0.01):
    """The machine interrupts one update in a hundred, which then takes five times as long."""

    def noise(rng, shape):
        hit = np.where(rng.random(shape) < SPIKES, SPIKE, 1.0)
        return hit * (1 + width * rng.standard_normal(shape))

    return noise


def autoregressive(correlation, width=0.05):
    """AR(1): neighbours resemble each other by so much, from the first on."""

    def noise(rng, shape):
        steps = rng.standard_normal(shape)
        steps[..., 1:] *= np.sqrt(1 - correlation**2)
        return 1 + width * lfilter([1.0], [1.0, -correlation], steps, axis=-1)

    return noise


UNTIL = {FORWARD: 0.3, BACKWARD: 0.8, OPTIMIZER: 1.0}  # of an update's own time
MESSAGE_BYTES = 1000
BATCH = 10


@dataclass(frozen=True)
class Times:
    """Mean seconds, before noise. The last rank straggles."""

    step_s: float = 0.0010
    loading_s: float = 0.0002
    sync_s: float = 0.0004
    straggler_s: float = 0.0005
    copy_s: float = 0.0010
    warmup_s: tuple[float, ...] = ()  # on top of each of the first updates
    drift: float = 0.0  # how much longer everything takes after 10,000 updates, as a share


@dataclass
class Draws:
    """What each update takes, drawn beforehand: lists by rank of lists by update; an exchange is common to all."""

    own_s: list[list[float]]
    loading_s: list[list[float]]
    sync_s: list[float]

    @classmethod
    def of(cls, times, noise, ranks, updates, seed):
        own, loading, sync = arrays(times, noise, ranks, updates, np.random.default_rng(seed))
        own[:, : len(times.warmup_s)] += np.array(times.warmup_s)
        return cls(own.tolist(), loading.tolist(), sync.tolist())


def arrays(times, noise, ranks, updates, rng):
    """(own, loading, sync) seconds: shapes (ranks, updates), (ranks, updates), (updates,)."""
    straggles = np.arange(ranks) == (ranks - 1 if ranks > 1 else -1)
    mean_s = times.step_s + times.straggler_s * straggles
    drawn = noise(rng, (2 * ranks + 1, updates)) * (1 + times.drift * np.arange(updates) / 10_000)
    return mean_s[:, None] * drawn[:ranks], times.loading_s * drawn[ranks:-1], times.sync_s * drawn[-1]


class Simulated(Strategy):
    """One rank of the group; `words` are what rank 0 broadcast, in order."""

    def __init__(self, spec, rank, times, draws, arguments):
        super().__init__(spec, rank)
        self.times, self._draws = times, draws
        self._words, self._heard = arguments, iter(list(arguments))
        self._now_s = [0.0] * spec.processes
        self._at = 0  # which update's draws come next
        self._syncing = spec.processes > 1

    def clock(self):
        return self._now_s[self.place.rank]

    def setup(self):
        pass

    def feed(self, source):
        """Batches without content: to draw real ones would take longer than all else here."""
        batch = SimpleNamespace(samples=BATCH)
        while True:
            self._pass(self._draws.loading_s)
            yield batch

    def step(self, batch):
        self._pass(self._draws.own_s)
        if self._syncing:
            self._meet(self._draws.sync_s[self._at])
        self._at += 1
        return LossPart(0.0, batch.samples)

    def synchronize(self):
        pass

    def broadcast(self, value):
        self._meet()
        if self.place.rank == 0:
            self._words.append(value)
            return value
        return next(self._heard)

    def set_gradient_sync(self, on):
        self._syncing = on

    def message_sizes(self):
        return [MESSAGE_BYTES] if self.spec.processes > 1 else []

    def run_isolated_sync(self, sizes):
        self._meet(self._draws.sync_s[self._at])
        self._at += 1

    def partial_step(self, batch, until):
        self._pass(self._draws.own_s, UNTIL[until])
        self._at += 1

    def copy_batch(self, batch):
        self._pass(self._draws.loading_s, self.times.copy_s / self.times.loading_s)
        self._at += 1

    def backend_used(self):
        return None

    def evaluate(self, source):
        return {}

    def _pass(self, of_ranks, share=1.0):
        at = self._at
        self._now_s = [now_s + share * seconds[at] for now_s, seconds in zip(self._now_s, of_ranks, strict=False)]

    def _meet(self, sync_s=0.0):
        self._now_s = [max(self._now_s) + sync_s] * self.spec.processes


@cache
def _spec(ranks):
    return simulated_spec(ranks)


@cache
def _result(ranks):
    return record("simulated", gpus=ranks)


def spec_of(ranks, **measure):
    """With the settings of conf/measure/default.yaml, but for `measure`: fields of MeasureSpec."""
    spec = _spec(ranks)
    settings = MeasureSpec(**{"evaluate": False, **measure})
    return replace(spec, config=replace(spec.config, measure=settings))


def run(spec, times, noise, updates, seed):
    """All sessions of one run; `updates` bound how many it can have."""
    draws, arguments, ranks = Draws.of(times, noise, spec.processes, updates, seed), [], []
    for rank in range(spec.processes):
        strategy = Simulated(spec, rank, times, draws, arguments)
        actual = RankRecord(rank, "simulated", rank)
        Session(spec, strategy, actual, _NoProgress(), strategy.clock).run()
        ranks.append(actual)
    result = _result(spec.processes)
    measure = {**result.spec["measure"], "target": spec.config.measure.target}
    return replace(result, ranks=ranks, spec={**result.spec, "measure": measure})


class _NoProgress(SimpleNamespace):
    """Nobody looks on."""

    folder, rss_anon_peak_bytes = Path(), None

    def enter_phase(self, name, limit_s=None):
        pass

    def update(self, steps, samples, elapsed_s, step_s=None):
        pass


UPDATES = 1_000_000
ROUNDING = 1e-9


def contains(one, value):
    return one is not None and one.has_limits and one.low - ROUNDING <= value <= one.high + ROUNDING


def truths(times, noise, ranks):
    """What each figure is by its definition, from a million updates: means over ranks."""
    own, loading, sync = arrays(times, noise, ranks, UPDATES, np.random.default_rng(99))
    alone = own + loading
    on = alone.max(axis=0) + (sync if ranks > 1 else 0.0)
    forward, backward, complete = (share * own.mean() for share in UNTIL.values())
    actual = {
        "throughput": BATCH * ranks / on.mean(),
        "data_s": loading.mean(),
        "copy_s": loading.mean() * times.copy_s / times.loading_s,
        "forward_s": forward,
        "backward_s": backward - forward,
        "optimizer_s": complete - backward,
    }
    if ranks > 1:
        actual["sync_isolated_s"] = sync.mean()
        actual["sync_exposed_s"] = on.mean() - alone.mean()
        actual["imbalance_s"] = alone.max(axis=0).mean() - alone.mean()
    return {name: float(value) for name, value in actual.items()}
