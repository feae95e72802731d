"""tf.distribute.ParameterServerStrategy: ps processes hold the weights, which workers update independently.

The chief splits the rows of each global batch into parts. A free worker takes the next part, reads its samples, and
applies the gradient of their mean loss at the full learning rate, to weights that others may have changed meanwhile. So
a step of a global batch consists of as many updates as there are workers. SynchronousParameterServer instead adds up
the gradients of all workers beside the weights, and updates these once.

Workers and ps processes run TensorFlow's server. The chief schedules graphs on workers, and a tf.data generator in such
a graph would run in the chief and send every sample over the network. So each worker registers a function that reads
rows of the dataset, under a name that the chief's graphs call.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scalebench.core.spec import RankPlacement, RunSpec
from scalebench.strategies.base import LossPart, never_measured
from scalebench.strategies.tensorflow import cluster, devices
from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import split_evenly
from scalebench.workloads import datasets
from scalebench.workloads.source import ArrayReader, BatchRows, Source

READ_TOKEN = "scalebench.read"


def run_server(spec: RunSpec, place: RankPlacement) -> None:
    """Run the server of this process until an exception or a signal ends it."""
    from tensorflow.python.eager import context
    from tensorflow.python.ops import script_ops

    local_devices = devices.configure_devices(spec.device, place)
    configure_threads(spec, place)
    if place.role == "worker":
        devices.configure_precision(spec.config.train.precision, local_devices[0])
        reader = RowReader(spec)  # kept here: TensorFlow's table has weak references
        # tf.numpy_function would choose the token itself and bind the operation to the process that created the graph.
        script_ops._py_funcs._funcs[READ_TOKEN] = reader
    index = sum(p.role == place.role for p in spec.places[: place.rank])
    jobs, config = tf.train.ClusterSpec(cluster.addresses_by_job(spec)), context.context().config
    with cluster.explain_port_conflict(place.rank):
        server = tf.distribute.Server(jobs, place.role, index, protocol="grpc", config=config)
    while server:  # its join() would block Python's signal handlers
        signal.pause()


def configure_threads(spec: RunSpec, place: RankPlacement) -> None:
    """Set the number of threads that run operations. A call from another process occupies one of them until all of its
    operations, which need other threads, are done. Only the chief calls a worker, with one call at a time; all workers
    call the other processes."""
    tf.config.threading.set_inter_op_parallelism_threads(2 if place.role == "worker" else spec.gpus + 1)


class RowReader:
    """Reads rows of the training set in this process, as `dataset.feed` says."""

    def __init__(self, spec: RunSpec) -> None:
        self._reader = ArrayReader(*datasets.open_dataset(spec))
        self._is_fixed, self._fixed = spec.config.dataset.feed == "fixed", dict[bytes, list[NDArray[Any]]]()

    def __call__(self, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        if (fixed := self._fixed.get(rows.tobytes())) is not None:
            return fixed
        (batch,) = self._reader.read([BatchRows(rows, len(rows))])
        if self._is_fixed:
            self._fixed[rows.tobytes()] = [batch.inputs, batch.targets]
        return [batch.inputs, batch.targets]


class RowParts(NamedTuple):
    """The rows of a global batch in the dataset, one part for each worker."""

    parts: list[tf.Tensor]
    samples: int


class PendingLoss:
    """The sum of losses that workers may still be computing; float() waits for it."""

    def __init__(self, losses: list[Any]) -> None:
        self._losses = losses

    def __float__(self) -> float:
        return sum(float(loss.fetch()) for loss in self._losses)


class ParameterServer(TensorFlowStrategy):
    """The chief, which holds no weights and trains nothing, but schedules, measures and validates; or with `serve` one
    of the other processes."""

    def why_new_batches(self) -> str:
        return "samples are read within the step, by other processes"

    strategy: tf.distribute.ParameterServerStrategy
    coordinator: tf.distribute.coordinator.ClusterCoordinator

    def serve(self) -> None:
        run_server(self.spec, self.place)

    def shard(self) -> tuple[int, int]:
        return 0, 1  # the chief distributes full global batches

    def join(self) -> None:
        configure_threads(self.spec, self.place)
        resolver = cluster.cluster_resolver(cluster.addresses_by_job(self.spec), "chief", 0, self.devices)
        with cluster.explain_port_conflict(self.place.rank):
            self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def scope(self) -> AbstractContextManager[Any]:
        return self.strategy.scope()

    def setup(self) -> None:
        super().setup()
        # The rate is an argument of every update: workers may still run updates scheduled before the last change.
        self.set_learning_rate(self.spec.learning_rate)
        self.optimizer.learning_rate = lambda: self._traced_rate
        forward_on_worker = self._forward
        self._forward = lambda inputs: tf.constant(
            self.coordinator.schedule(forward_on_worker, args=(tf.constant(inputs),)).fetch()
        )

    def feed(self, source: Source) -> Iterator[RowParts]:
        epoch = 0
        while True:
            for step in range(source.steps_per_epoch):
                rows = source.batch_indices(*((0, 0) if source.feed == "fixed" else (epoch, step)))
                parts = [rows[span] for span in split_evenly(len(rows), self.spec.gpus)]
                yield RowParts([tf.constant(part, tf.int64) for part in parts if len(part)], len(rows))
            epoch += 1

    def step(self, batch: RowParts) -> LossPart | None:
        self.keep_batch(batch)
        function = self.step_function()
        losses = [self.coordinator.schedule(function, args=(part, self._rate)) for part in batch.parts]
        return LossPart(PendingLoss(losses), batch.samples)

    def step_signature(self) -> list[Any]:
        return [tf.TensorSpec((None,), tf.int64), tf.TensorSpec((), tf.float32)]

    def compute_step(self, rows: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        """Train one worker's update on its rows at this learning rate; return the sum of their losses."""
        self._traced_rate = rate
        return self.strategy.run(self.replica_step, (*self.read_rows(rows), tf.zeros(())))

    def read_rows(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """Return inputs and targets of these rows (int64), read by the worker that executes the traced graph."""
        spec = self._part_spec()
        tensors = tf.raw_ops.PyFunc(input=[rows], token=READ_TOKEN, Tout=[part.dtype for part in spec])
        return [tf.ensure_shape(tensor, part.shape) for tensor, part in zip(tensors, spec, strict=True)]

    def set_learning_rate(self, rate: float) -> None:
        self._rate = tf.constant(rate, tf.float32)

    def loss_divisor(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Return the samples of this update, since gradients of workers are not summed."""
        return tf.cast(tf.shape(inputs)[0], tf.float32)

    def forward(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.strategy.run(super().forward, (inputs,))

    def synchronize(self) -> None:
        self.coordinator.join()

    def message_sizes(self) -> list[int]:
        """Return the bytes of the gradients that one worker sends, each as one message; it receives as many weights."""
        return [v.value.dtype.size * v.value.shape.num_elements() for v in self.model.trainable_variables]

    run_isolated_sync = never_measured("exchanges while it computes: that cannot be run alone")

    partial_step = local_step = copy_batch = profile = never_measured(
        "has a chief that computes nothing: its workers, which do, measure nothing"
    )

    def backend_used(self) -> str | None:
        """Return grpc, the only transport between TensorFlow's servers, if the weights are in ps processes, where the
        operations are that write them."""
        jobs = {tf.DeviceSpec.from_string(variable.value.device).job for variable in self.model.trainable_variables}
        return "grpc" if jobs == {"ps"} else None

    def peak_memory_bytes(self) -> list[int | None]:
        return [None for _ in self.place.devices]  # other processes have the devices, and the weights

    state_bytes = peak_memory_bytes


class SynchronousParameterServer(ParameterServer):
    """The chief of synchronous steps: each worker adds its gradients to sums beside the weights in the ps processes.
    When all have, one update changes the weights, before any worker reads them again. Moving statistics become the mean
    over the workers."""

    def setup(self) -> None:
        super().setup()
        with self.scope():
            self._gradient_sums = [self._create_sum(variable) for variable in self.model.trainable_variables]
            self._statistic_sums = [self._create_sum(variable) for variable in self.model.moving_statistics]
        rate = tf.TensorSpec((), tf.float32)
        self._update_weights = tf.function(self.update_weights, input_signature=[rate], autograph=False)

    def _create_sum(self, variable: keras.Variable) -> tf.Variable:
        with self.strategy.extended.colocate_vars_with(variable.value):
            return tf.Variable(tf.zeros(variable.shape), trainable=False)

    def step(self, batch: RowParts) -> LossPart | None:
        self.keep_batch(batch)
        self.coordinator.join()  # the weights of the previous step are there
        function, samples = self.step_function(), tf.constant(batch.samples, tf.float32)
        losses = [self.coordinator.schedule(function, args=(part, samples)) for part in batch.parts]
        self.coordinator.join()
        self.coordinator.schedule(self._update_weights, args=(self._rate,))
        return LossPart(PendingLoss(losses), batch.samples)

    def compute_step(self, rows: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Add the gradients of one worker's rows to the sums; return the sum of their losses."""
        return self.strategy.run(self._add_to_sums, (*self.read_rows(rows), global_samples))

    def _add_to_sums(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        states = [*self.model.moving_statistics, *self.model.random_states]
        mapping = [(variable, tf.convert_to_tensor(variable)) for variable in states]
        with keras.StatelessScope(state_mapping=mapping) as scope:  # assignments to variables are only recorded
            loss_sum, *gradients = self.compute(inputs, targets, global_samples, backward=True)
        share = tf.cast(tf.shape(inputs)[0], tf.float32) / global_samples
        statistics = [share * scope.get_current_value(variable) for variable in self.model.moving_statistics]
        for total, part in zip([*self._gradient_sums, *self._statistic_sums], [*gradients, *statistics], strict=True):
            total.assign_add(part)
        for variable in self.model.random_states:
            variable.assign(scope.get_current_value(variable))
        return loss_sum

    def update_weights(self, rate: tf.Tensor) -> tf.Tensor:
        """Update weights and moving statistics from the sums of a step at this learning rate, and clear the sums."""
        self._traced_rate = rate
        for variable, total in zip(self.model.moving_statistics, self._statistic_sums, strict=True):
            variable.assign(total)
        apply = partial(self.optimizer.apply, trainable_variables=self.model.trainable_variables)
        self.strategy.run(lambda: apply([total.read_value() for total in self._gradient_sums]))
        for total in [*self._gradient_sums, *self._statistic_sums]:
            total.assign(tf.zeros_like(total))
        return rate

    def loss_divisor(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        return global_samples
