"""tf.distribute.ParameterServerStrategy: the weights live in ps processes, which workers update each on its own.

The chief deals out the rows of each global batch, and a worker that is free takes the next part, reads its samples,
and applies the gradient of the mean over them at the full learning rate, to weights that others have changed
meanwhile. So a step, the update of a whole global batch, is as many updates as there are workers.

The ps and worker processes of a parameter server: TensorFlow's server, and Python of ours that the chief reaches
through it.

What the chief schedules on a worker is a graph, and a tf.data generator in it would run in the chief and send every
sample over the network. So each worker keeps a function that reads rows of the data set, under a name that the
chief's graphs call.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scalebench.core.result import Profile
from scalebench.core.spec import Place, RunSpec
from scalebench.strategies.base import LossPart, NotMeasured, Unsupported
from scalebench.strategies.tensorflow import devices, multiworker, observed, precision
from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import spans
from scalebench.strategies.tensorflow.observed import UPDATES
from scalebench.workloads import datasets
from scalebench.workloads.source import Source
from scalebench.workloads.uncached_rows import UncachedRows

READ, RECORD = "scalebench.read", "scalebench.record"
_kept: dict[str, Callable[..., Any]] = {}  # TensorFlow's own table holds them weakly


def jobs(spec: RunSpec) -> dict[str, list[str]]:
    """Addresses by role."""
    everyone = multiworker.addresses()
    roles = dict.fromkeys(place.role for place in spec.places)
    return {role: [everyone[p.rank] for p in spec.places if p.role == role] for role in roles}


def serve(spec: RunSpec, place: Place) -> None:
    """Run the server of this process; returns only by an exception or a signal."""
    from tensorflow.python.eager import context

    mine = devices.configure(spec.device, place)
    enough_threads(spec, place)
    if place.role == "worker":
        precision.choose(spec.config.train.precision, mine[0])
        _keep(READ, Rows(spec))
    _keep(RECORD, Recorder())
    index = sum(p.role == place.role for p in spec.places[: place.rank])
    everyone, config = tf.train.ClusterSpec(jobs(spec)), context.context().config
    with multiworker.port_of(place.rank):
        server = tf.distribute.Server(everyone, place.role, index, protocol="grpc", config=config)
    while server:  # its join() would keep signals from Python
        signal.pause()


def enough_threads(spec: RunSpec, place: Place) -> None:
    """Threads that run operations: a call from another process keeps one until all of its operations, which need
    others, are done. A worker is called by the chief alone, one call at a time, and the others by all workers."""
    tf.config.threading.set_inter_op_parallelism_threads(2 if place.role == "worker" else spec.gpus + 1)


class Rows:
    """Samples of the training set by their row, read in this process as `dataset.feed` says."""

    def __init__(self, spec: RunSpec) -> None:
        feed = spec.config.dataset.feed
        arrays = datasets.open_dataset(spec)
        self._arrays = [UncachedRows(array) if feed == "disk" else np.asarray(array) for array in arrays]
        self._fixed: dict[bytes, list[NDArray[Any]]] | None = {} if feed == "fixed" else None

    def __call__(self, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        if self._fixed is None:
            return self._read(rows)
        key = rows.tobytes()
        if key not in self._fixed:
            self._fixed[key] = self._read(rows)
        return self._fixed[key]

    def _read(self, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        return [a(rows) if isinstance(a, UncachedRows) else np.take(a, rows, axis=0) for a in self._arrays]


class Recorder:
    """Called with True, profiles this process until it is called with False, which gives the names of all events."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._events: Future[set[str]] | None = None

    def __call__(self, on: NDArray[np.bool_]) -> NDArray[np.object_]:
        if not on:
            assert self._events is not None
            self._over.set()
            return np.array([name.encode() for name in sorted(self._events.result())], object)
        begun = threading.Event()
        self._over.clear()
        self._events = ThreadPoolExecutor(1).submit(observed.profiled, lambda: (begun.set(), self._over.wait()))
        begun.wait()
        return np.array([], object)


def read(rows: tf.Tensor, spec: tuple[tf.TensorSpec, tf.TensorSpec]) -> list[tf.Tensor]:
    """Inputs and targets of these rows (int64), read in whichever worker runs the graph that this becomes part of."""
    parts = tf.raw_ops.PyFunc(input=[rows], token=READ, Tout=[part.dtype for part in spec])
    return [tf.ensure_shape(part, wanted.shape) for part, wanted in zip(parts, spec, strict=True)]


def record(job: str, index: int, on: bool) -> set[str]:
    """Begin to profile that process, or end it and get the names of its events; called from the chief."""
    with tf.device(f"/job:{job}/replica:0/task:{index}/device:CPU:0"):
        (names,) = tf.raw_ops.PyFunc(input=[tf.constant(on)], token=RECORD, Tout=[tf.string])
    return {name.decode() for name in names.numpy()}


def _keep(token: str, function: Callable[..., Any]) -> None:
    """Have PyFunc operations of that token call `function` in this process. tf.numpy_function would choose the token
    itself and bind the operation to the process that made the graph."""
    from tensorflow.python.ops import script_ops

    _kept[token] = function
    script_ops._py_funcs._funcs[token] = function


WRITES = ("Assign", "ResourceApply")  # how the types of operations begin that change a variable


class Dealt(NamedTuple):
    """A global batch as rows of the data set, one part for each worker."""

    parts: list[tf.Tensor]
    samples: int


class Pending:
    """The sum of losses that workers are still at."""

    def __init__(self, losses: list[Any]) -> None:
        self._losses = losses

    def __float__(self) -> float:
        return sum(float(loss.fetch()) for loss in self._losses)


class ParameterServer(TensorFlowStrategy):
    """The chief: it holds no weights and computes nothing, but schedules, measures and validates."""

    reads_in_step = True
    strategy: tf.distribute.ParameterServerStrategy
    coordinator: tf.distribute.coordinator.ClusterCoordinator

    def serve(self) -> None:
        serve(self.spec, self.place)

    def shard(self) -> tuple[int, int]:
        return 0, 1  # the chief deals out whole global batches

    def join(self) -> None:
        self._refuse()
        enough_threads(self.spec, self.place)
        resolver = multiworker.resolver(jobs(self.spec), "chief", 0, self.devices)
        with multiworker.port_of(self.place.rank):
            self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def scope(self) -> AbstractContextManager[Any]:
        return self.strategy.scope()

    def setup(self) -> None:
        super().setup()
        # Told with every update: workers may still be at those that were scheduled before the last change.
        self.set_learning_rate(self.spec.learning_rate)
        self.optimizer.learning_rate = lambda: self._traced_rate
        on_a_worker = self._forward
        self._forward = lambda inputs: tf.constant(
            self.coordinator.schedule(on_a_worker, args=(tf.constant(inputs),)).fetch()
        )

    def feed(self, source: Source) -> Iterator[Dealt]:
        epoch = 0
        while True:
            for update in range(source.steps_per_epoch):
                rows = source.batch_indices(*((0, 0) if source.feed == "fixed" else (epoch, update)))
                mine = [rows[span] for span in spans(len(rows), self.spec.gpus)]
                yield Dealt([tf.constant(part, tf.int64) for part in mine if len(part)], len(rows))
            epoch += 1

    def step(self, batch: Dealt) -> LossPart | None:
        self.last_batch = batch
        function = self.update_function()
        losses = [self.coordinator.schedule(function, args=(part, self._rate)) for part in batch.parts]
        return LossPart(Pending(losses), batch.samples)

    def update_function(self) -> Callable[..., tf.Tensor]:
        if True not in self._functions:
            rows = tf.TensorSpec((None,), tf.int64)
            signature = [rows, tf.TensorSpec((), tf.float32)]
            self._functions[True] = tf.function(self.update_rows, input_signature=signature, autograph=False)
        return self._functions[True]

    def update_rows(self, rows: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        """One worker's update from its rows of the data set, at that learning rate; the sum of the losses over them."""
        self._traced_rate = rate
        inputs, targets = read(rows, self._part_spec())
        return self.strategy.run(self.update_replica, (inputs, targets, tf.zeros(())))

    def set_learning_rate(self, rate: float) -> None:
        self._rate = tf.constant(rate, tf.float32)

    def loss_samples(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Each update follows the mean over its own samples, since nothing is added up."""
        return tf.cast(tf.shape(inputs)[0], tf.float32)

    def forward(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.strategy.run(super().forward, (inputs,))

    def synchronize(self) -> None:
        self.coordinator.join()

    def message_sizes(self) -> list[int]:
        """The gradients that one worker sends, each a message of its own; as many weights come to it."""
        return [v.value.dtype.size * v.value.shape.num_elements() for v in self.model.trainable_variables]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        raise NotMeasured("workers of a parameter server exchange while they compute: it cannot be run alone")

    def partial_step(self, batch: Any, until: str) -> None:
        raise self._computes_nothing()

    def local_step(self, batch: Any) -> list[float]:
        raise self._computes_nothing()

    def copy_batch(self, batch: Any) -> None:
        raise self._computes_nothing()

    def profile(self, updates: int, trace: Path | None) -> Profile:
        raise self._computes_nothing()

    def _computes_nothing(self) -> NotMeasured:
        return NotMeasured(
            f"the chief of {self.spec.config.strategy.name} computes nothing: its workers, which do, measure nothing"
        )

    def backend_used(self) -> str | None:
        """grpc, the only way between TensorFlow's servers, where updates were seen to be written in the process of a
        ps and not in the worker's. Spoils the weights."""
        if self.last_batch is None:
            raise RuntimeError("backend_used replays the last batch of the training, and there was no training")
        self.synchronize()
        record("ps", 0, on=True)
        for _ in range(UPDATES):
            self.step(self.last_batch)
        self.synchronize()
        ran = {event.partition(":")[0] for event in record("ps", 0, on=False)}
        operations = self.update_function().get_concrete_function().graph.get_operations()
        return "grpc" if any(o.name in ran for o in operations if o.type.startswith(WRITES)) else None

    def _refuse(self) -> None:
        """Unsupported for settings that go against where the weights and the samples are."""
        config = self.spec.config
        if config.dataset.feed == "device" or config.dataset.prefetch != "none":
            raise Unsupported(
                f"workers of {config.strategy.name} read their samples when they have been dealt rows: "
                f"it takes dataset.feed=host, disk or fixed and dataset.prefetch=none"
            )
        if config.train.accumulate > 1:
            raise Unsupported(
                f"train.accumulate: workers of {config.strategy.name} would fetch the weights anew for every part of "
                f"an update; leave it out"
            )
        if config.train.compile:
            raise Unsupported(
                f"train.compile: XLA cannot read the weights of {config.strategy.name}, which are in another process"
            )

    def peak_memory_bytes(self) -> list[int | None]:
        return [None for _ in self.place.devices]  # the devices are other processes'

    def state_bytes(self) -> list[int | None]:
        return [None for _ in self.place.devices]  # as the weights are
