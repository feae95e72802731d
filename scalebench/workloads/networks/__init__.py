"""Model names -> networks. Layer 1; each family of networks is a file beside this one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scalebench.plugins import Point
from scalebench.spec import InputError, ModelSpec
from scalebench.suggest import no_such
from scalebench.workloads.network import Network
from scalebench.workloads.networks import from_plugins

EMPTY = inspect.Parameter.empty
ANY = "**"  # among the options of a function that takes whatever there is
IMAGE, CURVE, VECTOR = ("height", "width", "channels"), ("positions", "channels"), ("numbers",)
TOKENS = ("tokens",)  # whole numbers, of which the network looks each up


class Entry(NamedTuple):
    """How a network is made, from what."""

    function: str  # "module:function"; it adds its nodes to an empty network: function(network, outputs, **options)
    axes: tuple[str, ...] = IMAGE  # of its inputs
    input_shape: str | None = None  # "module:function" of the options, where they decide the shape of a sample
    target_per_token: bool = False  # the number of a class for each token of a sample


NETWORKS: dict[str, Entry] = {
    "materials_cnn": Entry("materials_cnn:materials_cnn", CURVE),
    "inception_v3": Entry("inception_v3:inception_v3"),
    "resnet50": Entry("resnet:resnet50"),
    "resnet50_v1_5": Entry("resnet:resnet50_v1_5"),
    "resnet50_v2": Entry("resnet:resnet50_v2"),
    "resnet101": Entry("resnet:resnet101"),
    "resnet152": Entry("resnet:resnet152"),
    "vgg16": Entry("vgg:vgg16"),
    "alexnet": Entry("alexnet:alexnet"),
    "cifar10_cnn": Entry("cifar10_cnn:cifar10_cnn"),
    "alexnet_cifar10": Entry("alexnet:alexnet_cifar10"),
    "resnet20_cifar10": Entry("resnet_cifar10:resnet20"),
    "resnet32_cifar10": Entry("resnet_cifar10:resnet32"),
    "resnet44_cifar10": Entry("resnet_cifar10:resnet44"),
    "resnet56_cifar10": Entry("resnet_cifar10:resnet56"),
    "resnet110_cifar10": Entry("resnet_cifar10:resnet110"),
    "densenet40_k12": Entry("densenet:densenet40_k12"),
    "densenet100_k12": Entry("densenet:densenet100_k12"),
    "mlp": Entry("mlp:mlp", VECTOR),
    "synthetic": Entry("synthetic:synthetic", CURVE, "synthetic:input_shape"),
    "gpt_small": Entry("gpt:gpt", TOKENS, "gpt:input_shape", target_per_token=True),
}


def build(name: str, input_shape: Sequence[int], outputs: int, options: dict[str, Any] | None = None) -> Network:
    """The network of that name for samples of this shape (channels last), with so many outputs.

    Raises InputError for an unknown name or option, an option of another type than its default, inputs of other
    axes than the network's, and inputs that are too small; PluginError where the code of a plugin fails.
    """
    point = _of_plugin(name)
    axes = () if point is not None else _entry(name).axes  # which those of a plugin take, they say themselves
    if (axes and len(input_shape) != len(axes)) or not input_shape or min(input_shape) < 1:
        told = f" of shape ({', '.join(axes)})" if axes else ""
        raise InputError(f"model={name} takes inputs{told}, not model.input_shape={list(input_shape)}")
    if outputs < 1:
        raise InputError(f"model.outputs={outputs} should be at least 1")
    _check_options(name, options or {}, option_defaults(name))
    network = Network(name, input_shape)
    if point is not None:
        from_plugins.fill(point, network, outputs, options or {})
    else:
        _load(_entry(name).function)(network, outputs, **(options or {}))
    return network


def of(model: ModelSpec) -> Network:
    """The network that a run's config means."""
    return build(model.name, model.input_shape, model.outputs, model.options)


def input_shape(model: ModelSpec) -> list[int]:
    """Shape of one sample: what the YAML says, unless the model's options decide it. Raises InputError as build."""
    entry = None if _of_plugin(model.name) is not None else _entry(model.name)
    if entry is None or entry.input_shape is None:
        return model.input_shape
    _check_options(model.name, model.options, option_defaults(model.name))
    function = _load(entry.input_shape)
    return list(function(**{key: model.options[key] for key in _defaults(function) if key in model.options}))


def target_shape(model: ModelSpec) -> list[int]:
    """Shape of one sample's target: what the YAML says, unless it follows from that of the sample."""
    entry = None if _of_plugin(model.name) is not None else _entry(model.name)
    return input_shape(model) if entry is not None and entry.target_per_token else model.target_shape


def takes_tokens(model: ModelSpec) -> bool:
    """Whether samples are whole numbers that the network looks up; False for one that is not known here."""
    if _of_plugin(model.name) is not None and model.input_shape:
        return any(node.op == "embedding" for node in of(model).nodes)
    return model.name in NETWORKS and NETWORKS[model.name].axes == TOKENS


def has_other_options(model: ModelSpec) -> bool:
    """Whether parameters are not those of the YAML, since options that decide them are set otherwise there."""
    entry = NETWORKS.get(model.name)
    defaults = option_defaults(model.name) if entry is not None and entry.input_shape is not None else {}
    return any(defaults.get(key, value) != value for key, value in model.options.items())


def option_defaults(name: str) -> dict[str, Any]:
    """Every option of that network, with its default; `EMPTY` for one that has none. Raises as build."""
    point = _of_plugin(name)
    function = _load(_entry(name).function) if point is None else from_plugins.function(point)
    return _defaults(function, skip=2)


def is_known(name: str) -> bool:
    """Whether a network goes by that name."""
    return name in NETWORKS or _of_plugin(name) is not None


def _of_plugin(name: str) -> Point | None:
    """The entry point of that name, unless it is a network of ours."""
    return None if name in NETWORKS else from_plugins.point(name)


def _entry(name: str) -> Entry:
    if name not in NETWORKS:
        raise InputError(no_such("model", name, [*NETWORKS, *from_plugins.names(), "custom"]))
    return NETWORKS[name]


def _load(where: str) -> Callable[..., Any]:
    module, _, function = where.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    return loaded


def _defaults(function: Callable[..., Any], skip: int = 0) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    parameters = [each for each in parameters if each.kind is not each.VAR_POSITIONAL]
    return {ANY if each.kind is each.VAR_KEYWORD else each.name: each.default for each in parameters}


def _check_options(name: str, options: dict[str, Any], defaults: dict[str, Any]) -> None:
    """InputError for an unknown one, one of another type than its default, and one that is asked for and missing."""
    for key in defaults:
        if defaults[key] is EMPTY and key not in (*options, ANY):
            raise InputError(f"model={name} asks for an option '{key}': set +model.options.{key}")
    for key, value in options.items():
        if key not in defaults and ANY not in defaults:
            raise InputError(no_such(f"option of model '{name}'", key, defaults))
        if defaults.get(key) is None or defaults[key] is EMPTY:  # nothing to tell a type by
            continue
        wanted = type(defaults[key])
        if not (type(value) is wanted or (wanted is float and type(value) is int)):
            raise InputError(
                f"model.options.{key}={value!r} should be {wanted.__name__}, as its default {defaults[key]}"
            )
