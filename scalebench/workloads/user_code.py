"""Functions and networks of the user, named as "module:function" in the current folder or an installed package.

The parent only looks at their files, for typing mistakes and changes; they are loaded in other processes: in ranks, and
in the process that makes the samples of a dataset.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core import plugins
from scalebench.core.errors import InputError, PluginError, unknown_name_message
from scalebench.core.process import USER_FOLDERS
from scalebench.core.spec import ModelSpec
from scalebench.workloads import networks
from scalebench.workloads.source_names import SourceFile, reaches_method

if TYPE_CHECKING:
    from scalebench.workloads.source import SampleShape

CUSTOM = "custom"  # name of the YAML files for a model and a dataset of the user
MODEL_FUNCTION_KEYS = ("torch", "keras")  # under `model`: one reference per framework
METRIC_OF_LOSS = {"cross_entropy": "accuracy", "mse": "mse"}
MODULE_LOSS = "module"  # a value of model.loss: the user's module computes it
LOSS_METRIC = "loss"  # the metric where the loss is the user's
AUTO = "auto"
TRAINING_STEP = "training_step"  # a LightningModule's method that returns its loss
# The packages of networks that scalebench takes from other libraries, by the beginning of their functions.
LIBRARIES = {
    f"scalebench.strategies.torch.libraries:build_{package}": package
    for package in ("transformers", "torchvision", "timm")
}


def file_digest(reference: str, key: str) -> str | None:
    """Return 16 hex digits of the file that a reference names, so that an edited function makes another run.

    Raises InputError, which names the config key (such as "model.torch"), if the reference is not "module:function",
    or if the module does not exist, is not valid Python or does not define that name. Returns None for a module that
    is not a Python file. Imports nothing.
    """
    path = find_file(reference, key)
    if path is None or path.suffix != ".py":
        return None
    module, _, function = reference.partition(":")
    try:
        file = SourceFile(module, path)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{key}={reference}: {path} is not valid Python: {error}") from None
    names = file.list_names()
    if names is not None and function not in names:
        public = [name for name in names if not name.startswith("_")]
        raise InputError(f"{key}={reference}: {unknown_name_message(f'function in {path}', function, public)}")
    return hashlib.sha256(file.content).hexdigest()[:16]


def load_function(reference: str, key: str) -> Callable[..., Any]:
    """Import and return the function. Raises PluginError, with the traceback as its log, if that fails.

    A file of the user's sees a command line without arguments: those of this process are not meant for it.
    """
    # Last, so that no file of the user's takes the place of a module of Python or of a framework.
    folders = [os.getcwd(), *filter(None, os.environ.get(USER_FOLDERS, "").split(os.pathsep))]
    sys.path += [folder for folder in folders if folder not in sys.path]
    importlib.invalidate_caches()
    path = find_file(reference, key)
    sys.argv = [reference.partition(":")[0] if path is None else str(path)]
    function: Callable[..., Any] = plugins.load_object(reference, f"{key}={reference}")
    return function


def label_function(model: ModelSpec, key: str) -> str:
    """Return the beginning of every reason: the key and the function that it names, or a library's network."""
    return f"model={model.name}" if model.torch in LIBRARIES else f"model.{key}={getattr(model, key)}"


def call_builder(model: ModelSpec, key: str, kind: type, made: str, seed: Callable[[], None]) -> Any:
    """Return what the user's function of that key makes, which should be of this kind, called `made` in messages.

    `seed` is called twice, since a module may make networks when it is imported. Raises PluginError where the function
    cannot be loaded or called, UserProblem where it is a `kind` itself, and whatever it raises.
    """
    seed()
    function = load_function(str(getattr(model, key)), f"model.{key}")
    if isinstance(function, kind):
        raise plugins.UserProblem(f"is {describe_result(function)}: name a function that makes {made}")
    check_call(function, label_function(model, key), f"makes {made}", f"model.options={model.options}", model.options)
    seed()
    return function(**model.options)


def describe_result(value: Any) -> str:
    """Return what a function gives, for a message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"a {type(value).__name__}"


def check_call(function: Any, label: str, purpose: str, call: str, options: Mapping[str, Any], *arguments: Any) -> None:
    """Raise PluginError unless the function takes these arguments. `label` names it in the message, `purpose` says what
    it is for, `call` how it is called."""
    if not callable(function):
        raise PluginError(f"{label} is a {type(function).__name__}: name a function that {purpose}")
    try:
        inspect.signature(function).bind(*arguments, **options)
    except ValueError:  # some builtins have no signature
        return
    except TypeError as error:
        raise PluginError(f"{label} cannot be called with {call}: {error}") from None


def find_file(reference: str, key: str) -> Path | None:
    """Return the file of the reference's module without importing it (or None if it has no file)."""
    module, colon, function = reference.partition(":")
    names = module.split(".")
    if names[-1] == "py":
        folder, _, stem = module.removesuffix(".py").rpartition("/")
        place = f" in {folder}" if folder else ""
        raise InputError(f"{key}={reference} should be MODULE:FUNCTION: start it{place} with {key}={stem}:{function}")
    if not colon or not function.isidentifier() or not all(name.isidentifier() for name in names):
        raise InputError(f"{key}={reference} should be MODULE:FUNCTION, such as my.module:build")
    folder = os.getcwd()
    search_path = [*(each for each in sys.path if each not in ("", folder)), folder]  # as in load_function
    find_spec = importlib.machinery.PathFinder.find_spec
    own, spec = find_spec(names[0], [folder]), find_spec(names[0], search_path) or importlib.util.find_spec(names[0])
    if spec is None:
        raise InputError(f"{key}={reference}: no module '{names[0]}' in {folder} or among installed packages")
    if own is not None and own.origin and (names[0] in sys.stdlib_module_names or own.origin != spec.origin):
        raise InputError(f"{key}={reference}: {own.origin} has the name of an installed module: rename it")
    folders = list(spec.submodule_search_locations or [])
    for number, name in enumerate(names[1:], start=2):
        spec = importlib.machinery.PathFinder.find_spec(name, folders)
        if spec is None:
            raise InputError(f"{key}={reference}: no module '{'.'.join(names[:number])}'")
        folders = list(spec.submodule_search_locations or [])
    path = Path(spec.origin) if spec.origin else None
    return path if path is not None and path.is_file() else None


def is_user_model(model: ModelSpec) -> bool:
    """Return whether functions of the user build the network, not a description of scalebench or of a plugin."""
    return model.torch is not None or model.keras is not None


def has_user_loss(model: ModelSpec) -> bool:
    """Return whether the user's module or a function of the user computes the loss of a resolved model."""
    return model.loss not in METRIC_OF_LOSS


def identify_model(model: ModelSpec) -> ModelSpec:
    """Return a user's model with the digest of its files and, if it is called "custom", with its function as its name;
    any other model is returned unchanged.

    Raises InputError as file_digest does, for model=custom without a function, and for a function beside a network
    that scalebench or a plugin builds. A mistake in a model that has a name is a PluginError, since its YAML belongs
    to a plugin.
    """
    references = {key: reference for key in MODEL_FUNCTION_KEYS if (reference := getattr(model, key)) is not None}
    functions = references | ({"loss": model.loss} if references and ":" in model.loss else {})
    if not references and model.name != CUSTOM:
        return model
    if not references:
        raise InputError(
            f"model={CUSTOM} is a network of your own: set model.torch=MODULE:FUNCTION, model.keras=MODULE:FUNCTION, "
            "or both"
        )
    if model.torch in LIBRARIES:
        library = LIBRARIES[model.torch]  # in the name, since a network of scalebench may have the same one
        if model.name in ("hf", library):
            example = "gpt2" if library == "transformers" else "resnet18"
            raise InputError(
                f"model={model.name} is all of {library}: set model.name to one of its networks, such as {example}"
            )
        return dataclasses.replace(model, name=f"{library}/{model.name.removeprefix(f'{library}/')}")
    if networks.is_known(model.name):
        key = next(iter(references))
        raise InputError(f"model={model.name} has its network already: model.{key} is for model={CUSTOM}")
    try:
        digests = [file_digest(reference, f"model.{key}") or "" for key, reference in functions.items()]
    except InputError as error:
        raise error if model.name == CUSTOM else PluginError(f"model={model.name}: {error}") from error
    name = next(iter(references.values())) if model.name == CUSTOM else model.name
    return dataclasses.replace(model, name=name, code_digest="-".join(digests))


def has_open_shapes(model: ModelSpec) -> bool:
    """Return whether the network takes samples of any shape, unless the config sets the shapes."""
    return is_user_model(model) or not model.input_shape


def complete_model(model: ModelSpec, samples: SampleShape, dataset: str) -> ModelSpec:
    """Return the model with the shapes, number of outputs, loss and metric that its config leaves to the samples.

    Raises InputError for a loss that does not suit the targets and for a wrong number of target names; `dataset` is
    the dataset's name in that message.
    """
    classes, open_shapes = samples.classes, has_open_shapes(model)
    loss = _choose_loss(model, samples, dataset)
    if open_shapes:
        per_class = list(samples.target_shape) if is_user_model(model) else []
        target_shape = per_class if classes is not None else model.target_shape or list(samples.target_shape)
        model = dataclasses.replace(
            model,
            input_shape=model.input_shape or list(samples.input_shape),
            target_shape=target_shape,
            outputs=math.prod(target_shape) if classes is None else max(model.outputs, classes),
        )
    if open_shapes and model.targets and len(model.targets) != model.outputs:
        raise InputError(
            f"model.targets has {len(model.targets)} names for {model.outputs} quantities: name all or none"
        )
    metric = METRIC_OF_LOSS.get(loss, LOSS_METRIC) if model.metric == AUTO else model.metric
    return dataclasses.replace(model, loss=loss, metric=metric)


def has_training_step(model: ModelSpec) -> bool:
    """Return whether the user's function names a class that computes its loss by itself, as a LightningModule does."""
    return model.torch is not None and reaches_method(model.torch, TRAINING_STEP, find_file)


def _choose_loss(model: ModelSpec, samples: SampleShape, dataset: str) -> str:
    """Return the loss of model.loss, for auto the one that suits the targets. Raises InputError where none does."""
    loss, classes = model.loss, samples.classes
    is_user_loss = is_user_model(model) and (loss == MODULE_LOSS or ":" in loss)
    if loss == AUTO and is_user_model(model) and (samples.needs_loss or has_training_step(model)):
        return MODULE_LOSS
    if samples.needs_loss and not is_user_loss:
        fields = f" ({samples.fields})" if samples.fields else ""
        raise InputError(
            f"model={model.name} takes one array, and dataset={dataset} has several of a sample{fields}, for which "
            f"scalebench has no network and no loss: take model={CUSTOM} with model.loss=MODULE:FUNCTION or "
            f"model.loss={MODULE_LOSS}"
        )
    if is_user_loss:
        return loss
    if samples.unusable_targets is not None:
        raise InputError(
            f"dataset={dataset} has {samples.unusable_targets}: correct or drop it, or set model.loss to a function of "
            "yours, which takes the targets as they are"
        )
    loss = ("mse" if classes is None else "cross_entropy") if loss == AUTO else loss
    if loss not in METRIC_OF_LOSS:
        names = [AUTO, *METRIC_OF_LOSS, *([MODULE_LOSS] if is_user_model(model) else [])]
        raise InputError(f"model.loss={loss}: {unknown_name_message('loss', loss, names)}")
    if has_open_shapes(model) and (loss == "mse") != (classes is None):
        targets = "quantities" if classes is None else f"{classes} classes"
        raise InputError(f"model.loss={loss} does not suit the {targets} of dataset={dataset}: leave it at {AUTO}")
    return loss
