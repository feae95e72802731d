"""A user's own keras.Model as the strategies here take it, and what kinds of variables it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from scalebench.workloads.datasets.images import PIXEL_SCALE


class OwnModel(keras.Model):
    """`inner` called with (samples, *input_shape), channels last: floats, or bytes that become -1..1 here.

    Its outputs become float32. Make it, like `inner`, where its variables shall live. `variable_of` has the trained
    ones under names that are the same in every process: the paths that Keras gives them.
    """

    def __init__(self, inner: keras.Model, changed: Sequence[keras.Variable] = ()) -> None:
        """`changed`: the variables that a pass in training changes by itself."""
        super().__init__(name=f"own_{inner.name}", dtype="float32")
        self.inner = inner
        self.trained = list(inner.trainable_variables)
        self.moving = [variable for variable in changed if _floats(variable)]
        self.drawing = [variable for variable in changed if not _floats(variable)]  # random layers, and what counts
        self.variable_of = _named([*self.trained, *self.moving])
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = tf.cast(inputs, tf.float32) / PIXEL_SCALE - 1 if inputs.dtype == tf.uint8 else inputs
        return tf.cast(self.inner(x, training=training), tf.float32)


def replica_variables() -> Any:
    """A scope in which what is not trained becomes a variable of each replica, as with our own networks.

    Keras says nothing of how replicas' moving statistics or states of random layers go together, and tf.distribute
    then refuses to have them assigned. Statistics are averaged where they are read from outside.
    """

    def create(next_creator: Callable[..., Any], **settings: Any) -> Any:
        if not settings.get("trainable", True):
            floats = tf.as_dtype(settings.get("dtype") or tf.float32).is_floating
            how = tf.VariableAggregation
            settings["synchronization"] = tf.VariableSynchronization.ON_READ
            settings["aggregation"] = how.MEAN if floats else how.ONLY_FIRST_REPLICA
        return next_creator(**settings)

    return tf.variable_creator_scope(create)


def draw_apart(model: OwnModel, rank: int) -> None:
    """Have the replicas' random layers draw different numbers; they were made from one seed.

    Devices that share one copy of the variables (central storage) draw the same for different samples.
    """
    for variable in model.drawing:
        if tuple(variable.shape) == (2,):  # (seed, draws so far), as Keras has it
            for number, own in enumerate(getattr(variable.value, "values", (variable.value,))):
                own.assign(own + tf.constant([rank + number, 0], own.dtype))


def without_dropout(inner: keras.Model) -> None:
    """Switch its dropout layers off, those in recurrent cells and in attention too."""
    layers = keras.layers
    kinds = (layers.Dropout, layers.AlphaDropout, layers.GaussianDropout)
    for layer in inner._flatten_layers():
        for key in ("rate",) if isinstance(layer, kinds) else ("dropout", "recurrent_dropout", "_dropout"):
            if isinstance(vars(layer).get(key), (int, float)):
                setattr(layer, key, 0.0)


def _floats(variable: keras.Variable) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)


def _named(variables: list[keras.Variable]) -> dict[str, keras.Variable]:
    found: dict[str, keras.Variable] = {}
    for variable in variables:
        name, number = variable.path, 2
        while name in found:  # two layers may go by one name
            name, number = f"{variable.path}:{number}", number + 1
        found[name] = variable
    return found
