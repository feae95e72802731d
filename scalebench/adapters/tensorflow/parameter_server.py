"""tf.distribute.ParameterServerStrategy: the weights live in ps processes, which workers update each on its own.

The chief deals out the rows of each global batch, and a worker that is free takes the next part, reads its samples,
and applies the gradient of the mean over them at the full learning rate, to weights that others have changed
meanwhile. So a step, the update of a whole global batch, is as many updates as there are workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from scalebench.adapters.tensorflow import cluster, serving
from scalebench.adapters.tensorflow.base import TensorFlowStrategy
from scalebench.adapters.tensorflow.evidence import UPDATES
from scalebench.adapters.tensorflow.feeding import spans
from scalebench.results import Profile
from scalebench.strategy import LossPart, NotMeasured, Unsupported
from scalebench.workloads.source import Source

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
        serving.serve(self.spec, self.place)

    def shard(self) -> tuple[int, int]:
        return 0, 1  # the chief deals out whole global batches

    def join(self) -> None:
        self._refuse()
        serving.enough_threads(self.spec, self.place)
        resolver = cluster.resolver(serving.jobs(self.spec), "chief", 0, self.devices)
        with cluster.port_of(self.place.rank):
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
            for update in range(source.updates_per_epoch):
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
        inputs, targets = serving.read(rows, self._part_spec())
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
        serving.record("ps", 0, on=True)
        for _ in range(UPDATES):
            self.step(self.last_batch)
        self.synchronize()
        ran = {event.partition(":")[0] for event in serving.record("ps", 0, on=False)}
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
