"""A user's own network looked over before it trains: what it takes, gives, draws, and what nobody would train."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from scalebench.spec import Config

SAMPLES = 2
LOSS = "adds a loss of its own (a regularizer or add_loss), which nobody would minimise: leave it out"


class Problem(Exception):
    """What is wrong with the network, to be said behind the name of its function."""


def make_all(inner: keras.Model, config: Config) -> None:
    """Have it build what is not built yet; nothing is computed."""
    inner(keras.KerasTensor((None, *config.model.input_shape), "float32"), training=False)


def check_inputs(inner: keras.Model, config: Config) -> None:
    """Problem where a network that says what it takes does not take our samples: Keras would cast or squeeze them."""
    try:
        inputs = inner.inputs
    except AttributeError:  # nothing is said before it is built
        return
    if not inputs:
        return
    if len(inputs) != 1:
        raise Problem(f"takes {len(inputs)} inputs, and a sample is one array")
    batch, *shape = inputs[0].shape
    wanted = list(config.model.input_shape)
    if batch is not None:
        raise Problem(f"takes batches of {batch} only: leave the batch out of its Input")
    if len(shape) != len(wanted) or any(a not in (None, b) for a, b in zip(shape, wanted, strict=True)):
        raise Problem(f"takes samples of {tuple(shape)}; those of dataset={config.dataset.name} are {tuple(wanted)}")
    if not tf.as_dtype(inputs[0].dtype).is_floating:
        raise Problem(
            f"takes {inputs[0].dtype}, and is given floats (pictures from -1 to 1): leave its Input's dtype out"
        )


def check(inner: keras.Model, config: Config) -> list[keras.Variable]:
    """Problem for a built network that cannot be trained as config.model says. The variables that a pass in training
    changes: moving statistics, states of random layers."""
    if not inner.trainable_variables:
        raise Problem("has no weights to train")
    for variable in inner.trainable_variables:
        if variable.dtype != "float32":
            raise Problem(
                f"has '{variable.path}' in {variable.dtype}: what is trained is float32, and train.precision says what "
                f"it computes in"
            )
        if variable.regularizer is not None:
            raise Problem(LOSS)
    _check_outputs(_pass(inner, config, training=False)[0], inner, config)
    _, changed = _pass(inner, config, training=True)
    if not config.train.dropout and not all(tf.as_dtype(variable.dtype).is_floating for variable in changed):
        raise Problem(
            "draws numbers in training although train.dropout=false, which turns off dropout layers of Keras alone: "
            "make a keras.layers.Dropout of it, or take train.dropout=true"
        )
    return changed


def _pass(inner: keras.Model, config: Config, training: bool) -> tuple[Any, list[keras.Variable]]:
    """(outputs for two samples, what is assigned to), from a graph that nobody runs: no variable is read or changed."""
    variables, scopes = inner.variables, []

    def run(inputs: tf.Tensor) -> Any:
        values = [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in variables]
        with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
            before = dict(scope.state_mapping)
            outputs = inner(inputs, training=training)
        scopes.append((before, scope.state_mapping, scope.losses))
        return outputs

    samples = tf.TensorSpec((SAMPLES, *config.model.input_shape), tf.float32)
    outputs = tf.function(run, autograph=False).get_concrete_function(samples).structured_outputs
    before, after, losses = scopes[-1]
    if losses:
        raise Problem(LOSS)
    if after.keys() - before.keys():
        raise Problem(
            "draws from a generator of Keras' own: give keras.random a keras.random.SeedGenerator of the layer"
        )
    return outputs, [variable for variable in variables if after[id(variable)] is not before[id(variable)]]


def _check_outputs(outputs: Any, inner: keras.Model, config: Config) -> None:
    """Problem unless the loss can be made of them and of the targets."""
    if not isinstance(outputs, tf.Tensor):
        raise Problem(f"should give one tensor, and gives a {type(outputs).__name__}")
    found, data = tuple(outputs.shape), config.dataset
    if config.model.loss != "cross_entropy":
        wanted = (SAMPLES, *config.model.target_shape)
        if found != wanted:
            raise Problem(
                f"gives outputs of {found} for {SAMPLES} samples; the targets of dataset={data.name} are {wanted}"
            )
        return
    if len(found) != 2 or found[0] != SAMPLES or found[1] is None or found[1] < (data.classes or 2):
        has = f"{data.classes} classes" if data.classes else "classes"
        raise Problem(
            f"gives outputs of {found} for {SAMPLES} samples; dataset={data.name} has {has}: give each an output"
        )
    if _ends_in_softmax(inner):
        raise Problem("ends in a softmax, and cross_entropy takes what goes into one (logits): leave it out")


def _ends_in_softmax(inner: keras.Model) -> bool:
    """As far as the network tells what comes last."""
    try:
        last = inner.outputs[0]._keras_history.operation
    except (AttributeError, TypeError, IndexError):
        return False
    return isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax
