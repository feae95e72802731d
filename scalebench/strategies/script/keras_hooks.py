"""Observes steps, samples and pauses of a program that trains with Keras' fit, by a callback, or in a loop of its own,
by the batches that the loop draws from tf.data.

Keras keeps time by batches; a call of its compiled function may hold several of them (steps_per_execution). A loop that
tf.function compiles as a whole is not seen.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

from scalebench.strategies.script.torch_hooks import EPOCH, EVALUATION, SAVING, Hooks, wrap


class KerasHooks:
    """The hooks of Keras, which report to those of the process."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self.model: Any = None  # the one that fits
        self.strategy: Any = None  # of tf.distribute, under which it fits, or whose batches a loop draws
        self._training_set: Any = None  # of a loop: the first one that it draws from
        self._last: Any = None  # batch of such a loop
        self._batch: int | None = None  # samples of a batch of fit

    def install(self, keras: Any) -> None:
        """Append a callback to every fit, and note how its batches are made."""
        fit, signature = keras.Model.fit, inspect.signature(keras.Model.fit)

        @wraps(fit)
        def fit_and_report(model: Any, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(model, *args, **kwargs)
            given = bound.arguments.get("callbacks")
            report = self._make_callback(keras)
            if isinstance(given, keras.callbacks.CallbackList):
                given.append(report)
            else:
                listed = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
                bound.arguments["callbacks"] = [*listed, report]
            self.model, self.strategy = model, getattr(model, "distribute_strategy", None)
            return fit(*bound.args, **bound.kwargs)

        keras.Model.fit = fit_and_report
        self._hooks.note_pauses(keras.Model, "save", SAVING)
        from keras.src.trainers import epoch_iterator

        wrap(epoch_iterator.EpochIterator, "__init__", after=self._note_batch)

    def _note_batch(self, iterator: Any, *args: Any) -> None:
        if self._batch is None:
            self._batch = _find_batch(iterator.data_adapter)

    def _make_callback(self, keras: Any) -> Any:
        hooks = self._hooks

        class Report(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(callback, batch: int, logs: Any = None) -> None:
                batches = int(getattr(callback.model, "steps_per_execution", 1) or 1)
                hooks.samples += (self._batch or 0) * batches
                hooks.all_batches += batches
                if hooks.script.step_kind != "call":  # the program's own callback ends its steps
                    hooks.script.on_step()

            def on_epoch_begin(callback, epoch: int, logs: Any = None) -> None:
                hooks.pauses.append(EPOCH)

            def on_test_begin(callback, logs: Any = None) -> None:
                hooks.pauses.append(EVALUATION)

        return Report()

    def install_tensorflow(self, tensorflow: Any) -> None:
        """Observe the batches that a loop of the program's own draws, where each is a step (script.step=batch)."""
        from tensorflow.python.data.ops.dataset_ops import DatasetV2
        from tensorflow.python.data.ops.iterator_ops import OwnedIterator
        from tensorflow.python.distribute import input_lib

        for kind in (DatasetV2, input_lib.DistributedDataset, input_lib.DistributedDatasetsFromFunction):
            kind.__iter__ = _wrap_iter(kind.__iter__)
        for kind in (OwnedIterator, input_lib.DistributedIteratorBase):
            kind.__next__ = self._wrap_draw(kind.__next__, tensorflow)

    def _wrap_draw(self, draw: Callable[[Any], Any], tensorflow: Any) -> Callable[[Any], Any]:
        hooks = self._hooks

        @wraps(draw)
        def draw_batch(iterator: Any) -> Any:
            if self.model is not None or not tensorflow.executing_eagerly():
                return draw(iterator)
            hooks.draws += 1
            dataset = getattr(iterator, "_scalebench_dataset", None)
            self._training_set = self._training_set or dataset
            if dataset is not self._training_set:
                hooks.pauses.append(EVALUATION)
                return draw(iterator)
            self.strategy = getattr(iterator, "_strategy", None)
            if hooks.batches and hooks.script.step_kind == "batch":
                hooks.script.on_step()
            if not hooks.replays or self._last is None:
                begin_s = perf_counter()
                try:
                    self._last = draw(iterator)
                except StopIteration:
                    hooks.pauses.append(EPOCH)
                    raise
                hooks.data_s += perf_counter() - begin_s
            first = tensorflow.nest.flatten(self._last)[0]
            hooks.samples += sum(int(part.shape[0]) for part in getattr(first, "values", [first]) if part.shape.rank)
            hooks.batches += 1
            hooks.all_batches += 1
            return self._last

        return draw_batch

    @property
    def is_used(self) -> bool:
        """Return whether the program trains with Keras or TensorFlow."""
        return self.model is not None or self._training_set is not None

    @property
    def replicas(self) -> int:
        return int(getattr(self.strategy, "num_replicas_in_sync", 1))

    def count_parameters(self) -> int | None:
        """Return the trainable parameters of the model that fits; None before there is one."""
        return None if self.model is None else sum(math.prod(each.shape) for each in self.model.trainable_weights)


def _wrap_iter(iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(iterate)
    def make_iterator(dataset: Any) -> Any:
        iterator = iterate(dataset)
        iterator._scalebench_dataset = dataset
        return iterator

    return make_iterator


def _find_batch(adapter: Any) -> int | None:
    """Return the samples of a batch of all replicas, as the data of fit declares them; None where it does not."""
    size = getattr(adapter, "batch_size", None)
    if size is not None:
        return int(size)
    tensorflow: Any = sys.modules.get("tensorflow")
    try:
        size = tensorflow.nest.flatten(adapter.get_tf_dataset().element_spec)[0].shape[0]
    except (AttributeError, IndexError, TypeError, ValueError):
        return None
    dataset = getattr(adapter, "_dataset", None)
    while size is None and dataset is not None:  # .batch(64) without drop_remainder
        inner = getattr(dataset, "_batch_size", None)
        size = None if inner is None else int(tensorflow.get_static_value(inner))
        dataset = getattr(dataset, "_input_dataset", None)
    return None if size is None else int(size)
