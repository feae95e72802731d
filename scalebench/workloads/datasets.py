"""Dataset names -> arrays on disk -> the sources that ranks read. Layer 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from scalebench.machine import cache_folder
from scalebench.spec import Config, DatasetSpec, InputError, RunSpec, goes_to_stop
from scalebench.suggest import no_such
from scalebench.workloads import (
    built,
    cache,
    cifar10,
    imagenet,
    images,
    materials,
    own_model,
    random_data,
    staging,
    synthetic_images,
    tokens,
    user_file,
)
from scalebench.workloads.kinds import Samples
from scalebench.workloads.recipe import Recipe
from scalebench.workloads.source import Source

LOOKED_AT = 4  # times what a device has in memory of an update, to evaluate at once: fewer calls cost less
MOST_LOOKED_AT = 1024  # samples of a device, unless an update has more


@dataclass(frozen=True)
class Kind:
    """A data set by name: made by `recipe`, or read from `dataset.path` by `read`, or either."""

    recipe: Callable[[Config], Recipe] | None = None
    read: Callable[[Config, Path, Path], Path] | None = None  # config, cache folder, path -> folder in the cache
    images: bool = False
    tokens: bool = False
    side: int = 0  # pixels along each side of images, where neither the config nor the model says it
    hint: str = ""  # where the files of one that is only read come from


def _own_samples(config: Config, cache_dir: Path, path: Path) -> Path:
    return user_file.ensure(cache_dir, path, tuple(config.model.input_shape), tuple(config.model.target_shape))


def _materials(config: Config) -> Recipe:
    return materials.recipe(config.dataset.size, config.dataset.seed)


DATASETS = {
    "materials": Kind(_materials, _own_samples),
    "random": Kind(random_data.recipe, _own_samples),
    tokens.NAME: Kind(tokens.recipe, tokens=True),
    "cifar10_synthetic": Kind(synthetic_images.recipe, images=True, side=32),
    "imagenet_synthetic": Kind(synthetic_images.recipe, images=True, side=224),
    "cifar10": Kind(read=cifar10.ensure, images=True, side=32, hint=cifar10.HINT),
    "imagenet": Kind(read=imagenet.ensure, images=True, side=224, hint=imagenet.HINT),
}


def cache_dir(config: Config) -> Path:
    """`dataset.cache`, else $SCALEBENCH_CACHE, else scalebench in the user's cache folder."""
    return Path(config.dataset.cache).expanduser() if config.dataset.cache else cache_folder()


def label(config: Config) -> str:
    """What the data set goes by: its name, or the function or the path that one's own samples are from."""
    dataset = config.dataset
    if dataset.builder is not None and dataset.name == built.CUSTOM:
        return dataset.builder
    kind = DATASETS.get(dataset.name)
    own = dataset.path is not None and kind is not None and kind.recipe is not None
    return str(dataset.path) if own else dataset.name


def prepare(config: Config) -> Path:
    """The folder with this run's dataset, which is made or unpacked first where it is not there yet.

    `config.model` has the shapes of the run. Raises InputError for an unknown dataset, one that does not fit the
    model, files that are not as they should be, or a cache that is full.
    """
    check(config)
    where, path = cache_dir(config), config.dataset.path
    if built.is_built(config.dataset):
        return built.ensure(config.dataset, config.measure.timeout_s, where)
    kind = DATASETS[config.dataset.name]
    if path is not None and kind.read is not None:
        return kind.read(config, where, Path(path).expanduser().absolute())
    assert kind.recipe is not None  # check has seen to it
    return kind.recipe(config).ensure(where)


def filled(config: Config) -> Config:
    """Fill in what only the samples of a user's own function can say, which are made for it: size, classes, dtype; and
    the shapes, the loss and the metric of a model that leaves them open.

    InputError for unknown names and what does not go together, PluginError where a function fails.
    """
    _check_name(config.dataset)
    if built.is_built(config.dataset):
        config = built.filled(config, cache_dir(config))
    model = own_model.completed(config.model, _natural(config), config.dataset.name)
    return dataclasses.replace(config, model=model)


def _check_name(dataset: DatasetSpec) -> None:
    """InputError for a name that is none, and for a function beside a data set that has another origin."""
    ours = dataset.name in DATASETS
    if ours and dataset.builder is not None:
        raise InputError(f"dataset={dataset.name} is made already: dataset.builder goes with dataset={built.CUSTOM}")
    if ours and dataset.options:
        key = next(iter(dataset.options))
        raise InputError(f"dataset.options.{key} is for a function of your own, and dataset={dataset.name} has none")
    if ours or built.is_built(dataset):
        return
    if dataset.name == built.CUSTOM:
        raise InputError(
            f"dataset={built.CUSTOM} has samples of your own: set dataset.builder=MODULE:FUNCTION, which makes them"
        )
    raise InputError(no_such("dataset", dataset.name, [*DATASETS, *built.names(), built.CUSTOM]))


def _natural(config: Config) -> Samples:
    """What the samples are like where no model has a say."""
    dataset, model = config.dataset, config.model
    if built.is_built(dataset):
        return built.samples(config, cache_dir(config))
    kind = DATASETS[dataset.name]
    if kind.images:
        side = dataset.image_size or kind.side
        return Samples((side, side, 3), (), dataset.classes)
    if kind.tokens:
        tokens.check(config)
    if not own_model.takes_any(model):
        return Samples(tuple(model.input_shape), tuple(model.target_shape))
    if dataset.path is not None:
        return Samples(*user_file.shapes(Path(dataset.path).expanduser()))
    if dataset.name == "materials":
        return Samples(materials.INPUT_SHAPE, materials.TARGET_SHAPE)
    if not model.input_shape:
        raise InputError(
            f"dataset={dataset.name} makes samples of whatever shape the model takes: say it, as in "
            f"model.input_shape=[32,32,3] (and model.target_shape=[2] for two outputs)"
        )
    return Samples(tuple(model.input_shape), tuple(model.target_shape) or (model.outputs,))


def check(config: Config) -> None:
    """InputError for an unknown dataset, one that does not fit the model, or a path that is missing or idle.

    Touches no file but those that a function has made. `config.model` has the shapes of the run.
    """
    dataset = config.dataset
    _check_name(dataset)
    if dataset.name != tokens.NAME:
        tokens.check_model(config)
    if built.is_built(dataset):
        _check_built(config)
        return
    kind = DATASETS[dataset.name]
    if dataset.path is None and kind.recipe is None:
        variable = f"SCALEBENCH_{dataset.name.upper()}"  # which its YAML looks at
        raise InputError(
            f"dataset={dataset.name} is read from files: {kind.hint}, then set dataset.path or ${variable}"
        )
    if dataset.path is not None and kind.read is None:
        real = dataset.name.removesuffix("_synthetic")
        instead = f", or take dataset={real}" if real in DATASETS else ""
        raise InputError(f"dataset={dataset.name} is made, not read: leave out dataset.path{instead}")
    if kind.images:
        images.check(config)
    elif kind.tokens:
        tokens.check(config)
    elif dataset.path is None and kind.recipe is not None:
        recipe = kind.recipe(config)
        _check_shape(config, recipe.input_shape, config.model.input_shape, "samples")
        _check_shape(config, recipe.target_shape, config.model.target_shape, "targets")
    if not (kind.images or kind.tokens):
        _check_quantities(config)


def _check_built(config: Config) -> None:
    model, samples = config.model, built.samples(config, cache_dir(config))
    _check_shape(config, samples.input_shape, model.input_shape, "samples")
    if samples.classes is None:
        _check_shape(config, samples.target_shape, model.target_shape, "targets")
    elif model.target_shape or model.outputs < samples.classes:
        raise InputError(
            f"dataset={label(config)} has {samples.classes} classes, model={model.name} has {model.outputs} outputs"
            f"{' that are quantities' if model.target_shape else ''}: choose another model, or set model.outputs"
        )


def _check_quantities(config: Config) -> None:
    dataset, model = config.dataset, config.model
    if dataset.classes is not None or dataset.dtype != "float32":
        raise InputError(f"dataset={dataset.name} has float32 quantities: leave out dataset.classes and dataset.dtype")
    if not model.target_shape:
        raise InputError(
            f"dataset={dataset.name} has quantities as targets, model={model.name} takes samples of "
            f"{tuple(model.input_shape)} with class numbers: choose a dataset of images, or another model"
        )


def _check_shape(config: Config, has: tuple[int, ...], takes: list[int], what: str) -> None:
    if has != tuple(takes):
        raise InputError(
            f"dataset={label(config)} has {what} of {has}, model={config.model.name} takes {tuple(takes)}: "
            "choose another dataset or model"
        )


def split(samples: int, validation_share: float) -> int:
    """How many of `samples` train; the rest, at the end, validates."""
    return samples - round(samples * validation_share)


def train_samples(config: Config, samples: int) -> int:
    return split(samples, config.dataset.validation_share)


def arrays(spec: RunSpec, on_copied: Callable[[], None] = lambda: None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs and targets of all samples, for one process of the run, memory-mapped.

    Of the copy on a disk of this node where hardware.stage asks for one: the first process to come copies, and calls
    `on_copied` now and then, and the others wait. Errors as prepare, and where the copy cannot be made.
    """
    folder, stage = prepare(spec.config), spec.config.hardware.stage
    if stage is not None:
        folder = staging.staged(folder, stage, spec.config.measure.timeout_s, on_copied)
    return cache.open_arrays(folder)


def sources(
    spec: RunSpec,
    replica: int,
    replicas: int,
    kind: type[Source] = Source,
    on_copied: Callable[[], None] = lambda: None,
) -> tuple[Source, Source | None]:
    """This replica's (training, validation) batches; None without any sample to validate. For the rest see arrays."""
    config = spec.config
    inputs, targets = arrays(spec, on_copied)
    border = train_samples(config, len(inputs))
    common = _common(spec, replica, replicas)
    feed = "host" if config.dataset.feed == "device" else config.dataset.feed  # the adapter places it
    train = kind(inputs, targets, feed=feed, last=border, devices=spec.gpus, **common)
    count = _at_a_point(spec, len(inputs) - border)
    if count < replicas:
        return train, None
    return train, Source(inputs, targets, first=border, last=border + count, **_looked_at(spec, replica, replicas))


def like_validation(spec: RunSpec, replica: int, replicas: int) -> Source | None:
    """Training samples to judge a model by, as many as there are to validate; None where there are too few."""
    inputs, targets = arrays(spec)
    border = train_samples(spec.config, len(inputs))
    count = min(_at_a_point(spec, len(inputs) - border), border)
    return Source(inputs, targets, last=count, **_looked_at(spec, replica, replicas)) if count >= replicas else None


def _at_a_point(spec: RunSpec, samples: int) -> int:
    """How many of the validation samples are looked at: where the training goes to a stop, perhaps not all."""
    train = spec.config.train
    return min(samples, train.evaluate_samples or samples) if goes_to_stop(train.stop) else samples


def _common(spec: RunSpec, replica: int, replicas: int) -> dict[str, Any]:
    return {"global_batch": spec.global_batch, "seed": spec.config.seed, "replica": replica, "replicas": replicas}


def _looked_at(spec: RunSpec, replica: int, replicas: int) -> dict[str, Any]:
    """Of samples that no update is made of: several of its parts at a time, as long as these are small, since nothing
    is kept for a backward pass; never many at once where those of an update are."""
    of_part = -(-spec.batch_per_device // spec.config.train.accumulate)
    at_once = max(of_part, min(LOOKED_AT * of_part, MOST_LOOKED_AT))
    return _common(spec, replica, replicas) | {"global_batch": at_once * spec.gpus}
