"""Datasets by name: from the config to arrays in the cache, and from these to the batch sources that ranks read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core import config_files, plugins
from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.machine.machine import cache_folder
from scalebench.core.spec import Config, DatasetSpec, RunSpec, has_stop
from scalebench.workloads import records, user_code
from scalebench.workloads.datasets import (
    cache,
    cifar10,
    image_folder,
    images,
    materials,
    node_copy,
    synthetic,
    tfrecord,
    user_file,
    user_function,
)
from scalebench.workloads.datasets.cache import ChunkedDataset
from scalebench.workloads.datasets.picture_reader import PictureReader, Pictures
from scalebench.workloads.source import Batch, SampleShape, Source
from scalebench.workloads.user_code import CUSTOM

EVALUATION_BATCH_FACTOR = 4  # evaluation batches in training micro-batches: fewer calls cost less
MAX_EVALUATION_BATCH = 1024  # samples per device, unless a training micro-batch has more


@dataclass(frozen=True)
class DatasetKind:
    """A dataset by name, which is generated as `define` says, read from `dataset.path` by `read`, or either."""

    define: Callable[[Config], ChunkedDataset] | None = None
    read: Callable[[Config, Path, Path], Path] | None = None  # (config, cache folder, path) -> folder in the cache
    images: bool = False
    tokens: bool = False
    side: int = 0  # default image size in pixels, where neither the config nor the model sets it
    hint: str = ""  # for a dataset that can only be read: where to get its files
    variable: str = ""  # likewise: the environment variable that its YAML reads
    root: Callable[[Path], Path] | None = None  # the folder of its files, for pictures that are decoded during training
    records: bool = False  # likewise: several samples in a file, in an order that is kept


DATASETS = {
    "materials": DatasetKind(materials.define_materials, user_file.import_npz),
    "random": DatasetKind(synthetic.define_random, user_file.import_npz),
    synthetic.TOKENS: DatasetKind(synthetic.define_tokens, tokens=True),
    "cifar10_synthetic": DatasetKind(synthetic.define_images, images=True, side=32),
    "imagenet_synthetic": DatasetKind(synthetic.define_images, images=True, side=224),
    "cifar10": DatasetKind(
        read=cifar10.import_archive, images=True, side=32, hint=cifar10.HINT, variable="SCALEBENCH_CIFAR10"
    ),
    "imagenet": DatasetKind(
        read=image_folder.import_image_folders, images=True, side=224, hint=image_folder.HINT,
        variable="SCALEBENCH_IMAGENET",
    ),
    "imagenet_jpeg": DatasetKind(
        read=image_folder.index_image_folders, images=True, side=224, hint=image_folder.HINT,
        variable="SCALEBENCH_IMAGENET", root=image_folder.find_root,
    ),
    "imagenet_tfrecord": DatasetKind(
        read=tfrecord.index_files, images=True, side=224, hint=tfrecord.HINT, variable="SCALEBENCH_IMAGENET_TFRECORD",
        root=Path, records=True,
    ),
}  # fmt: skip


def cache_dir(config: Config) -> Path:
    """Return `dataset.cache`, or else $SCALEBENCH_CACHE, or else scalebench in the user's cache folder."""
    return Path(config.dataset.cache).expanduser() if config.dataset.cache else cache_folder()


def label(config: Config) -> str:
    """Return the dataset's name in reports: its name, or the function or path that a user's samples come from."""
    dataset = config.dataset
    if dataset.name == CUSTOM and (function := dataset.loader or dataset.builder) is not None:
        return function
    kind = DATASETS.get(dataset.name)
    from_user_file = dataset.path is not None and kind is not None and kind.define is not None
    return str(dataset.path) if from_user_file else dataset.name


def prepare(config: Config) -> Path:
    """Return the cache folder with the run's dataset, and make or unpack it first if it is missing.

    `config.model` has the run's shapes. Raises InputError for an unknown dataset, one that does not fit the model,
    damaged files, or a full cache.
    """
    check(config)
    folder, path = cache_dir(config), config.dataset.path
    if user_function.has_function(config.dataset):
        return user_function.ensure_samples(config.dataset, config.measure.timeout_s, folder)
    kind = DATASETS[config.dataset.name]
    if path is not None and kind.read is not None:
        return kind.read(config, folder, _expand_path(path))
    assert kind.define is not None  # check() has made sure
    return kind.define(config).ensure(folder)


def _expand_path(path: str) -> Path:
    return Path(path).expanduser().absolute()


def fill_from_samples(config: Config) -> Config:
    """Return the config with everything that depends on the samples.

    For samples of a user's function, which are made for it, these are size, classes and dtype; for a model that leaves
    them open: name, shapes, loss and metric. Raises InputError for unknown names and for settings that contradict each
    other, PluginError where a function fails.
    """
    _check_name(config.dataset)
    if config.dataset.loader is not None:
        config = _fill_from_loader(config)
    elif user_function.has_function(config.dataset):
        config = user_function.fill_from_function(config, cache_dir(config))
    model = user_code.complete_model(config.model, _native_shape(config), config.dataset.name)
    return dataclasses.replace(config, model=model)


def _fill_from_loader(config: Config) -> Config:
    """Return the config for batches that a user's function gives in the ranks, where all that is not in the config is
    first seen. Raises InputError for settings that have no effect on them."""
    dataset, model, reference = config.dataset, config.model, config.dataset.loader
    assert reference is not None
    useless = {
        "dataset.builder": dataset.builder is not None,
        "dataset.path": dataset.path is not None,
        "dataset.image_size": dataset.image_size is not None,
        f"dataset.feed={dataset.feed}": dataset.feed not in ("host", "fixed"),
        f"measure.search={config.measure.search}": config.measure.search != "none",
    }
    for key in (key for key, is_set in useless.items() if is_set):
        raise InputError(f"{key} has no effect on the batches of dataset.loader={reference}: leave out one of them")
    if has_stop(config.train.stop):
        raise InputError(
            f"a training to train.stop evaluates validation samples, and dataset.loader={reference} gives none: use "
            "dataset.builder, or your own script (script=FILE)"
        )
    is_users = user_code.is_user_model(model)
    if is_users and model.loss == user_code.AUTO and not user_code.has_training_step(model):
        raise InputError(
            f"model.loss={user_code.AUTO} follows from the targets, and those of dataset.loader={reference} are first "
            "seen in the ranks: set model.loss to cross_entropy, mse or a function of yours"
        )
    dataset = dataclasses.replace(
        dataset,
        validation_share=0.0,
        dtype=records.RECORD if is_users else dataset.dtype,
        code_digest=user_code.file_digest(reference, "dataset.loader"),
    )
    return dataclasses.replace(config, dataset=dataset)


def _check_name(dataset: DatasetSpec) -> None:
    """Raise InputError for an unknown name, and for keys of a function beside a dataset of another origin."""
    built_in = dataset.name in DATASETS
    if dataset.loader is not None:
        if dataset.name != CUSTOM:
            raise InputError(f"dataset={dataset.name} has its samples already: dataset.loader is for dataset={CUSTOM}")
        return
    if built_in and dataset.builder is not None:
        raise InputError(f"dataset={dataset.name} has its samples already: dataset.builder is for dataset={CUSTOM}")
    if built_in and dataset.options:
        key = next(iter(dataset.options))
        raise InputError(f"dataset.options.{key} is for a function of your own, and dataset={dataset.name} has none")
    if built_in or user_function.has_function(dataset):
        return
    if dataset.name == CUSTOM:
        raise InputError(
            f"dataset={CUSTOM} has samples of your own: set dataset.builder=MODULE:FUNCTION, which makes them, or "
            "dataset.loader=MODULE:FUNCTION, which gives batches"
        )
    if (origin := config_files.file_origin("dataset", dataset.name)) not in (None, plugins.BUILT_IN):
        raise InputError(
            f"dataset={dataset.name}: {origin} brings dataset/{dataset.name}.yaml and no entry point "
            "scalebench.datasets of that name"
        )
    raise InputError(
        unknown_name_message("dataset", dataset.name, [*DATASETS, *user_function.plugin_datasets(), CUSTOM])
    )


def _native_shape(config: Config) -> SampleShape:
    """Return the shapes that the samples have if the model does not determine them."""
    dataset, model = config.dataset, config.model
    if dataset.loader is not None:
        has_classes = model.loss == "cross_entropy" or (model.loss == user_code.AUTO and not model.target_shape)
        classes = dataset.classes or max(2, model.outputs)
        return SampleShape(
            tuple(model.input_shape), tuple(model.target_shape), classes if has_classes else None
        )  # of the network: each batch is compared with it
    if user_function.has_function(dataset):
        return user_function.sample_shape(config, cache_dir(config))
    kind = DATASETS[dataset.name]
    if kind.images:
        side = dataset.image_size or kind.side
        return SampleShape((side, side, 3), (), dataset.classes)
    if kind.tokens:
        synthetic.check_model_takes_tokens(config)
    if not user_code.has_open_shapes(model):
        return SampleShape(tuple(model.input_shape), tuple(model.target_shape))
    if dataset.path is not None:
        return SampleShape(*user_file.read_shapes(Path(dataset.path).expanduser()))
    if dataset.name == "materials":
        return SampleShape(materials.INPUT_SHAPE, materials.TARGET_SHAPE)
    if not model.input_shape:
        raise InputError(
            f"dataset={dataset.name} makes samples of any shape the model takes: set it, as in "
            f"model.input_shape=[32,32,3] (and model.target_shape=[2] for two outputs)"
        )
    return SampleShape(tuple(model.input_shape), tuple(model.target_shape) or (model.outputs,))


def find_function_facts(config: Config) -> user_function.SampleFacts | None:
    """Return the facts about a function's samples, None for another dataset; `config` has the shapes."""
    return user_function.find_facts(config, cache_dir(config)) if user_function.has_function(config.dataset) else None


def check(config: Config) -> None:
    """Raise InputError for an unknown dataset, one that does not fit the model, or a missing or unused path.

    No files are touched except those that a function has made. `config.model` has the run's shapes.
    """
    dataset = config.dataset
    _check_name(dataset)
    if dataset.name != synthetic.TOKENS and dataset.loader is None:
        synthetic.check_model_takes_no_tokens(config)
    if not decodes_in_training(dataset.name):
        for key, is_set in (("workers", dataset.workers is not None), ("augment", not dataset.augment)):
            if is_set:
                raise InputError(
                    f"dataset.{key} is of pictures that are decoded during training, and the samples of "
                    f"dataset={dataset.name} are not: leave it out, or use dataset=imagenet_jpeg"
                )
    if dataset.loader is not None:
        return  # its batches show in the ranks
    if user_function.has_function(dataset):
        _check_function_samples(config)
        return
    kind = DATASETS[dataset.name]
    real = dataset.name.removesuffix("_synthetic")
    problems = {
        f"dataset={dataset.name} is read from files: {kind.hint}, then set dataset.path or ${kind.variable}": (
            dataset.path is None and kind.define is None
        ),
        f"dataset={dataset.name} is generated, not read: leave out dataset.path"
        + (f", or use dataset={real}" if real in DATASETS else ""): dataset.path is not None and kind.read is None,
        f"dataset.feed={dataset.feed} keeps decoded pictures, and dataset={dataset.name} decodes them during training: "
        "use dataset.feed=host, or dataset=imagenet": kind.root is not None and dataset.feed not in ("host", "fixed"),
        f"hardware.node_copy copies the cache, and the files of dataset={dataset.name} are not part of it: copy them "
        "yourself, and set dataset.path": kind.root is not None and config.hardware.node_copy is not None,
    }
    for line in (line for line, is_met in problems.items() if is_met):
        raise InputError(line)
    if kind.images:
        images.check_model_takes_images(config)
    elif kind.tokens:
        synthetic.check_model_takes_tokens(config)
    else:
        _check_quantities(config, kind)


def decodes_in_training(name: str) -> bool:
    """Return whether the pictures of the dataset with this name are decoded when a batch needs them."""
    return name in DATASETS and DATASETS[name].root is not None


def _check_function_samples(config: Config) -> None:
    model, samples = config.model, user_function.sample_shape(config, cache_dir(config))
    if user_code.is_user_model(model) and (samples.fields is not None or user_code.has_user_loss(model)):
        return  # what the functions make of the samples shows in the ranks
    if samples.fields is not None:
        raise InputError(
            f"dataset={label(config)} has samples that are kept as they are ({samples.fields}), model={model.name} "
            f"takes one array of floats or bytes: choose model={CUSTOM}, or another dataset"
        )
    _check_shape(config, samples.input_shape, model.input_shape, "samples")
    if samples.classes is None:
        _check_shape(config, samples.target_shape, model.target_shape, "targets")
    elif model.target_shape != list(samples.target_shape) or model.outputs < samples.classes:
        raise InputError(
            f"dataset={label(config)} has {samples.classes} classes, model={model.name} has {model.outputs} outputs"
            f"{' that are quantities' if model.target_shape else ''}: choose another model, or set model.outputs"
        )


def _check_quantities(config: Config, kind: DatasetKind) -> None:
    dataset, model = config.dataset, config.model
    if dataset.path is None and kind.define is not None:
        chunked = kind.define(config)
        _check_shape(config, chunked.input_shape, model.input_shape, "samples")
        _check_shape(config, chunked.target_shape, model.target_shape, "targets")
    if dataset.classes is not None or dataset.dtype != "float32":
        raise InputError(f"dataset={dataset.name} has float32 quantities: leave out dataset.classes and dataset.dtype")
    if not model.target_shape:
        raise InputError(
            f"dataset={dataset.name} has quantities as targets, model={model.name} takes samples of "
            f"{tuple(model.input_shape)} with class numbers: choose a dataset of images, or another model"
        )


def _check_shape(config: Config, shape: tuple[int, ...], expected: list[int], what: str) -> None:
    if shape != tuple(expected):
        raise InputError(
            f"dataset={label(config)} has {what} of {shape}, model={config.model.name} takes {tuple(expected)}: "
            "choose another dataset or model"
        )


def count_train_samples(dataset: DatasetSpec, samples: int | None = None) -> int:
    """Return how many of `samples` (by default `dataset.size`) are for training; the rest, at the end, validates."""
    samples = dataset.size if samples is None else samples
    return samples - round(samples * dataset.validation_share)


def open_dataset(spec: RunSpec, on_copied: Callable[[], None] = lambda: None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and targets of all samples, memory-mapped, for one process of the run.

    Where hardware.node_copy is set they come from a copy on a disk of this node: the first process copies, calling
    `on_copied` after each chunk, while the others wait. Raises as `prepare` does, and InputError where the copy cannot
    be made.
    """
    folder, target = prepare(spec.config), spec.config.hardware.node_copy
    if target is not None:
        folder = node_copy.copy_to_node(folder, target, spec.config.measure.timeout_s, on_copied)
    return cache.open_arrays(folder)


def open_sources(
    spec: RunSpec,
    replica: int,
    replicas: int,
    kind: type[Source] = Source,
    on_copied: Callable[[], None] = lambda: None,
) -> tuple[Source, Source | None]:
    """Return this replica's (training, validation) sources; the latter is None where a replica would get no sample.

    `kind` is the class of the training source. `on_copied` and errors are as in open_dataset.
    """
    config = spec.config
    if config.dataset.loader is not None:
        raise InputError(
            f"dataset.loader={config.dataset.loader} gives batches for training alone: use dataset.builder"
        )
    inputs, targets = open_dataset(spec, on_copied)
    border = count_train_samples(config.dataset, len(inputs))
    feed = "host" if config.dataset.feed == "device" else config.dataset.feed  # the adapter moves it to the device
    arguments = _source_arguments(spec, replica, replicas, inputs, targets)
    if "reader" in arguments and border < spec.global_batch:
        raise InputError(
            f"dataset.path={config.dataset.path} has {border} pictures for training, fewer than one global batch of "
            f"{spec.global_batch}: lower train.batch_per_device, or add pictures"
        )
    # Modules of users may normalize over a batch (BatchNorm), which one sample of a device, or of a part, has not.
    fewest = 2 * config.train.accumulate if user_code.is_user_model(config.model) else 1
    train = kind(inputs, targets, feed=feed, last=border, devices=spec.gpus, fewest=fewest, **arguments)
    count = _evaluation_samples(spec, len(inputs) - border)
    if count < replicas:
        return train, None
    arguments = _source_arguments(spec, replica, replicas, inputs, targets, evaluates=True)
    return train, Source(inputs, targets, first=border, last=border + count, **arguments)


def open_training_subset(spec: RunSpec, replica: int, replicas: int) -> Source | None:
    """Return a source of as many training samples as are used for validation, for a model to be evaluated on both; None
    where there are too few."""
    inputs, targets = open_dataset(spec)
    border = count_train_samples(spec.config.dataset, len(inputs))
    count = min(_evaluation_samples(spec, len(inputs) - border), border)
    if count < replicas:
        return None
    arguments = _source_arguments(spec, replica, replicas, inputs, targets, evaluates=True)
    return Source(inputs, targets, last=count, **arguments)


def read_first_samples(spec: RunSpec, count: int) -> Batch:
    """Return the first samples as they are trained; pictures in files are decoded here, without augmentation."""
    inputs, targets = open_dataset(spec)
    reading = _reading_arguments(spec, inputs, targets, in_workers=False)
    return next(Source(inputs, targets, global_batch=count, seed=0, replica=0, replicas=1, **reading).in_order())


def _reading_arguments(
    spec: RunSpec, inputs: NDArray[Any], targets: NDArray[Any], in_workers: bool = True
) -> dict[str, Any]:
    """Return the arguments of a source that say how its samples are read, where `inputs` only names their files: in
    worker processes, or in this one."""
    config, dataset = spec.config, spec.config.dataset
    if not decodes_in_training(dataset.name):
        return {}
    kind = DATASETS[dataset.name]
    assert kind.root is not None and dataset.path is not None and isinstance(inputs, np.memmap)
    place = spec.places[0]  # ranks have equally many cores
    cores = len(place.cpus) or place.threads * max(1, len(place.devices))
    pictures = Pictures(
        names=str(inputs.filename),
        root=str(kind.root(_expand_path(dataset.path))),
        side=config.model.input_shape[0],
        dtype=dataset.dtype,
        seed=config.seed,
        augment=dataset.augment,
        workers=(cores if dataset.workers is None else dataset.workers) if in_workers else 0,
        classes=dataset.classes or 0,
        records=kind.records,
    )
    return {"reader": PictureReader(pictures, targets), "shuffled": not kind.records}


def _evaluation_samples(spec: RunSpec, samples: int) -> int:
    """Return how many validation samples are evaluated: a training to a stop may evaluate only some of them."""
    train = spec.config.train
    return min(samples, train.evaluate_samples or samples) if has_stop(train.stop) else samples


def _source_arguments(
    spec: RunSpec, replica: int, replicas: int, inputs: NDArray[Any], targets: NDArray[Any], evaluates: bool = False
) -> dict[str, Any]:
    """Return the arguments that the sources of a replica share.

    Batches for evaluation hold several training micro-batches if these are small, since nothing is kept for a backward
    pass, but never more than one if these are large. A process evaluates on one device, however many it trains on.
    """
    global_batch = spec.global_batch
    if evaluates:
        micro_batch = -(-spec.batch_per_device // spec.config.train.accumulate)
        global_batch = replicas * max(micro_batch, min(EVALUATION_BATCH_FACTOR * micro_batch, MAX_EVALUATION_BATCH))
    common = {"global_batch": global_batch, "seed": spec.config.seed, "replica": replica, "replicas": replicas}
    return common | _reading_arguments(spec, inputs, targets)
