"""The probes of TensorFlow strategies: partial steps, the time of each device up to gradient synchronization, batch
copies and profiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from scalebench.core.probe_record import Profile
from scalebench.core.spec import RunSpec
from scalebench.strategies import recording
from scalebench.strategies.base import BACKWARD, OPTIMIZER, NotMeasured, Strategy
from scalebench.strategies.tensorflow import batches, devices, profiling
from scalebench.strategies.tensorflow.batches import DevicePart, TfBatch


class DeviceResult(NamedTuple):
    """The results of one device for its part of a batch."""

    loss_sum: tf.Tensor
    gradients: list[tf.Tensor]  # empty after a forward pass only


def _timestamp_after(tensors: list[tf.Tensor]) -> tf.Tensor:
    """Return the seconds since the epoch when all tensors are computed. Without run_independently, tf.function would
    run the timestamps one after the other in program order, as it does with all stateful operations."""
    with tf.device("/CPU:0"), tf.control_dependencies(tensors):
        now = tf.timestamp()
    now.graph.experimental_acd_manager.run_independently(now.op)
    return now


class Exchange:
    """An exchange between devices by itself: each call runs a compiled function on the buffers once.

    The buffers are arguments: TensorFlow would compute sums of constants when it compiles the function, which it frees
    only at some later time.
    """

    def __init__(self, run: Callable[[Any], Any], buffers: Any) -> None:
        self.run, self.buffers = tf.function(run, jit_compile=False, autograph=False), buffers

    def __call__(self) -> None:
        self.run(self.buffers)


class TensorFlowProbes(Strategy):
    """A strategy whose step is a compiled function of the batch parts of all devices of its process."""

    devices: list[str]
    last_batch: Any = None  # of the training, a full one, as `feed` yielded it
    syncs_gradients = True
    sync_scope = ""  # in the names of the operations that sum gradients over devices
    _host: tuple[Any, list[batches.HostArrays]] | None = None  # a batch, and its parts in host memory
    _exchange: tuple[list[int], Exchange] | None = None  # for messages of these bytes

    # Of TensorFlowStrategy, whose `compute_per_device` has all devices work at the same time, as in training.
    step_function: Callable[[], Any]
    step_signature: Callable[[], list[Any]]
    input_devices: Callable[[], list[str]]
    compute_per_device: Callable[..., list[DeviceResult]]

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.partial_functions: dict[str, Callable[..., Any]] = {}  # traced when first called

    def keep_batch(self, batch: Any) -> None:
        """Keep a batch of the training for the probes, unless it is smaller than before, as an epoch's last one is."""
        if self.last_batch is None or batch.samples >= self.last_batch.samples:
            self.last_batch = batch

    def to_step_batch(self, batch: Any) -> TfBatch:
        """Return a batch of `feed` in the form that the step takes."""
        placed: TfBatch = batch
        return placed

    def create_exchange(self, sizes: list[int]) -> Exchange:
        """Return the synchronization of a step with messages of these bytes."""
        raise self.not_measured("has no exchange of its own")

    def run_isolated_sync(self, sizes: list[int]) -> None:
        if self._exchange is None or self._exchange[0] != sizes:
            self._exchange = sizes, self.create_exchange(sizes)
        if self.spec.gpus > 1:  # else nothing is exchanged
            self._exchange[1]()

    def partial_step(self, batch: Any, until: str) -> None:
        """Run a separate compiled function on all devices of the process, as the plain loop does even if Keras' fit
        trains. The forward pass updates moving statistics, and TensorFlow fuses more of its operations if no backward
        pass needs the intermediate results."""
        batch = self.to_step_batch(batch)
        if until == OPTIMIZER:
            self.step_function()(batch.parts, batch.global_samples)
            return

        def run(parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> list[Any]:
            # The gradients are returned, since TensorFlow prunes operations whose results are unused.
            return [tuple(result) for result in self.compute_per_device(parts, global_samples, until == BACKWARD)]

        self._run_compiled(until, run, batch)

    def local_step(self, batch: Any) -> list[float]:
        """Return the seconds until each device has its gradients."""
        if len(self.devices) == 1:
            raise NotMeasured(
                "there is one device in this process: its steps without the exchange measure how long it works"
            )
        seconds, *_ = self._run_compiled("local", self._time_devices, self.to_step_batch(batch))
        return [float(duration) for duration in seconds.numpy()]

    def _run_compiled(self, key: str, function: Callable[..., Any], batch: TfBatch) -> Any:
        if key not in self.partial_functions:
            settings = {"input_signature": self.step_signature(), "jit_compile": False, "autograph": False}
            self.partial_functions[key] = tf.function(function, **settings)
        return self.partial_functions[key](batch.parts, batch.global_samples)

    def _time_devices(self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> Any:
        """Compute the results of all devices; return the seconds until each had finished, and what they depend on.

        A GPU's kernels are only queued when their operations return. So a marker is computed behind all of them in the
        device's queue, and the time is taken when the marker has arrived on the host. The markers are returned, like
        the gradients: TensorFlow prunes a result that is used only as a control dependency. The samples in them prevent
        constant folding.
        """
        start, inputs = _timestamp_after([]), []
        with tf.control_dependencies([start]):
            for device, part in zip(self.input_devices(), parts, strict=True):
                with tf.device(device):
                    inputs.append(tf.nest.map_structure(tf.identity, part))  # one sample may have several tensors
        results, ends, markers = self.compute_per_device(tuple(inputs), global_samples, True), [], []
        for result in results:
            with tf.device(result.loss_sum.device), tf.control_dependencies(result.gradients):
                on_device = result.loss_sum + global_samples
            with tf.device("/CPU:0"):
                markers.append(on_device * global_samples)
            ends.append(_timestamp_after(markers[-1:]))
        with tf.device("/CPU:0"):
            seconds = tf.stack(ends) - start
        return seconds, markers, [tuple(result) for result in results]

    def copy_batch(self, batch: Any) -> None:
        if self.spec.device == "cpu":
            super().copy_batch(batch)
        if self._host is None or self._host[0] is not batch:
            self._host = batch, batches.copy_to_host(self.to_step_batch(batch))
        for device, arrays in zip(self.input_devices(), self._host[1], strict=True):
            batches.copy_to_device(arrays, device)

    def message_sizes(self) -> list[int]:
        """Return the bytes of each gradient or pack of gradients that is summed over devices, as one of them sends it.
        Where there is one copy of the weights, these return in as many bytes."""
        return profiling.reduction_message_bytes(self.step_function().get_concrete_function(), self.sync_scope)

    def profile(self, steps: int, trace: Path | None) -> Profile:
        record, wait = profiling.record_lines, devices.synchronize
        lines, step_s = recording.profile_steps(self.train, self.last_batch, steps, record, wait)
        if trace is not None:
            recording.write_chrome_trace(trace, lines, f"rank {self.place.rank}")
        on_gpus = "GPU" in self.devices[0]
        sums = profiling.reduction_operations(self.step_function().get_concrete_function(), self.sync_scope)
        return profiling.summarize_profile(lines, steps, step_s, {operation.name for operation in sums}, on_gpus)
