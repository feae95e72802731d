"""A user's Keras model (`model.keras`): the call of the user's function, checks of the model before training, and a
wrapper with the interface that strategies use. Its initial weights are equal on all ranks and under all strategies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from scalebench.core.plugins import UserProblem, attribute_errors
from scalebench.core.spec import Config, ModelSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.tensorflow import batches
from scalebench.strategies.tensorflow.profiling import count_flops
from scalebench.workloads import records, user_code
from scalebench.workloads.datasets.images import PIXEL_SCALE
from scalebench.workloads.network import TRAINING_PASSES

CHECK_SAMPLES = 2
ADDED_LOSS = "adds a loss of its own (a regularizer or add_loss), which would not be minimized: leave it out"
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
OWN_TRAINING = ("train_step", "test_step", "compute_loss", "make_train_function")
MAX_MESSAGE_CHARS = 300  # messages of Keras can be pages long; the log has the full text
ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PASSING_OPERATIONS = ("Identity", "Reshape", "Cast")  # of TensorFlow's graph; what goes in comes out
KERAS_CALL_PREFIX = re.compile(r"Exception encountered when calling [^\n]*\n")  # once per layer around the failing one


class LossReportingModel(keras.Model):
    """A model with which Keras' fit reports the sum of each batch's losses; Keras itself reports the mean since the
    start of the epoch. Keras then takes the mean over the replicas."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        metrics = super().compute_metrics(x, y, y_pred, sample_weight)
        replicas = self.distribute_strategy.num_replicas_in_sync
        return metrics | {"loss_sum": tf.reduce_sum(self.loss.call(y, y_pred)) * replicas}


class UserModel(LossReportingModel):
    """A wrapper of the user's model `inner`, which takes (samples, *input_shape), channels last.

    Bytes are scaled to -1..1, outputs are cast to float32. Create it, like `inner`, in the scope of its variables.
    `variables_by_name` has trained weights and moving statistics under Keras' paths, which are equal in all processes.
    """

    as_is = False  # true: samples are records, and reach the model as the user's function gave them

    def __init__(
        self, inner: keras.Model, changed: Sequence[keras.Variable] = (), flops_per_sample: float | None = None
    ) -> None:
        """Wrap `inner`; `changed` are the variables that a training pass changes by itself, `flops_per_sample` those of
        training, None where they are unknown."""
        super().__init__(name=f"user_{inner.name}", dtype="float32")
        self.inner, self.flops_per_sample = inner, flops_per_sample
        self.trained = list(inner.trainable_variables)
        self.moving_statistics = [variable for variable in changed if _is_float(variable)]
        self.random_states = [variable for variable in changed if not _is_float(variable)]  # and counters
        self.variables_by_name: dict[str, keras.Variable] = {}
        for variable in [*self.trained, *self.moving_statistics]:
            name, number = variable.path, 2
            while name in self.variables_by_name:  # two layers may have the same name
                name, number = f"{variable.path}:{number}", number + 1
            self.variables_by_name[name] = variable
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        is_bytes = tf.is_tensor(inputs) and inputs.dtype == tf.uint8 and not self.as_is
        x = tf.cast(inputs, tf.float32) / PIXEL_SCALE - 1 if is_bytes else inputs
        return tf.cast(self.inner(order_inputs(self.inner, x), training=training), tf.float32)


def per_replica_variables() -> Any:
    """Return a scope in which variables that are not trained are created per replica, as in scalebench's networks.

    Keras does not set how moving statistics and states of random layers are synchronized and aggregated over replicas,
    and tf.distribute then rejects their assignment. Statistics are averaged when they are read from outside.
    """

    def create(next_creator: Callable[..., Any], **settings: Any) -> Any:
        if not settings.get("trainable", True):
            is_float, aggregation = tf.as_dtype(settings.get("dtype") or tf.float32).is_floating, tf.VariableAggregation
            settings["synchronization"] = tf.VariableSynchronization.ON_READ
            settings["aggregation"] = aggregation.MEAN if is_float else aggregation.ONLY_FIRST_REPLICA
        return next_creator(**settings)

    return tf.variable_creator_scope(create)


def seed_replicas_apart(model: UserModel, rank: int) -> None:
    """Give the random layers of each replica a different seed, since all were created from one.

    Devices that share one copy of the variables (central storage) draw equal numbers for their different samples.
    """
    for variable in model.random_states:
        if tuple(variable.shape) == (2,):  # Keras' seed state: (seed, number of draws)
            for number, state in enumerate(getattr(variable.value, "values", (variable.value,))):
                state.assign(state + tf.constant([rank + number, 0], state.dtype))


def disable_dropout(inner: keras.Model) -> None:
    """Switch off dropout in all layers, also in recurrent cells and in attention."""
    layers = keras.layers
    kinds = (layers.Dropout, layers.AlphaDropout, layers.GaussianDropout)
    for layer in inner._flatten_layers():
        for key in ("rate",) if isinstance(layer, kinds) else ("dropout", "recurrent_dropout", "_dropout"):
            if isinstance(vars(layer).get(key), (int, float)):
                setattr(layer, key, 0.0)


def _is_float(variable: keras.Variable) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)


def order_inputs(inner: keras.Model, samples: Any) -> Any:
    """Return arrays that have names in the order of a model's list of inputs; a symbolic call would sort the names."""
    declared = getattr(inner, "input", None) if isinstance(samples, dict) else None
    if not isinstance(declared, (list, tuple)) or any(each.name not in samples for each in declared):
        return samples  # a subclassed model has a list of Keras' own names once it is built
    return [samples[each.name] for each in declared]


def check_inputs(inner: keras.Model, config: Config) -> None:
    """Raise UserProblem if the model declares inputs other than the samples, which Keras would cast or squeeze."""
    try:
        inputs = inner.inputs
    except AttributeError:  # a subclassed model declares none before it is built
        return
    if not inputs:
        return
    if config.dataset.dtype == records.RECORD:
        names, fields = sorted(each.name for each in inputs), records.name_fields(batches.input_specs(config, None))
        if len(names) != len(fields) or not ({*fields} == {*names} or "f0" in fields):
            raise UserProblem(
                f"takes inputs called {', '.join(names)}, and the samples of dataset={config.dataset.name} have "
                f"{', '.join(sorted(fields))}: name each Input as its array"
            )
        return
    if len(inputs) != 1:
        raise UserProblem(f"takes {len(inputs)} inputs, and a sample is one array")
    batch, *shape = inputs[0].shape
    sample_shape = list(config.model.input_shape)
    if batch is not None:
        raise UserProblem(f"takes batches of {batch} only: leave the batch out of its Input")
    if len(shape) != len(sample_shape) or any(a not in (None, b) for a, b in zip(shape, sample_shape, strict=True)):
        raise UserProblem(
            f"takes samples of {tuple(shape)}; those of dataset={config.dataset.name} are {tuple(sample_shape)}"
        )
    if not tf.as_dtype(inputs[0].dtype).is_floating:
        raise UserProblem(
            f"takes {inputs[0].dtype}, and is given floats (pictures from -1 to 1): leave its Input's dtype out"
        )


def check_model(inner: keras.Model, config: Config, compute_dtype: str) -> tuple[list[keras.Variable], float | None]:
    """Check by a trial pass that a built model can be trained as `config.model` says, else raise UserProblem.

    The pass over two samples is traced in a graph that is never run, so that no variable is read or changed. Returns
    the variables that a training pass changes (moving statistics and states of random layers), and the FLOPs of
    training on one sample: three times those of a forward pass as for scalebench's networks, or None.
    """
    train, variables = config.train, inner.variables
    for method in OWN_TRAINING:
        if getattr(type(inner), method) is not getattr(keras.Model, method):
            raise UserProblem(
                f"overrides {method}, which only Keras' fit and evaluate call: a step here is the model's call with "
                f"model.loss={config.model.loss} and train.optimizer; leave {method} out"
            )
    for layer in inner._flatten_layers():
        if layer.compute_dtype in ("bfloat16", "float16") and layer.compute_dtype != compute_dtype:
            raise UserProblem(
                f"computes in {layer.compute_dtype} in '{layer.path}', by a dtype policy of its own, where "
                f"train.precision={train.precision} computes in {compute_dtype}: set train.precision="
                f"{layer.compute_dtype} and no policy"
            )
    if not inner.trainable_variables:
        raise UserProblem("has no weights to train")
    for variable in inner.trainable_variables:
        if variable.dtype != "float32":
            raise UserProblem(
                f"has '{variable.path}' in {variable.dtype}: what is trained is float32, and train.precision says what "
                f"it computes in"
            )
        if variable.regularizer is not None:
            raise UserProblem(ADDED_LOSS)
    scopes = []

    def run(inputs: tf.Tensor) -> Any:
        values = [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in variables]
        with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
            before = dict(scope.state_mapping)
            outputs = inner(order_inputs(inner, inputs), training=True)
        scopes.append((before, scope.state_mapping, scope.losses))
        return outputs

    samples = batches.input_specs(config, CHECK_SAMPLES)
    outputs = tf.function(run, autograph=False).get_concrete_function(samples).structured_outputs
    before, after, losses = scopes[-1]
    if losses:
        raise UserProblem(ADDED_LOSS)
    if after.keys() - before.keys():
        raise UserProblem(
            "draws from a generator of Keras' own: give keras.random a keras.random.SeedGenerator of the layer"
        )
    _check_outputs(outputs, config)
    changed = [variable for variable in variables if after[id(variable)] is not before[id(variable)]]
    if not train.dropout and not all(map(_is_float, changed)):
        raise UserProblem(
            "draws numbers in training although train.dropout=false, which turns off dropout layers of Keras alone: "
            "make a keras.layers.Dropout of it, or take train.dropout=true"
        )
    flops = count_flops(outputs.graph)
    return changed, TRAINING_PASSES * flops / CHECK_SAMPLES if flops else None


def _check_outputs(outputs: Any, config: Config) -> None:
    """Raise UserProblem unless the loss can be computed from the outputs and the targets."""
    if not isinstance(outputs, tf.Tensor):
        raise UserProblem(f"should give one tensor, and gives a {type(outputs).__name__}")
    shape, dataset = tuple(outputs.shape), config.dataset
    result = f"gives outputs of {shape} for {CHECK_SAMPLES} samples"
    if config.model.loss != "cross_entropy":
        target_shape = (CHECK_SAMPLES, *config.model.target_shape)
        if shape != target_shape:
            raise UserProblem(f"{result}; the targets of dataset={dataset.name} are {target_shape}")
        return
    positions = tuple(config.model.target_shape)  # several labels of a sample, such as the next tokens
    if shape[:-1] != (CHECK_SAMPLES, *positions) or shape[-1] is None or shape[-1] < (dataset.classes or 2):
        classes = f"{dataset.classes} classes" if dataset.classes else "classes"
        raise UserProblem(f"{result}; dataset={dataset.name} has {classes}: give each an output")
    last = outputs.op
    while last.type in PASSING_OPERATIONS:
        last = last.inputs[0].op
    if last.type == "Softmax":
        raise UserProblem("ends in a softmax, and cross_entropy takes what goes into one (logits): leave it out")


def refuse_unsupported(config: Config) -> None:
    """Raise Unsupported for settings that only scalebench's own networks support."""
    model, strategy = config.model, config.strategy
    if model.keras is None:
        raise Unsupported(f"model={model.name} has no model.keras=MODULE:FUNCTION, which {strategy.name} needs")
    if config.train.data_format == "nchw":
        raise Unsupported(
            f"train.data_format=nchw lays out networks of scalebench's own; the layers of model.keras={model.keras} "
            f"are given channels last, so leave it out"
        )


def build_user_model(config: Config, compute_dtype: str, rank: int) -> UserModel:
    """Build the model of `model.keras`, with weights from the seed on every rank; call it in the variables' scope.

    If the user's function fails, or returns a model that cannot be trained on the samples, raises PluginError with the
    name of the function and the traceback as its log.
    """
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[compute_dtype])
    try:
        with per_replica_variables(), attribute_errors_to_user(config.model):
            seed = partial(keras.utils.set_random_seed, config.seed % 2**32)
            inner = user_code.call_builder(config.model, "keras", keras.Layer, "the network", seed)
            if not isinstance(inner, keras.Model):
                raise UserProblem(f"gives {user_code.describe_result(inner)}, not a keras.Model")
            check_inputs(inner, config)
            # Build the layers that are not built yet, without computing anything.
            specs = batches.input_specs(config, None)
            tensors = records.map_fields(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), specs)
            inner(order_inputs(inner, tensors), training=False)
            if not config.train.dropout:
                disable_dropout(inner)
            changed, flops_per_sample = check_model(inner, config, compute_dtype)
    finally:
        keras.config.set_dtype_policy(policy)
    model = UserModel(inner, changed, flops_per_sample)
    model.as_is = config.dataset.dtype == records.RECORD
    tf.random.set_seed(config.seed + rank)  # for TensorFlow's own random operations
    seed_replicas_apart(model, rank)
    return model


def attribute_errors_to_user(model: ModelSpec) -> AbstractContextManager[None]:
    """Turn errors of the user's code in the block into a PluginError of one line that names the function; errors for
    lack of memory pass unchanged."""
    label, no_memory = user_code.label_function(model, "keras"), (MemoryError, tf.errors.ResourceExhaustedError)
    return attribute_errors(label, *no_memory, describe=describe_keras_error)


def describe_keras_error(error: BaseException) -> str:
    text = KERAS_CALL_PREFIX.sub("", ANSI_COLOUR.sub("", str(error))).partition("Arguments received by")[0]
    return f"{type(error).__name__}: {' '.join(text.split())[:MAX_MESSAGE_CHARS]}"
