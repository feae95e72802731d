"""What the JAX strategies share: devices, state, compiled updates, probes, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from scalebench.plugin_api import OPTIMIZER, LossPart, Probes, Profile, RunSpec, Source, Strategy, build_network
from scalebench_jax import devices, evaluation, evidence, precision, profiling
from scalebench_jax.feeding import Feeder, JaxBatch
from scalebench_jax.programs import ALONE, BACKWARD, FORWARD, UPDATE, Programs
from scalebench_jax.replica import Replica, State
from scalebench_jax.watching import Backlog, Watched, seconds_of_devices
from scalebench_jax.xplane import Recording, recorded

PROOF_UPDATES = 2  # the first may still set something up


class Total:
    """The sum over the devices of a number that each has; waited for when it is asked for."""

    def __init__(self, of_devices: jax.Array) -> None:
        self._of_devices = of_devices

    def __float__(self) -> float:
        return float(np.asarray(self._of_devices, np.float64).sum())


class JaxStrategy(Strategy, Probes):
    """One process whose devices each have a copy of the weights, along a first axis of every array of its state."""

    devices: list[jax.Device]
    state: State
    programs: Programs
    feeder: Feeder
    last_batch: JaxBatch | None = None  # the last whole one: the last of an epoch may be smaller

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.exchanging = True
        self.backlog = Backlog()
        self._waiters: ThreadPoolExecutor | None = None
        self._host: tuple[JaxBatch, Any] | None = None  # a batch, and its copy in host memory
        self._issued: Any = ()  # what the last action beside the updates gives

    def layouts(self) -> tuple[Any, Any]:
        """How arrays lie on the devices: those with a first axis of devices, and those that each has all of."""
        (device,) = self.devices
        alone = jax.sharding.SingleDeviceSharding(device)
        return alone, alone

    def on_all_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What runs `function`, written for the devices' axis of length 1, on all of them: (state, part, after,
        samples, rate) -> anything, all with that axis but samples and rate."""
        return function

    def device_number(self) -> Any:
        """Within such a function, which of the devices it is."""
        return 0

    def summed(self, gradients: Any) -> Any:
        """Within such a function, the gradients of all devices added up."""
        return gradients

    def setup(self) -> None:
        train = self.spec.config.train
        precision.check(train)
        self.devices = devices.configure(self.spec.device, self.place)
        precision.choose(train.precision, self.devices[0])
        self._split, self._whole = self.layouts()
        replica, count = Replica(self.spec.config, build_network(self.spec.config.model)), len(self.devices)
        copies = jax.tree.map(lambda one: np.broadcast_to(one, (count, *np.shape(one))), replica.start())
        self.state = jax.device_put(copies, self._split)
        self._after = jax.device_put(np.zeros(count, np.float32), self._split)
        self.programs = Programs(replica, self.on_all_devices, self.device_number, self.summed)
        self.feeder = Feeder(count, train.accumulate, self._split, self._whole)
        self.set_learning_rate(self.spec.learning_rate)
        self._infer = jax.jit(replica.model.infer)

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads whole batches, and deals them out to its devices

    def feed(self, source: Source) -> Iterable[JaxBatch]:
        """The update is compiled here for each size of batch that an epoch has, so that none is in the midst of it."""
        settings, (inputs, targets) = self.spec.config.dataset, source.arrays()
        last = 0 if settings.feed == "fixed" else source.steps_per_epoch - 1
        for samples in {source.global_samples(0), source.global_samples(last)}:
            self._program(UPDATE, self.feeder.like(samples, inputs, targets))
        return self.feeder.batches(source, settings.feed, settings.prefetch)

    def step(self, batch: JaxBatch) -> LossPart | None:
        if self.last_batch is None or batch.samples >= self.last_batch.samples:
            self.last_batch = batch
        program = self._program(UPDATE if self.exchanging else ALONE, batch)
        self.state, loss_sums = program(self.state, batch.part, self._after, batch.global_samples, self._rate)
        self.backlog.add(loss_sums)
        return LossPart(Total(loss_sums), batch.samples)

    def set_learning_rate(self, rate: float) -> None:
        self._rate = jax.device_put(np.float32(rate), self._whole)

    def partial_step(self, batch: JaxBatch, until: str) -> None:
        if until == OPTIMIZER:
            self.step(batch)
        else:
            self._piece(FORWARD if until == FORWARD else BACKWARD, batch)

    def _piece(self, name: str, batch: JaxBatch) -> jax.Array:
        """A loss of each device. One piece waits for the one before: XLA would compute several at a time on the CPU."""
        program = self._program(name, batch)
        self._after, *self._issued = program(self.state, batch.part, self._after, batch.global_samples, self._rate)
        self.backlog.add(self._after)
        return self._after

    def local_step(self, batch: JaxBatch) -> list[float]:
        if len(self.devices) == 1:
            return super().local_step(batch)
        self._waiters = self._waiters or ThreadPoolExecutor(len(self.devices))
        return seconds_of_devices(partial(self._piece, BACKWARD, batch), self._waiters)

    def copy_batch(self, batch: JaxBatch) -> None:
        if self.spec.device == "cpu":
            return super().copy_batch(batch)
        if self._host is None or self._host[0] is not batch:
            self._host = batch, jax.tree.map(np.asarray, batch.part[:2])
        self._issued = jax.device_put(self._host[1], self._split)
        return None

    def synchronize(self) -> None:
        jax.block_until_ready((self.state.updates, self._after, self._issued))

    def broadcast(self, value: float) -> float:
        return value

    def message_sizes(self) -> list[int]:
        return list(self._carriers().values())

    def backend_used(self) -> str | None:
        """Two more updates under the profiler, which spoil the weights."""
        recording, _ = self._watched(PROOF_UPDATES)
        events = (event for line in recording.lines for event in line.events)
        return evidence.backend_of(
            (name for event in events for name in (event.name, event.operation)), self._carriers()
        )

    def profile(self, updates: int, trace: Path | None) -> Profile:
        recording, loop = self._watched(updates)
        if trace is not None:
            profiling.write_trace(trace, recording, f"rank {self.place.rank}")
        step_s = (loop.ended_ns - loop.begun_ns) / 1e9 / updates
        return profiling.profile(recording.lines, updates, step_s, self._carriers())

    def settings_used(self) -> dict[str, str]:
        if self.last_batch is None:
            return {}
        arguments = self.state, self.last_batch.part, self._after, self.last_batch.global_samples, self._rate
        return precision.of_update(self.programs.lowered(UPDATE, *arguments).as_text())

    def evaluate(self, source: Source) -> dict[str, float]:
        weights = {name: one.addressable_data(0)[0] for name, one in self.state.weights.items()}
        means = {name: np.asarray(one).mean(0) for name, one in self.state.moving.items()}
        moving = jax.device_put(means, self.devices[0])

        def forward(inputs: Any) -> Any:
            """No more samples at a time than a device has had in training."""
            width = -(-self.spec.batch_per_device // self.spec.config.train.accumulate)
            parts = (jax.device_put(inputs[at : at + width], self.devices[0]) for at in range(0, len(inputs), width))
            return np.concatenate([np.asarray(self._infer(weights, moving, part)) for part in parts])

        return evaluation.metrics(forward, self.spec.config.model, source)

    def num_params(self) -> int:
        return sum(one.size // len(self.devices) for one in self.state.weights.values())

    def parameters(self) -> dict[str, Any]:
        return {name: np.array(one.addressable_data(0)[0]) for name, one in self.state.weights.items()}

    def peak_memory_bytes(self) -> list[int | None]:
        return [devices.peak_memory_bytes(device) for device in self.devices]

    def versions(self) -> dict[str, str]:
        return devices.versions()

    def close(self) -> None:
        if self._waiters is not None:
            self._waiters.shutdown()
            self._waiters = None

    def _carriers(self) -> dict[str, int]:
        """Bytes of each all-reduce of an update on a whole batch, by the name of XLA's operation."""
        return evidence.all_reduces(self._program(UPDATE, self._whole_batch()).as_text())

    def _whole_batch(self) -> JaxBatch:
        if self.last_batch is None:
            raise RuntimeError("what an update does is seen on the last batch of the training, and there was none")
        return self.last_batch

    def _watched(self, updates: int) -> tuple[Recording, Watched]:
        """What ran in so many updates more."""
        loop = Watched(self._whole_batch(), updates, self.synchronize)
        with recorded() as recording:
            self.train(loop)
        begun, ended = loop.begun_ns - recording.begun_ns, loop.ended_ns - recording.begun_ns
        recording.lines = [line.within(begun, ended) for line in recording.lines]
        return recording, loop

    def _program(self, name: str, batch: JaxBatch) -> Any:
        return self.programs.compiled(name, self.state, batch.part, self._after, batch.global_samples, self._rate)
