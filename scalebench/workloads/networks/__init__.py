"""Networks by name, built from a model's config; the other files here define one family of networks each."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.plugins import PluginEntry
from scalebench.core.spec import ModelSpec
from scalebench.workloads.network import Network
from scalebench.workloads.networks import plugin_networks, simple

NO_DEFAULT = inspect.Parameter.empty
ANY_OPTION = "**"  # among the options of a function that accepts any keyword
IMAGE, CURVE, VECTOR = ("height", "width", "channels"), ("positions", "channels"), ("numbers",)
TOKENS = ("tokens",)  # integers, for each of which the network looks up a vector


class NetworkEntry(NamedTuple):
    """The function that builds a network, and the inputs that it takes."""

    function: str  # "module:function", called as function(network, outputs, **settings, **options), the network empty
    axes: tuple[str, ...] = IMAGE  # of its inputs
    input_shape: Callable[[dict[str, Any]], Sequence[int]] | None = None  # of all options, if these determine it
    target_per_token: bool = False  # a sample's target is a class number for each of its tokens
    settings: Mapping[str, Any] = MappingProxyType({})  # what makes this network of several alike, and is no option


NETWORKS: dict[str, NetworkEntry] = {
    "materials_cnn": NetworkEntry("simple:materials_cnn", CURVE),
    "inception_v3": NetworkEntry("imagenet_cnns:inception_v3"),
    "resnet50": NetworkEntry("resnet:v1", settings={"blocks": (3, 4, 6, 3), "as_in_keras": True}),
    "resnet50_v1_5": NetworkEntry("resnet:v1", settings={"blocks": (3, 4, 6, 3), "as_in_keras": False}),
    "resnet50_v2": NetworkEntry("resnet:resnet50_v2"),
    "resnet101": NetworkEntry("resnet:v1", settings={"blocks": (3, 4, 23, 3), "as_in_keras": True}),
    "resnet152": NetworkEntry("resnet:v1", settings={"blocks": (3, 8, 36, 3), "as_in_keras": True}),
    "vgg11": NetworkEntry("imagenet_cnns:vgg", settings={"convolutions": (1, 1, 2, 2, 2), "dropout": 0.5}),
    "vgg16": NetworkEntry("imagenet_cnns:vgg", settings={"convolutions": (2, 2, 3, 3, 3), "dropout": 0.0}),
    "vgg19": NetworkEntry("imagenet_cnns:vgg", settings={"convolutions": (2, 2, 4, 4, 4), "dropout": 0.5}),
    "alexnet": NetworkEntry("imagenet_cnns:alexnet"),
    "googlenet": NetworkEntry("imagenet_cnns:googlenet"),
    "lenet": NetworkEntry("imagenet_cnns:lenet"),
    "overfeat": NetworkEntry("imagenet_cnns:overfeat"),
    "trivial": NetworkEntry("imagenet_cnns:trivial"),
    "cifar10_cnn": NetworkEntry("cifar10_cnns:cifar10_cnn"),
    "alexnet_cifar10": NetworkEntry("cifar10_cnns:alexnet_cifar10"),
    "resnet20_cifar10": NetworkEntry("cifar10_cnns:resnet", settings={"blocks": 3}),
    "resnet32_cifar10": NetworkEntry("cifar10_cnns:resnet", settings={"blocks": 5}),
    "resnet44_cifar10": NetworkEntry("cifar10_cnns:resnet", settings={"blocks": 7}),
    "resnet56_cifar10": NetworkEntry("cifar10_cnns:resnet", settings={"blocks": 9}),
    "resnet110_cifar10": NetworkEntry("cifar10_cnns:resnet", settings={"blocks": 18}),
    "densenet40_k12": NetworkEntry("cifar10_cnns:densenet", settings={"layers": 12}),
    "densenet100_k12": NetworkEntry("cifar10_cnns:densenet", settings={"layers": 32}),
    "mlp": NetworkEntry("simple:mlp", VECTOR),
    "synthetic": NetworkEntry("simple:synthetic", CURVE, lambda options: simple.shape_sample(options["sample_bytes"])),
    "gpt_small": NetworkEntry("language_models:gpt", TOKENS, lambda options: [options["sequence_length"]], True),
    "lstm_small": NetworkEntry("language_models:lstm", TOKENS, lambda options: [options["sequence_length"]], True),
}


def build_by_name(
    name: str, input_shape: Sequence[int], outputs: int, options: dict[str, Any] | None = None
) -> Network:
    """Build the network of that name for samples of this shape (channels last) and with this number of outputs.

    Raises InputError for an unknown name or option, an option of another type than its default, inputs with other axes
    than the network's, and inputs that are too small; PluginError where the code of a plugin fails.
    """
    point = _plugin_point(name)
    axes = () if point is not None else _entry(name).axes  # a plugin's network checks its inputs itself
    if (axes and len(input_shape) != len(axes)) or not input_shape or min(input_shape) < 1:
        expected = f" of shape ({', '.join(axes)})" if axes else ""
        raise InputError(f"model={name} takes inputs{expected}, not model.input_shape={list(input_shape)}")
    if outputs < 1:
        raise InputError(f"model.outputs={outputs} should be at least 1")
    _check_options(name, options or {}, option_defaults(name))
    if point is None:
        return _build_once(name, tuple(input_shape), outputs, json.dumps(options or {}))
    network = Network(name, input_shape)
    plugin_networks.add_nodes(point, network, outputs, options or {})
    return network


@functools.lru_cache(16)
def _build_once(name: str, input_shape: tuple[int, ...], outputs: int, options: str) -> Network:
    """Build one of our networks, which nobody changes: the runs of a sweep and their baselines share theirs."""
    network, entry = Network(name, input_shape), _entry(name)
    _load(entry.function)(network, outputs, **entry.settings, **json.loads(options))
    return network


def build_network(model: ModelSpec) -> Network:
    """Build the network of a run's config. Raises as build_by_name does."""
    return build_by_name(model.name, model.input_shape, model.outputs, model.options)


def resolve_input_shape(model: ModelSpec) -> list[int]:
    """Return the shape of one sample: that of the config, unless the model's options determine it.

    Raises as build_by_name does.
    """
    entry = None if _plugin_point(model.name) is not None else _entry(model.name)
    if entry is None or entry.input_shape is None:
        return model.input_shape
    defaults = option_defaults(model.name)
    _check_options(model.name, model.options, defaults)
    return list(entry.input_shape(defaults | model.options))


def resolve_target_shape(model: ModelSpec) -> list[int]:
    """Return the shape of one sample's target: that of the config, unless it follows from that of the sample."""
    entry = None if _plugin_point(model.name) is not None else _entry(model.name)
    return resolve_input_shape(model) if entry is not None and entry.target_per_token else model.target_shape


def takes_tokens(model: ModelSpec) -> bool:
    """Return whether samples are integers that the network looks up; False for an unknown network."""
    if _plugin_point(model.name) is not None and model.input_shape:
        return any(node.op == "embedding" for node in build_network(model).nodes)
    return model.name in NETWORKS and NETWORKS[model.name].axes == TOKENS


def has_changed_options(model: ModelSpec) -> bool:
    """Return whether options that determine the number of parameters differ from their defaults.

    Then `model.params` of the YAML does not hold.
    """
    entry = NETWORKS.get(model.name)
    defaults = option_defaults(model.name) if entry is not None and entry.input_shape is not None else {}
    return any(defaults.get(key, value) != value for key, value in model.options.items())


def option_defaults(name: str) -> dict[str, Any]:
    """Return every option of that network with its default, which is NO_DEFAULT for a required one.

    Raises as build_by_name does.
    """
    point = _plugin_point(name)
    if point is not None:
        return _defaults(plugin_networks.load_function(point), skip=2)
    entry = _entry(name)
    return {key: value for key, value in _defaults(_load(entry.function), skip=2).items() if key not in entry.settings}


def is_known(name: str) -> bool:
    """Return whether scalebench or a plugin has a network of that name."""
    return name in NETWORKS or _plugin_point(name) is not None


def _plugin_point(name: str) -> PluginEntry | None:
    """Return the entry point of that name, unless it is a built-in network."""
    return None if name in NETWORKS else plugin_networks.find_point(name)


def _entry(name: str) -> NetworkEntry:
    if name not in NETWORKS:
        raise InputError(unknown_name_message("model", name, [*NETWORKS, *plugin_networks.names(), "custom"]))
    return NETWORKS[name]


def _load(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return function


def _defaults(function: Callable[..., Any], skip: int = 0) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    parameters = [each for each in parameters if each.kind is not each.VAR_POSITIONAL]
    return {ANY_OPTION if each.kind is each.VAR_KEYWORD else each.name: each.default for each in parameters}


def _check_options(name: str, options: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise InputError for an unknown or missing option, and for one of another type than its default."""
    for key in defaults:
        if defaults[key] is NO_DEFAULT and key not in (*options, ANY_OPTION):
            raise InputError(f"model={name} needs an option '{key}': set +model.options.{key}")
    for key, value in options.items():
        if key not in defaults and ANY_OPTION not in defaults:
            raise InputError(unknown_name_message(f"option of model '{name}'", key, defaults))
        if defaults.get(key) is None or defaults[key] is NO_DEFAULT:  # there is no type to compare with
            continue
        expected = type(defaults[key])
        if not (type(value) is expected or (expected is float and type(value) is int)):
            raise InputError(
                f"model.options.{key}={value!r} should be {expected.__name__}, as its default {defaults[key]}"
            )
