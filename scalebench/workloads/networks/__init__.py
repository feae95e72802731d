"""Networks by name, built from a model's config; the other files here define one family of networks each."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from types import MappingProxyType
from typing import Any, NamedTuple

from scalebench.core import plugins
from scalebench.core.errors import InputError, PluginError, check_type, unknown_name_message
from scalebench.core.spec import ModelSpec
from scalebench.workloads.network import Network
from scalebench.workloads.networks import cifar10_cnns, imagenet_cnns, language_models, resnet, simple

NO_DEFAULT = inspect.Parameter.empty
ANY_OPTION = "**"  # among the options of a function that accepts any keyword
IMAGE, CURVE, VECTOR = ("height", "width", "channels"), ("positions", "channels"), ("numbers",)
TOKENS = ("tokens",)  # integers, for each of which the network looks up a vector; so many class numbers are the target


class NetworkEntry(NamedTuple):
    """The function that builds a network, and the inputs that it takes."""

    build: Callable[..., Any]  # called as build(network, outputs, **settings, **options) with an empty network
    axes: tuple[str, ...] = IMAGE  # of its inputs; empty: the function checks them itself
    input_shape: Callable[[dict[str, Any]], Sequence[int]] | None = None  # of all options, if these determine it
    settings: Mapping[str, Any] = MappingProxyType({})  # what sets it apart from similar networks; not options
    label: str = ""  # in messages, of one that a plugin brings

    def list_options(self) -> dict[str, Any]:
        """Return every option with its default, which is NO_DEFAULT for a required one. Raises PluginError for an
        object of a plugin that cannot be called like a function."""
        try:
            parameters = list(inspect.signature(self.build).parameters.values())[2:]
        except (TypeError, ValueError) as error:
            raise PluginError(f"{self.label} should be a function(network, outputs, **options): {error}") from None
        options = [each for each in parameters if each.kind is not each.VAR_POSITIONAL]
        defaults = {ANY_OPTION if each.kind is each.VAR_KEYWORD else each.name: each.default for each in options}
        return {name: default for name, default in defaults.items() if name not in self.settings}


NETWORKS: dict[str, NetworkEntry] = {
    "materials_cnn": NetworkEntry(simple.materials_cnn, CURVE),
    "inception_v3": NetworkEntry(imagenet_cnns.inception_v3),
    "resnet50": NetworkEntry(resnet.v1, settings={"blocks": (3, 4, 6, 3), "as_in_keras": True}),
    "resnet50_v1_5": NetworkEntry(resnet.v1, settings={"blocks": (3, 4, 6, 3), "as_in_keras": False}),
    "resnet50_v2": NetworkEntry(resnet.resnet50_v2),
    "resnet101": NetworkEntry(resnet.v1, settings={"blocks": (3, 4, 23, 3), "as_in_keras": True}),
    "resnet152": NetworkEntry(resnet.v1, settings={"blocks": (3, 8, 36, 3), "as_in_keras": True}),
    "vgg11": NetworkEntry(imagenet_cnns.vgg, settings={"convolutions": (1, 1, 2, 2, 2), "dropout": 0.5}),
    "vgg16": NetworkEntry(imagenet_cnns.vgg, settings={"convolutions": (2, 2, 3, 3, 3), "dropout": 0.0}),
    "vgg19": NetworkEntry(imagenet_cnns.vgg, settings={"convolutions": (2, 2, 4, 4, 4), "dropout": 0.5}),
    "alexnet": NetworkEntry(imagenet_cnns.alexnet),
    "googlenet": NetworkEntry(imagenet_cnns.googlenet),
    "lenet": NetworkEntry(imagenet_cnns.lenet),
    "overfeat": NetworkEntry(imagenet_cnns.overfeat),
    "trivial": NetworkEntry(imagenet_cnns.trivial),
    "cifar10_cnn": NetworkEntry(cifar10_cnns.cifar10_cnn),
    "alexnet_cifar10": NetworkEntry(cifar10_cnns.alexnet_cifar10),
    "resnet20_cifar10": NetworkEntry(cifar10_cnns.resnet, settings={"blocks": 3}),
    "resnet32_cifar10": NetworkEntry(cifar10_cnns.resnet, settings={"blocks": 5}),
    "resnet44_cifar10": NetworkEntry(cifar10_cnns.resnet, settings={"blocks": 7}),
    "resnet56_cifar10": NetworkEntry(cifar10_cnns.resnet, settings={"blocks": 9}),
    "resnet110_cifar10": NetworkEntry(cifar10_cnns.resnet, settings={"blocks": 18}),
    "densenet40_k12": NetworkEntry(cifar10_cnns.densenet, settings={"layers": 12}),
    "densenet100_k12": NetworkEntry(cifar10_cnns.densenet, settings={"layers": 32}),
    "mlp": NetworkEntry(simple.mlp, VECTOR),
    "synthetic": NetworkEntry(simple.synthetic, CURVE, lambda options: simple.shape_sample(options["sample_bytes"])),
    "gpt_small": NetworkEntry(language_models.gpt, TOKENS, lambda options: [options["sequence_length"]]),
    "lstm_small": NetworkEntry(language_models.lstm, TOKENS, lambda options: [options["sequence_length"]]),
}


def build_by_name(
    name: str, input_shape: Sequence[int], outputs: int, options: dict[str, Any] | None = None
) -> Network:
    """Build the network of that name for samples of this shape (channels last) and with this number of outputs.

    Raises InputError for an unknown name or option, an option of another type than its default, inputs with other axes
    than the network's, and inputs that are too small; PluginError where the code of a plugin fails.
    """
    entry = _find_entry(name)
    if (entry.axes and len(input_shape) != len(entry.axes)) or not input_shape or min(input_shape) < 1:
        expected = f" of shape ({', '.join(entry.axes)})" if entry.axes else ""
        raise InputError(f"model={name} takes inputs{expected}, not model.input_shape={list(input_shape)}")
    if outputs < 1:
        raise InputError(f"model.outputs={outputs} should be at least 1")
    _check_options(name, options or {}, entry.list_options())
    if not entry.label:
        return _build_once(name, tuple(input_shape), outputs, json.dumps(options or {}))
    network = Network(name, input_shape)
    with plugins.attribute_errors(entry.label), redirect_stdout(sys.stderr):  # its prints are no part of our output
        entry.build(network, outputs, **(options or {}))
    per_token = (*network.input.shape, outputs) if network.count("embedding") else (outputs,)
    if network.output.shape not in ((outputs,), per_token):
        raise PluginError(
            f"{entry.label} ends in '{network.output.name}' of shape {network.output.shape}, and "
            f"model.outputs={outputs} needs ({outputs},)"
        )
    if network.parameters == 0:
        raise PluginError(f"{entry.label} has nothing to train: no convolution, dense layer or normalization")
    return network


@functools.lru_cache(16)
def _build_once(name: str, input_shape: tuple[int, ...], outputs: int, options: str) -> Network:
    """Build one of our networks, which must not be changed: the runs of a sweep and their baselines share theirs."""
    network, entry = Network(name, input_shape), NETWORKS[name]
    entry.build(network, outputs, **entry.settings, **json.loads(options))
    return network


def build_network(model: ModelSpec) -> Network:
    """Build the network of a run's config. Raises as build_by_name does."""
    return build_by_name(model.name, model.input_shape, model.outputs, model.options)


def resolve_input_shape(model: ModelSpec) -> list[int]:
    """Return the shape of one sample: that of the config, unless the model's options determine it.

    Raises as build_by_name does.
    """
    entry = _find_entry(model.name)
    if entry.input_shape is None:
        return model.input_shape
    defaults = entry.list_options()
    _check_options(model.name, model.options, defaults)
    return list(entry.input_shape(defaults | model.options))


def resolve_target_shape(model: ModelSpec) -> list[int]:
    """Return the shape of one sample's target: that of the config, unless it follows from that of the sample."""
    return resolve_input_shape(model) if _find_entry(model.name).axes == TOKENS else model.target_shape


def takes_tokens(model: ModelSpec) -> bool:
    """Return whether samples are integers that the network looks up; False for an unknown network."""
    if model.name in NETWORKS:
        return NETWORKS[model.name].axes == TOKENS
    return bool(
        is_known(model.name)
        and model.input_shape
        and any(node.op == "embedding" for node in build_network(model).nodes)
    )


def has_changed_options(model: ModelSpec) -> bool:
    """Return whether options that determine the number of parameters differ from their defaults.

    Then `model.params` of the YAML does not hold.
    """
    entry = NETWORKS.get(model.name)
    defaults = entry.list_options() if entry is not None and entry.input_shape is not None else {}
    return any(defaults.get(key, value) != value for key, value in model.options.items())


def option_defaults(name: str) -> dict[str, Any]:
    """Return every option of that network with its default, which is NO_DEFAULT for a required one.

    Raises as build_by_name does.
    """
    return _find_entry(name).list_options()


def is_known(name: str) -> bool:
    """Return whether scalebench or a plugin has a network of that name."""
    return name in NETWORKS or any(point.name == name for point in plugins.plugin_entries("models"))


def _find_entry(name: str) -> NetworkEntry:
    if name in NETWORKS:
        return NETWORKS[name]
    points = {point.name: point for point in reversed(plugins.plugin_entries("models"))}
    if name not in points:
        raise InputError(unknown_name_message("model", name, [*NETWORKS, *points, "custom"]))
    label = f"model '{name}' of {points[name].origin}"
    return NetworkEntry(plugins.load_object(points[name].target, label), axes=(), label=label)


def _check_options(name: str, options: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise InputError for an unknown or missing option, and for one of another type than its default."""
    for key in defaults:
        if defaults[key] is NO_DEFAULT and key not in (*options, ANY_OPTION):
            raise InputError(f"model={name} needs an option '{key}': set +model.options.{key}")
    for key, value in options.items():
        if key not in defaults and ANY_OPTION not in defaults:
            raise InputError(unknown_name_message(f"option of model '{name}'", key, defaults))
        if defaults.get(key) is not NO_DEFAULT:
            check_type(f"model.options.{key}", value, defaults.get(key))
