"""Observes steps, samples and pauses of a program that trains with Keras' fit, by a callback.

Keras keeps time by batches; a call of its compiled function may hold several of them (steps_per_execution). Loops of
the user's own are compiled as a whole by tf.function, and are not seen.
"""

from __future__ import annotations

import inspect
import math
import sys
from functools import wraps
from typing import Any

from scalebench.strategies.script.torch_hooks import EPOCH, EVALUATION, SAVING, Hooks


class KerasHooks:
    """The hooks of Keras, which report to those of the process."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self.model: Any = None  # the one that fits
        self.replicas = 1
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
            self.model = model
            self.replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
            return fit(*bound.args, **bound.kwargs)

        keras.Model.fit = fit_and_report
        keras.Model.save = self._hooks.wrap_pause(keras.Model.save, SAVING)
        from keras.src.trainers import epoch_iterator

        kind: Any = epoch_iterator.EpochIterator
        init = kind.__init__

        @wraps(init)
        def init_and_look(iterator: Any, *args: Any, **kwargs: Any) -> None:
            init(iterator, *args, **kwargs)
            if self._batch is None:
                self._batch = _find_batch(iterator.data_adapter)

        kind.__init__ = init_and_look

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

    def count_parameters(self) -> int | None:
        """Return the trainable parameters of the model that fits; None before there is one."""
        return None if self.model is None else sum(math.prod(each.shape) for each in self.model.trainable_weights)


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
