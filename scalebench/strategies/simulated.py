"""A strategy without a framework, which sleeps and fails as its options say: for tests, and to measure the overhead of
scalebench itself."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterable
from typing import Any

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER, LossPart, Strategy, Unsupported
from scalebench.strategies.rank_channel import RankChannel
from scalebench.workloads.source import Source


class Simulated(Strategy):
    """Sleeps for given times instead of training. Its ranks wait for each other at the end of each step, as they would
    for gradient synchronization; asynchronous ones only between phases of the run."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._group: RankChannel | None = None
        self._steps = 0
        self.rates: list[float] = []  # in the order in which they were set, for tests
        self._memory = b""
        self._syncs_gradients = not spec.config.strategy.independent

    def setup(self) -> None:
        self._fault("setup")
        self._memory = _allocate(self.options.memory_bytes)
        time.sleep(self.options.setup_s)
        if self.spec.processes > 1:
            self._group = RankChannel(self.place.rank, self.spec.processes, int(os.environ["MASTER_PORT"]))

    def feed(self, source: Source) -> Iterable[Any]:
        for batch in source:
            if self.options.loading_s:
                time.sleep(self.options.loading_s)
            yield batch

    def step(self, batch: Any) -> LossPart:
        self._fault("step")
        sleep_s = self._compute_s()
        if self._steps < self.options.warmup_steps:
            sleep_s += self.options.warmup_s
        self._steps += 1
        sample_memory = _allocate(self.options.sample_bytes * batch.samples)
        time.sleep(sleep_s + self.options.sample_s * batch.samples)
        del sample_memory
        if self._syncs_gradients:
            self.broadcast(0.0)
            if self.options.sync_s:
                time.sleep(self.options.sync_s)
        if self._steps - 1 == self.options.diverge_step:
            return LossPart(math.nan, batch.samples)
        return LossPart(1.0 / self._steps * batch.samples, batch.samples)

    def synchronize(self) -> None:
        pass

    def broadcast(self, value: float) -> float:
        """Collect a message of every rank at rank 0, which then sends its value to all: a barrier with a number."""
        return value if self._group is None else self._group.broadcast(value)

    def set_gradient_sync(self, on: bool) -> None:
        self._syncs_gradients = on

    def message_sizes(self) -> list[int]:
        return [self.options.message_bytes] if self.options.message_bytes else []

    def partial_step(self, batch: Any, until: str) -> None:
        shares = {
            FORWARD: self.options.forward_share,
            BACKWARD: self.options.forward_share + self.options.backward_share,
            OPTIMIZER: 1.0,
        }
        time.sleep(self._compute_s() * shares[until])

    def copy_batch(self, batch: Any) -> None:
        if not self.options.copy_s:
            super().copy_batch(batch)
        time.sleep(self.options.copy_s)

    def _compute_s(self) -> float:
        """Return the seconds of a step of this rank without synchronization."""
        is_straggler = self.place.rank == self.options.straggler_rank
        return float(self.options.step_s) + (self.options.straggler_s if is_straggler else 0.0)

    def run_isolated_sync(self, sizes: list[int]) -> None:
        self.broadcast(0.0)
        time.sleep(self.options.sync_s)

    def backend_used(self) -> str | None:
        return None

    def evaluate(self, source: Source) -> dict[str, float]:
        self._fault("evaluate")
        time.sleep(self.options.evaluate_s)
        best, mse = self.options.best_rate, 0.0
        if self.options.learning:
            mse = math.exp(-self.options.learning * self._steps) / (2 if source.first == 0 else 1)
        return {"mse": mse + (math.log10(self.spec.learning_rate / best) ** 2 if best else 0.0)}

    def set_learning_rate(self, rate: float) -> None:
        self.rates.append(rate)

    def close(self) -> None:
        self._fault("close")
        if self._group is not None:
            self._group.close()
        self._group = None

    def _fault(self, phase: str) -> None:
        options = self.options
        is_due = options.fault_phase == phase and options.fault_rank == self.place.rank
        if options.fault == "none" or not is_due or (phase == "step" and self._steps != options.fault_step):
            return
        raise_fault(options.fault)


def _allocate(size_bytes: int) -> bytes:
    """Allocate memory and write to it, so that it is resident."""
    return b"\1" * size_bytes


def raise_fault(fault: str) -> None:
    """Fail in the named way."""
    if fault == "raise":
        raise RuntimeError("failed as configured")
    if fault == "unsupported":
        raise Unsupported("unsupported as configured")
    if fault == "exit":
        os._exit(7)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while fault == "hang":
        signal.pause()
    if fault == "oom":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (1 << 28, 1 << 28))
        bytearray(1 << 29)
    raise ValueError(f"no fault '{fault}'")
