"""Training by Keras' own loop, `Model.fit`, as the studies timed it; what it costs over a plain loop is a figure."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scalebench.strategies.base import Loop, LossPart, Unsupported
from scalebench.strategies.tensorflow import batches, optimizer
from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import TfBatch
from scalebench.strategies.tensorflow.model import NetworkModel
from scalebench.strategies.tensorflow.user_model import OwnModel
from scalebench.workloads.source import Batch, Source

AHEAD = 2  # batches that wait for fit where prefetching is asked for, as many as in the other loops


class Reporting(keras.Model):
    """Reports the loss of each batch; Keras by itself reports the mean since the epoch began."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return found | {"loss_sum": tf.reduce_sum(self.loss.call(y, y_pred))}


class FitModel(Reporting, NetworkModel):
    """A network of ours, for fit."""


class OwnFitModel(Reporting, OwnModel):
    """A user's own, for fit."""


class SummedLoss(keras.losses.Loss):
    """A loss per sample, added up with the samples' weights."""

    def __init__(self, per_sample: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], labels: bool) -> None:
        super().__init__(name="loss", reduction="sum")
        self._per_sample, self._labels = per_sample, labels

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self._per_sample(y_pred, tf.cast(y_true, tf.int64) if self._labels else y_true)


class Told(keras.callbacks.Callback):
    """Tells the loop of each update, and ends fit when the loop is over."""

    def __init__(self, loop: Loop, samples: Iterator[int], replicas: int) -> None:
        super().__init__()
        self._loop, self._samples, self._replicas = loop, samples, replicas

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        # Keras gives the mean over the replicas.
        part = LossPart((logs or {})["loss_sum"] * self._replicas, next(self._samples))
        if self._loop.done(part):
            self.model.stop_training = True


class Supply:
    """The loop's batches as a tf.data pipeline, which draws them in a thread of its own."""

    def __init__(self, loop: Loop, on_batch: Callable[[Batch], None], probe: int) -> None:
        """`probe`: samples of a batch that fit only looks at before it begins from the start; 0: it does not."""
        self._batches = iter(loop)
        self._on_batch = on_batch
        self._drawing = threading.Lock()
        self._over, self._probe = False, probe
        self._first = next(self._batches)  # here, where the loop's clock belongs
        self._samples: list[int] = []

    def samples(self) -> Iterator[int]:
        """Sizes of the batches, in the order in which they were drawn."""
        for index in itertools.count():
            yield self._samples[index]

    def dataset(self, specs: tuple[tf.TensorSpec, tf.TensorSpec], ahead: int) -> tf.data.Dataset:
        signature = (*specs, tf.TensorSpec((None,), tf.float32))
        found = tf.data.Dataset.from_generator(self._elements, output_signature=signature)
        if ahead:
            return found.prefetch(ahead)
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # it would by itself, where none is asked for
        return found.with_options(options)

    def stop(self) -> None:
        """Draw no more; a batch that is being drawn is waited for."""
        self._over = True
        with self._drawing:
            pass

    def _elements(self) -> Iterator[tuple[Any, Any, Any]]:
        if self._probe:
            inputs, targets, weights = _element(self._first)
            probe, self._probe = self._probe, 0
            yield inputs[:probe], targets[:probe], weights[:probe]
            return
        batch: Batch | None = self._first
        while batch is not None:
            self._on_batch(batch)
            self._samples.append(batch.samples)
            yield _element(batch)
            with self._drawing:
                batch = None if self._over else next(self._batches, None)


def _element(batch: Batch) -> tuple[Any, Any, Any]:
    """Inputs, targets, and weights that make the sum of the losses the mean over the global batch."""
    return batch.inputs, batch.targets, np.full(batch.samples, 1 / batch.global_samples, np.float32)


class WithFit(TensorFlowStrategy):
    """A strategy whose option `loop` chooses between a plain loop (custom) and Keras' (fit)."""

    _train_functions: dict[bool, Any]  # fit's, by whether gradients are exchanged
    _placed: tuple[Batch, TfBatch] | None = None

    @property
    def fits(self) -> bool:
        return bool(self.options.loop == "fit")

    def setup(self) -> None:
        if self.fits:
            self._refuse_what_fit_cannot()
        super().setup()
        if self.fits:
            loss = SummedLoss(self._loss, labels=self.spec.config.model.loss == "cross_entropy")
            with self.scope():
                self.model.compile(optimizer=self.optimizer, loss=loss, jit_compile=self.spec.config.train.compile)
            self.model.make_train_function()  # which is traced when it is first called
            self._train_functions = {True: self.model.train_function}

    def _refuse_what_fit_cannot(self) -> None:
        settings = self.spec.config
        if settings.train.compile and len(self.place.devices) > 1:
            raise Unsupported(
                "strategy.options.loop=fit hands the update of all devices to XLA as one, which would merge them; "
                "use loop=custom with train.compile=true"
            )
        if settings.train.accumulate > 1:
            raise Unsupported(
                "strategy.options.loop=fit computes the samples of an update at once; use loop=custom with "
                "train.accumulate"
            )
        if settings.dataset.feed == "device" or settings.dataset.prefetch == "device":
            raise Unsupported(
                "strategy.options.loop=fit takes its batches from the host; use dataset.feed=host and "
                "dataset.prefetch=none or queue"
            )

    def model_type(self) -> type[NetworkModel] | type[OwnModel]:
        plain = super().model_type()
        if not self.fits:
            return plain
        return OwnFitModel if plain is OwnModel else FitModel

    def feed(self, source: Source) -> Iterable[Any]:
        return source if self.fits else super().feed(source)

    def train(self, loop: Loop) -> None:
        if not self.fits:
            super().train(loop)
            return
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        with self.scope():  # only under a strategy, and it wants equal parts
            supply = Supply(loop, self._remember, probe=replicas if tf.distribute.has_strategy() else 0)
        told = Told(loop, supply.samples(), replicas)
        dataset = supply.dataset(self._part_spec(), AHEAD if self.spec.config.dataset.prefetch == "queue" else 0)
        try:
            self.model.fit(dataset, epochs=1, shuffle=False, verbose=0, callbacks=[told])
        finally:
            supply.stop()

    def _remember(self, batch: Batch) -> None:
        self.last_batch = batch

    def placed(self, batch: Any) -> TfBatch:
        """Under fit `batch` is in host memory; it is put on the devices once, as the plain loop would."""
        if not self.fits:
            return super().placed(batch)
        if self._placed is None or self._placed[0] is not batch:
            self._placed = batch, batches.place(batch, self.feed_devices())
        return self._placed[1]

    def set_gradient_sync(self, on: bool) -> None:
        """Also while fit is running, between batches: it looks its function up for each of them."""
        super().set_gradient_sync(on)
        if self.fits:
            optimizer.set_exchange(self.optimizer, on)  # for the one that is traced next
            if on not in self._train_functions:
                self.model.make_train_function(force=True)
                self._train_functions[on] = self.model.train_function
            self.model.train_function = self._train_functions[on]
