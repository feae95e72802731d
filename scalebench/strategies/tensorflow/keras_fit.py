"""Training with Keras' own loop, `Model.fit`, as in the original studies, to measure its cost over a plain loop."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scalebench.strategies import refusals
from scalebench.strategies.base import Loop, LossPart
from scalebench.strategies.tensorflow import batches, optimizer
from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import TfBatch
from scalebench.workloads.source import Batch, Source

PREFETCHED_BATCHES = 2  # with dataset.prefetch=queue, as many as in the other loops


class SummedLoss(keras.losses.Loss):
    """A per-sample loss, summed with the samples' weights."""

    def __init__(self, per_sample: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], has_labels: bool) -> None:
        super().__init__(name="loss", reduction="sum")
        self._per_sample, self._has_labels = per_sample, has_labels

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self._per_sample(y_pred, tf.cast(y_true, tf.int64) if self._has_labels else y_true)


class BatchPipeline:
    """The loop's batches as a tf.data pipeline, which reads them in its own thread."""

    def __init__(self, loop: Loop, on_batch: Callable[[Batch], None], probe_samples: int) -> None:
        """`probe_samples`: size of the batch that fit inspects before it restarts the pipeline; 0: it inspects none."""
        self._batches = iter(loop)
        self._on_batch = on_batch
        self._reading = threading.Lock()
        self._stopped, self._probe_samples = False, probe_samples
        self._first = next(self._batches)  # read in this thread, since it starts the loop's clock
        self.sizes: list[int] = []  # of the batches in the order in which they were read

    def dataset(self, specs: tuple[tf.TensorSpec, tf.TensorSpec], prefetched: int) -> tf.data.Dataset:
        signature = (*specs, tf.TensorSpec((None,), tf.float32))
        elements = tf.data.Dataset.from_generator(self._elements, output_signature=signature)
        if prefetched:
            return elements.prefetch(prefetched)
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # on by default
        return elements.with_options(options)

    def stop(self) -> None:
        """Stop reading batches, after the current one."""
        self._stopped = True
        with self._reading:
            pass

    def _elements(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield inputs, targets, and sample weights with which the sum of the losses is the mean over the global
        batch."""
        batch: Batch | None = self._first
        while batch is not None:
            weights = np.full(batch.samples, 1 / batch.global_samples, np.float32)
            if self._probe_samples:
                count, self._probe_samples = self._probe_samples, 0
                yield batch.inputs[:count], batch.targets[:count], weights[:count]
                return
            self._on_batch(batch)
            self.sizes.append(batch.samples)
            yield batch.inputs, batch.targets, weights
            with self._reading:
                batch = None if self._stopped else next(self._batches, None)


class FitStrategy(TensorFlowStrategy):
    """A strategy whose option `loop` chooses between a plain loop (custom) and Keras' own (fit)."""

    _train_functions: dict[bool, Any]  # of fit, by syncs_gradients
    _report: Callable[[dict[str, tf.Tensor]], None]  # of each step of the current training
    _placed: tuple[Batch, TfBatch] | None = None

    @property
    def uses_fit(self) -> bool:
        return bool(self.options.loop == "fit")

    def setup(self) -> None:
        refusals.refuse(refusals.keras_fit_rule(self.spec, self.options))
        super().setup()
        if self.uses_fit:
            loss = SummedLoss(self._loss, has_labels=self.spec.config.model.loss == "cross_entropy")
            with self.scope():
                self.model.compile(
                    optimizer=self.optimizer, loss=loss, jit_compile=self.spec.config.train.compile == "default"
                )
            self._train_functions = {}
            self._use_train_function(True)

    def _use_train_function(self, syncs_gradients: bool) -> None:
        """Have fit call the train function that was made for this setting, which also reports the step to the loop; it
        is traced at its first call.

        A callback for each batch would make Keras fetch the results of every step in the thread that trains, which
        waits for the GPU. Without such a callback Keras fetches them there only if it considers the backend not
        thread-safe (IS_THREAD_SAFE: False for TensorFlow in Keras 3.15, True before), as for every user.
        """
        if syncs_gradients not in self._train_functions:
            self.model.make_train_function(force=True)
            run_step = self.model.train_function

            def run_reported_step(iterator: Any) -> Any:
                logs = run_step(iterator)
                self._report(logs)
                return logs

            self._train_functions[syncs_gradients] = run_reported_step
        self.model.train_function = self._train_functions[syncs_gradients]

    def feed(self, source: Source) -> Iterable[Any]:
        return source if self.uses_fit else super().feed(source)

    def train(self, loop: Loop) -> None:
        if not self.uses_fit:
            super().train(loop)
            return
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        with self.scope():  # fit inspects a batch only under a strategy, and needs one that divides by the replicas
            probe_samples = replicas if tf.distribute.has_strategy() else 0
        pipeline = BatchPipeline(loop, self.keep_batch, probe_samples)
        prefetched = PREFETCHED_BATCHES if self.spec.config.dataset.prefetch == "queue" else 0
        dataset = pipeline.dataset(self._part_spec(), prefetched)
        sizes = (pipeline.sizes[index] for index in itertools.count())

        def report_step(logs: dict[str, tf.Tensor]) -> None:
            if loop.done(LossPart(logs["loss_sum"], next(sizes))):
                self.model.stop_training = True

        self._report = report_step
        try:
            self.model.fit(dataset, epochs=1, shuffle=False, verbose=0)
        finally:
            pipeline.stop()

    def to_step_batch(self, batch: Any) -> TfBatch:
        """Return the batch as in the plain loop: under fit it is in host memory, and is copied to the devices once."""
        if not self.uses_fit:
            return super().to_step_batch(batch)
        if self._placed is None or self._placed[0] is not batch:
            self._placed = batch, batches.place_batch(batch, self.input_devices())
        return self._placed[1]

    def set_gradient_sync(self, on: bool) -> None:
        """Switch synchronization, between batches also while fit is running, since fit looks up its train function for
        each batch."""
        super().set_gradient_sync(on)
        if self.uses_fit:
            optimizer.set_gradient_reduction(self.optimizer, on)  # for the train function that is traced next
            self._use_train_function(on)
