"""model.keras: a user's function called for its network, which starts alike on all ranks and under all strategies."""

from __future__ import annotations

import inspect
import re
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from scalebench.adapters.tensorflow import own, own_check
from scalebench.plugins import PluginError
from scalebench.spec import Config
from scalebench.strategy import Unsupported
from scalebench.workloads import user_code

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


def build(config: Config, computes_in: str, rank: int, kind: type[own.OwnModel]) -> own.OwnModel:
    """The network of model.keras with the weights that the seed gives, on every rank; call it in the scope in which
    its variables shall live.

    PluginError, which names the function and has the traceback as its log, where it fails or gives something that
    cannot be trained on such samples.
    """
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[computes_in])
    try:
        with own.replica_variables(), blamed(config):
            inner = _made(config)
            own_check.check_inputs(inner, config)
            own_check.make_all(inner, config)
            if not config.train.dropout:
                own.without_dropout(inner)
            changed = own_check.check(inner, config)
    finally:
        keras.config.set_dtype_policy(policy)
    model = kind(inner, changed)
    tf.random.set_seed(config.seed + rank)  # for random operations of TensorFlow's own
    own.draw_apart(model, rank)
    return model


def check_alike(model: own.OwnModel, config: Config, broadcast: Callable[[float], float], ranks: Any) -> None:
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
    except own_check.Problem as problem:
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
        raise own_check.Problem(f"is a {type(function).__name__}: name a function that makes the network")
    _check_call(function, config)
    keras.utils.set_random_seed(config.seed % 2**32)
    made = function(**config.model.options)
    if not isinstance(made, keras.Model):
        given = f"the class {made.__name__}" if isinstance(made, type) else f"a {type(made).__name__}"
        raise own_check.Problem(f"gives {given}, and no keras.Model")
    return made


def _check_call(function: Callable[..., Any], config: Config) -> None:
    options = config.model.options
    try:
        inspect.signature(function).bind(**options)
    except ValueError:  # some builtins do not tell what they take
        return
    except TypeError as error:
        raise own_check.Problem(f"cannot be called with model.options={options}: {error}") from None
