"""The base class of the JAX strategies: devices, state, compiled steps, probes and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from scalebench.plugin_api import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    Line,
    LossPart,
    Profile,
    RunSpec,
    Source,
    Strategy,
    build_network,
    measure_outputs,
    profile_steps,
    summarize_lines,
    write_chrome_trace,
)
from scalebench_jax import devices, profiling
from scalebench_jax.batches import BatchFeeder, JaxBatch
from scalebench_jax.profiling import ProgramBacklog, device_seconds
from scalebench_jax.replica import DevicePart, Replica, State

STEP, STEP_WITHOUT_SYNC = "step", "step_without_sync"  # programs, beside FORWARD and BACKWARD
OBSERVED_STEPS = 2  # the first step may still initialize something


class LossTotal:
    """The lazy sum of one number per device; float() waits for it."""

    def __init__(self, per_device: jax.Array) -> None:
        self._per_device = per_device

    def __float__(self) -> float:
        return float(np.asarray(self._per_device, np.float64).sum())


class JaxStrategy(Strategy):
    """One process whose devices each have a copy of the weights: arrays of the state have a first axis of devices."""

    devices: list[jax.Device]
    state: State
    replica: Replica
    feeder: BatchFeeder
    last_batch: JaxBatch | None = None  # the last full batch: the last one of an epoch may be smaller

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.syncs_gradients = True
        self.backlog = ProgramBacklog()
        self._waiters: ThreadPoolExecutor | None = None
        self._host: tuple[JaxBatch, Any] | None = None  # a batch, and its copy in host memory
        self._compiled: dict[tuple[Any, ...], Any] = {}  # programs by name and batch size, of which an epoch has two
        self._issued: Any = ()  # the results of the last action other than a step

    def layouts(self) -> tuple[Any, Any]:
        """Return the shardings of arrays with a first axis of devices, and of arrays that every device has in full."""
        (device,) = self.devices
        sharding = jax.sharding.SingleDeviceSharding(device)
        return sharding, sharding

    def on_all_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs `function`, written for a device axis of length 1, on all devices: (state, part,
        after, samples, rate) -> results, all with that axis except samples and rate."""
        return function

    def device_number(self) -> Any:
        """Return the number of the device, within such a function."""
        return 0

    def sum_gradients(self, gradients: Any) -> Any:
        """Return the sums of the gradients over all devices, within such a function."""
        return gradients

    def setup(self) -> None:
        train = self.spec.config.train
        devices.refuse_unsupported(train)
        self.devices = devices.configure_devices(self.spec.device, self.place)
        devices.configure_precision(train.precision, self.devices[0])
        self._split, self._replicated = self.layouts()
        self.replica, count = Replica(self.spec.config, build_network(self.spec.config.model)), len(self.devices)
        initial = self.replica.initial_state()
        copies = jax.tree.map(lambda array: np.broadcast_to(array, (count, *np.shape(array))), initial)
        self.state = jax.device_put(copies, self._split)
        self._after = jax.device_put(np.zeros(count, np.float32), self._split)
        self.feeder = BatchFeeder(count, train.accumulate, self._split, self._replicated)
        self.set_learning_rate(self.spec.learning_rate)
        self._infer = jax.jit(self.replica.model.infer)

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads full batches and splits them over its devices

    def feed(self, source: Source) -> Iterable[JaxBatch]:
        """Compile the step for each batch size of an epoch, so that no step compiles later, and return the batches."""
        settings, (inputs, targets) = self.spec.config.dataset, source.arrays()
        last = 0 if settings.feed == "fixed" else source.steps_per_epoch - 1
        for samples in {source.global_samples(0), source.global_samples(last)}:
            self._program(STEP, self.feeder.like(samples, inputs, targets))
        return self.feeder.batches(source, settings.feed, settings.prefetch)

    def step(self, batch: JaxBatch) -> LossPart | None:
        if self.last_batch is None or batch.samples >= self.last_batch.samples:
            self.last_batch = batch
        program = self._program(STEP if self.syncs_gradients else STEP_WITHOUT_SYNC, batch)
        self.state, loss_sums = program(*self._arguments(batch))
        self.backlog.add(loss_sums)
        return LossPart(LossTotal(loss_sums), batch.samples)

    def set_learning_rate(self, rate: float) -> None:
        self._rate = jax.device_put(np.float32(rate), self._replicated)

    def partial_step(self, batch: JaxBatch, until: str) -> None:
        if until == OPTIMIZER:
            self.step(batch)
        else:
            self._run_part(until, batch)

    def _run_part(self, name: str, batch: JaxBatch) -> jax.Array:
        """Run a partial step; return the loss of each device. Each waits for the previous one, since XLA would run
        several at the same time on the CPU."""
        program = self._program(name, batch)
        self._after, *self._issued = program(*self._arguments(batch))
        self.backlog.add(self._after)
        return self._after

    def local_step(self, batch: JaxBatch) -> list[float]:
        if len(self.devices) == 1:
            return super().local_step(batch)
        self._waiters = self._waiters or ThreadPoolExecutor(len(self.devices))
        return device_seconds(partial(self._run_part, BACKWARD, batch), self._waiters)

    def copy_batch(self, batch: JaxBatch) -> None:
        if self.spec.device == "cpu":
            return super().copy_batch(batch)
        if self._host is None or self._host[0] is not batch:
            self._host = batch, jax.tree.map(np.asarray, batch.part[:2])
        self._issued = jax.device_put(self._host[1], self._split)
        return None

    def synchronize(self) -> None:
        jax.block_until_ready((self.state.steps, self._after, self._issued))

    def broadcast(self, value: float) -> float:
        return value

    def message_sizes(self) -> list[int]:
        return list(self._all_reduces().values())

    def backend_used(self) -> str | None:
        """Observe two more steps under the profiler, which spoil the weights."""
        lines, _ = self._profile_steps(OBSERVED_STEPS)
        events = (event for line in lines for event in line.events)
        return profiling.observed_backend(
            (name for event in events for name in (event.name, event.operation)), self._all_reduces()
        )

    def profile(self, steps: int, trace: Path | None) -> Profile:
        lines, step_s = self._profile_steps(steps)
        if trace is not None:
            write_chrome_trace(trace, lines, f"rank {self.place.rank}")
        device = "cuda" if any(line.events for line in lines if line.device == "cuda") else "cpu"
        classify = partial(profiling.classify_event, all_reduces=self._all_reduces())
        return summarize_lines(lines, steps, step_s, device, classify)

    def settings_used(self) -> dict[str, str]:
        if self.last_batch is None:
            return {}
        return devices.observed_settings(self._lower(STEP, self.last_batch).as_text())

    def evaluate(self, source: Source) -> dict[str, float]:
        weights = {name: array.addressable_data(0)[0] for name, array in self.state.weights.items()}
        means = {name: np.asarray(array).mean(0) for name, array in self.state.moving.items()}
        moving = jax.device_put(means, self.devices[0])

        def forward(inputs: Any) -> Any:
            """Compute no more samples at a time than a device does in training."""
            width = -(-self.spec.batch_per_device // self.spec.config.train.accumulate)
            parts = (jax.device_put(inputs[at : at + width], self.devices[0]) for at in range(0, len(inputs), width))
            return np.concatenate([np.asarray(self._infer(weights, moving, part)) for part in parts])

        return measure_outputs(self.spec.config.model, forward, source.in_order())

    def num_params(self) -> int:
        return sum(array.size // len(self.devices) for array in self.state.weights.values())

    def parameters(self) -> dict[str, Any]:
        return {name: np.array(array.addressable_data(0)[0]) for name, array in self.state.weights.items()}

    def peak_memory_bytes(self) -> list[int | None]:
        return [devices.peak_memory_bytes(device) for device in self.devices]

    def versions(self) -> dict[str, str]:
        return devices.library_versions()

    def close(self) -> None:
        if self._waiters is not None:
            self._waiters.shutdown()
            self._waiters = None

    def _all_reduces(self) -> dict[str, int]:
        """Return the bytes of each all-reduce of a step on a full batch, by the name of XLA's operation."""
        if self.last_batch is None:
            raise RuntimeError("what a step does is seen on the last batch of the training, and there was none")
        return profiling.all_reduce_bytes(self._program(STEP, self.last_batch).as_text())

    def _profile_steps(self, steps: int) -> tuple[list[Line], float]:
        return profile_steps(self.train, self.last_batch, steps, profiling.record_lines, self.synchronize)

    def _program(self, name: str, batch: JaxBatch) -> Any:
        key = name, batch.part.inputs.shape
        if key not in self._compiled:
            self._compiled[key] = self._lower(name, batch).compile()
        return self._compiled[key]

    def _arguments(self, batch: JaxBatch) -> tuple[Any, ...]:
        """Return the arguments of a program; it starts when `self._after`, which it does not use, is ready."""
        return self.state, batch.part, self._after, batch.global_samples, self._rate

    def _lower(self, name: str, batch: JaxBatch) -> Any:
        """Return a program as it is passed to XLA."""
        donated = (0,) if name in (STEP, STEP_WITHOUT_SYNC) else ()  # the new state replaces the old one
        function = self.on_all_devices(partial(self._run_on_device, name))
        return jax.jit(function, donate_argnums=donated, keep_unused=True).lower(*self._arguments(batch))

    def _run_on_device(self, name: str, state: State, part: DevicePart, after: Any, samples: Any, rate: Any) -> Any:
        """Run one device's work on its own arrays, which keep their first axis of length 1."""
        state, part = jax.tree.map(lambda array: array[0], (state, part))
        device = self.device_number()
        if name == FORWARD:
            results: Any = (self.replica.training_loss(state, part, device),)
        elif name == BACKWARD:  # the gradients are returned, since XLA prunes unused operations
            loss_sum, gradients, _ = self.replica.gradients(state, part, samples, device)
            results = loss_sum, gradients
        else:
            sum_gradients = self.sum_gradients if name == STEP else lambda gradients: gradients
            results = self.replica.step(state, part, samples, rate, device, sum_gradients)
        return jax.tree.map(lambda array: array[None], results)
