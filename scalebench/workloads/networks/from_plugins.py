"""Networks that plugins add: calling their functions, and checks of the networks they make."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from scalebench import plugins
from scalebench.plugins import PluginError, Point
from scalebench.spec import InputError
from scalebench.workloads.network import Network

Function = Callable[..., Any]


def point(name: str) -> Point | None:
    """The entry point of that name; None where no plugin has it."""
    return next((point for point in plugins.points("models") if point.name == name), None)


def names() -> list[str]:
    """Networks that plugins add."""
    return [point.name for point in plugins.points("models")]


def what(of: Point) -> str:
    return f"model '{of.name}' of {of.origin}"


def function(of: Point) -> Function:
    """That adds its nodes to an empty network, function(network, outputs, **options). PluginError where it is none."""
    found = plugins.load(of.target, what(of))
    if not callable(found):
        raise PluginError(f"{what(of)}: {of.target} is no function")
    try:
        inspect.signature(found).bind("network", "outputs", **_required(found))
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"{what(of)}: {of.target} should be a function(network, outputs, **options): {error}"
        ) from None
    made: Function = found
    return made


def fill(of: Point, network: Network, outputs: int, options: dict[str, Any]) -> None:
    """Its nodes into the network. PluginError, with the traceback as its log, where its code fails or gives other
    outputs than the asked ones; an InputError of its own passes, since it is the user's mistake."""
    make = function(of)
    try:
        with redirect_stdout(sys.stderr):
            make(network, outputs, **options)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what(of)} fails: {plugins.said(error)}", traceback.format_exc()) from error
    per_token = (*network.input.shape, outputs) if network.count("embedding") else (outputs,)
    if network.output.shape not in ((outputs,), per_token):
        raise PluginError(
            f"{what(of)} ends in '{network.output.name}' of shape {network.output.shape}, and model.outputs={outputs} "
            f"wants ({outputs},)"
        )
    if network.parameters == 0:
        raise PluginError(f"{what(of)} has nothing that is trained: no convolution, dense layer or normalisation")


def _required(made: Function) -> dict[str, None]:
    """Keywords without a default, behind network and outputs."""
    behind = list(inspect.signature(made).parameters.values())[2:]
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {each.name: None for each in behind if each.kind in kinds and each.default is inspect.Parameter.empty}
