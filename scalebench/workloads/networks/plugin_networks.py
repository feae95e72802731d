"""Networks of plugins: their functions are called under guard, and what they build is checked."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from scalebench.core import plugins
from scalebench.core.errors import InputError, PluginError, describe_exception
from scalebench.core.plugins import PluginEntry
from scalebench.workloads.network import Network

BuildFunction = Callable[..., Any]


def find_point(name: str) -> PluginEntry | None:
    """Return the entry point of that name, or None where no plugin has it."""
    return next((point for point in plugins.plugin_entries("models") if point.name == name), None)


def names() -> list[str]:
    """Return the names of the networks that plugins add."""
    return [point.name for point in plugins.plugin_entries("models")]


def load_function(point: PluginEntry) -> BuildFunction:
    """Return the function(network, outputs, **options) of a plugin, which adds its nodes to an empty network.

    Raises PluginError if it cannot be loaded or called like that.
    """
    function = plugins.load_object(point.target, _label(point))
    if not callable(function):
        raise PluginError(f"{_label(point)}: {point.target} is not a function")
    try:
        options = list(inspect.signature(function).parameters.values())[2:]
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [each.name for each in options if each.kind in kinds and each.default is inspect.Parameter.empty]
        inspect.signature(function).bind("network", "outputs", **dict.fromkeys(required))
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"{_label(point)}: {point.target} should be a function(network, outputs, **options): {error}"
        ) from None
    build: BuildFunction = function
    return build


def add_nodes(point: PluginEntry, network: Network, outputs: int, options: dict[str, Any]) -> None:
    """Have a plugin's function add its nodes to the network.

    Raises PluginError, with the traceback as its log, where the function fails or does not end in that number of
    outputs. An InputError of the function passes through, since it is the user's mistake.
    """
    build = load_function(point)
    label = _label(point)
    try:
        with redirect_stdout(sys.stderr):  # prints of user code are not part of our output
            build(network, outputs, **options)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{label} fails: {describe_exception(error)}", traceback.format_exc()) from error
    per_token = (*network.input.shape, outputs) if network.count("embedding") else (outputs,)
    if network.output.shape not in ((outputs,), per_token):
        raise PluginError(
            f"{label} ends in '{network.output.name}' of shape {network.output.shape}, and model.outputs={outputs} "
            f"needs ({outputs},)"
        )
    if network.parameters == 0:
        raise PluginError(f"{label} has nothing to train: no convolution, dense layer or normalization")


def _label(point: PluginEntry) -> str:
    return f"model '{point.name}' of {point.origin}"
