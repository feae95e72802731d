"""A user's own keras.Model as the strategies here take it, and what kinds of variables it has.

model.keras: a user's function called for its network, which starts alike on all ranks and under all strategies.

A user's own network looked over before it trains: what it takes, gives, draws, and what nobody would train.
"""

from __future__ import annotations

import inspect
import re
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from scalebench.core.plugins import PluginError
from scalebench.core.spec import Config
from scalebench.strategies.base import Unsupported
from scalebench.workloads import user_code
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


POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
SAID = 300  # characters of a message of Keras' at the most, which may be pages: the log has it whole
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PASSED_ON = re.compile(r"Exception encountered when calling [^\n]*\n")  # once for each layer around the one that fails


def refuse(config: Config) -> None:
    """Unsupported for what only networks of ours can do."""
    model, strategy = config.model, config.strategy
    if model.keras is None:
        raise Unsupported(f"model={model.name} has no model.keras=MODULE:FUNCTION, which {strategy.name} needs")
    if config.train.data_format == "nchw":
        raise Unsupported(
            f"train.data_format=nchw lays out networks of scalebench's own; the layers of {told(config)} are given "
            f"channels last, so leave it out"
        )


def build(config: Config, computes_in: str, rank: int, kind: type[OwnModel]) -> OwnModel:
    """The network of model.keras with the weights that the seed gives, on every rank; call it in the scope in which
    its variables shall live.

    PluginError, which names the function and has the traceback as its log, where it fails or gives something that
    cannot be trained on such samples.
    """
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[computes_in])
    try:
        with replica_variables(), blamed(config):
            inner = _made(config)
            check_inputs(inner, config)
            make_all(inner, config)
            if not config.train.dropout:
                without_dropout(inner)
            changed = check(inner, config)
    finally:
        keras.config.set_dtype_policy(policy)
    model = kind(inner, changed)
    tf.random.set_seed(config.seed + rank)  # for random operations of TensorFlow's own
    draw_apart(model, rank)
    return model


def check_alike(model: OwnModel, config: Config, broadcast: Callable[[float], float], ranks: Any) -> None:
    """PluginError on all ranks where some rank's weights are not rank 0's; `ranks` adds numbers up over them."""
    checksum = 0
    for variable in model.trained:
        checksum = zlib.crc32(variable.value.numpy().tobytes(), checksum)
    (others,) = ranks([float(broadcast(float(checksum)) != checksum)])
    if others:
        raise PluginError(
            f"{told(config)} gives other weights on every rank: draw them from Keras, numpy.random or random, which "
            f"are seeded"
        )


def told(config: Config) -> str:
    """What a fault begins with."""
    return f"model.keras={config.model.keras}"


@contextmanager
def blamed(config: Config) -> Iterator[None]:
    """Around the user's code: a fault becomes one line that names the function. Memory that is not enough stays what
    it is."""
    try:
        yield
    except (PluginError, MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Problem as problem:
        raise PluginError(f"{told(config)} {_said(problem)}", traceback.format_exc()) from problem
    except (Exception, SystemExit) as error:
        line = f"{told(config)} fails: {type(error).__name__}: {_said(error)}"
        raise PluginError(line, traceback.format_exc()) from error


def _said(error: BaseException) -> str:
    text = PASSED_ON.sub("", COLOURS.sub("", str(error))).partition("Arguments received by")[0]
    return " ".join(text.split())[:SAID]


def _made(config: Config) -> keras.Model:
    """What the function gives. Modules may make networks when they are imported, hence the first seed."""
    keras.utils.set_random_seed(config.seed % 2**32)
    function = user_code.load_function(str(config.model.keras), "model.keras")
    if isinstance(function, keras.Layer) or not callable(function):
        raise Problem(f"is a {type(function).__name__}: name a function that makes the network")
    _check_call(function, config)
    keras.utils.set_random_seed(config.seed % 2**32)
    made = function(**config.model.options)
    if not isinstance(made, keras.Model):
        given = f"the class {made.__name__}" if isinstance(made, type) else f"a {type(made).__name__}"
        raise Problem(f"gives {given}, and no keras.Model")
    return made


def _check_call(function: Callable[..., Any], config: Config) -> None:
    options = config.model.options
    try:
        inspect.signature(function).bind(**options)
    except ValueError:  # some builtins do not tell what they take
        return
    except TypeError as error:
        raise Problem(f"cannot be called with model.options={options}: {error}") from None
