"""Datasets by name: from the config to arrays in the cache, and from these to the batch sources that ranks read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.machine.machine import cache_folder
from scalebench.core.spec import Config, DatasetSpec, RunSpec, has_stop
from scalebench.workloads import networks, records, user_code
from scalebench.workloads.datasets import (
    cache,
    cifar10,
    image_folder,
    materials,
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

    shape: Callable[[Config], SampleShape]  # of its samples, as far as the model leaves that open
    define: Callable[[Config], ChunkedDataset] | None = None
    read: Callable[[Config, Path, Path], Path] | None = None  # (config, cache folder, path) -> folder in the cache
    dtypes: tuple[str, ...] = ("float32",)  # that its samples may have; the first one alone means quantities as targets
    hint: str = ""  # for a dataset that can only be read: where to get its files
    variable: str = ""  # likewise: the environment variable that its YAML reads
    root: Callable[[Path], Path] | None = None  # the folder of its files, for pictures that are decoded during training
    records: bool = False  # likewise: several samples in a file, in an order that is kept


def _shape_quantities(config: Config) -> SampleShape:
    dataset, model = config.dataset, config.model
    if dataset.path is not None:
        if user_code.has_open_shapes(model) and not (model.input_shape and model.target_shape):
            return SampleShape(*user_file.unpack_once(cache_dir(config), _expand_path(dataset.path))[1])
        return SampleShape(tuple(model.input_shape), tuple(model.target_shape))
    if dataset.name == "materials":
        return SampleShape(materials.INPUT_SHAPE, materials.TARGET_SHAPE)
    if not model.input_shape:
        raise InputError(
            f"dataset={dataset.name} makes samples of any shape the model takes: set it, as in "
            f"model.input_shape=[32,32,3] (and model.target_shape=[2] for two outputs)"
        )
    return SampleShape(tuple(model.input_shape), tuple(model.target_shape) or (model.outputs,))


def _shape_images(side: int, config: Config) -> SampleShape:
    """Return the shape that the model takes, if pictures can be made in it, else squares of this many pixels, where
    the config sets none."""
    dataset, shape = config.dataset, tuple(config.model.input_shape)
    is_read = DATASETS[dataset.name].read is not None
    fits = len(shape) == 3 and (not is_read or (shape[0] == shape[1] and shape[2] == 3))
    side = dataset.image_size or side
    return SampleShape(shape if fits else (side, side, 3), (), dataset.classes)


def _shape_tokens(config: Config) -> SampleShape:
    dataset, model = config.dataset, config.model
    if user_code.is_user_model(model) or not networks.takes_tokens(model):
        raise InputError(
            f"dataset={dataset.name} has token numbers, which model={model.name} does not look up: choose another "
            "dataset, or model=gpt_small"
        )
    if model.target_shape != model.input_shape:
        raise InputError(
            f"dataset={dataset.name} has a target for each of {model.input_shape} tokens, model={model.name} takes "
            f"targets of {tuple(model.target_shape)}"
        )
    return SampleShape(tuple(model.input_shape), tuple(model.input_shape), dataset.classes)


_pictures: Any = {"shape": partial(_shape_images, 224), "dtypes": ("uint8", "float32")}
_small_pictures: Any = {"shape": partial(_shape_images, 32), "dtypes": ("uint8", "float32")}
_of_folders: Any = {**_pictures, "hint": image_folder.HINT, "variable": "SCALEBENCH_IMAGENET"}
LENGTH = "length"  # an option of data sets of sequences: the tokens of each
DATASETS = {
    "materials": DatasetKind(_shape_quantities, materials.define_materials, user_file.import_npz),
    "random": DatasetKind(_shape_quantities, synthetic.define_random, user_file.import_npz),
    synthetic.TOKENS: DatasetKind(_shape_tokens, synthetic.define_tokens, dtypes=(synthetic.TOKEN_DTYPE,)),
    "cifar10_synthetic": DatasetKind(define=synthetic.define_images, **_small_pictures),
    "imagenet_synthetic": DatasetKind(define=synthetic.define_images, **_pictures),
    "cifar10": DatasetKind(
        read=cifar10.import_archive, hint=cifar10.HINT, variable="SCALEBENCH_CIFAR10", **_small_pictures
    ),
    "imagenet": DatasetKind(read=image_folder.import_image_folders, **_of_folders),
    "imagenet_jpeg": DatasetKind(
        read=image_folder.index_image_folders, root=image_folder.find_root, **_of_folders
    ),
    "imagenet_tfrecord": DatasetKind(
        read=tfrecord.index_files, hint=tfrecord.HINT, variable="SCALEBENCH_IMAGENET_TFRECORD", root=Path, records=True,
        **_pictures,
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
    if config.dataset.name == synthetic.TOKENS:
        config = _fit_network_to_length(config)
    if config.dataset.loader is not None:
        config = _fill_from_loader(config)
    elif user_function.has_function(config.dataset):
        config = user_function.fill_from_function(config, cache_dir(config))
    model = user_code.complete_model(config.model, _shape_samples(config), config.dataset.name)
    return dataclasses.replace(config, model=model)


def _fit_network_to_length(config: Config) -> Config:
    """Return the config whose network takes sequences of dataset.options.length tokens, and without that key, which
    says the same as the network's. Raise InputError where both are set and differ."""
    model, length = config.model, config.dataset.options.get(LENGTH)
    config = dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, options={}))
    if length is None or user_code.is_user_model(model) or not networks.takes_tokens(model):
        return config
    if type(length) is not int or length < 1:
        raise InputError(f"dataset.options.{LENGTH}={length} should be a number of tokens, at least 1")
    default = networks.option_defaults(model.name).get("sequence_length")
    if default is None:  # a plugin's network of any length
        return dataclasses.replace(config, model=dataclasses.replace(model, input_shape=[length], params=None))
    own = model.options.get("sequence_length", default)
    if own not in (default, length):
        raise InputError(
            f"dataset.options.{LENGTH}={length} and model.options.sequence_length={own} are of the same sequences: "
            "leave out one of them"
        )
    options = model.options | {"sequence_length": length}
    return dataclasses.replace(config, model=dataclasses.replace(model, options=options))


def _fill_from_loader(config: Config) -> Config:
    """Return the config for batches that a user's function gives in the ranks, where all that is not in the config is
    first seen. Raises InputError for settings that have no effect on them."""
    dataset, model, reference = config.dataset, config.model, config.dataset.loader
    assert reference is not None
    is_users = user_code.is_user_model(model)
    useless = {
        "dataset.builder": dataset.builder is not None,
        "dataset.path": dataset.path is not None,
        "dataset.image_size": dataset.image_size is not None,
        f"dataset.feed={dataset.feed}": dataset.feed not in ("host", "fixed"),
        f"measure.search={config.measure.search}": config.measure.search != "none",
    }
    _refuse({
        f"{key} has no effect on the batches of dataset.loader={reference}: leave out one of them": is_set
        for key, is_set in useless.items()
    })  # fmt: skip
    _refuse({
        f"a training to train.stop evaluates validation samples, and dataset.loader={reference} gives none: use "
        "dataset.builder, or your own script (script=FILE)": has_stop(config.train.stop),
        f"model.loss={user_code.AUTO} follows from the targets, and those of dataset.loader={reference} are first "
        "seen in the ranks: set model.loss to cross_entropy, mse or a function of yours":
        is_users and model.loss == user_code.AUTO and not user_code.has_training_step(model),
    })  # fmt: skip
    dataset = dataclasses.replace(
        dataset,
        validation_share=0.0,
        dtype=records.RECORD if is_users else dataset.dtype,
        code_digest=user_code.file_digest(reference, "dataset.loader"),
    )
    return dataclasses.replace(config, dataset=dataset)


def _refuse(problems: dict[str, bool]) -> None:
    """Raise InputError with the first line that holds."""
    for line in (line for line, holds in problems.items() if holds):
        raise InputError(line)


def _check_name(dataset: DatasetSpec) -> None:
    """Raise InputError for an unknown name, and for keys of a function beside a dataset of another origin."""
    name, built_in = dataset.name, dataset.name in DATASETS
    has_function = user_function.has_function(dataset)
    options = [key for key in dataset.options if (name, key) != (synthetic.TOKENS, LENGTH)]
    _refuse({
        f"dataset={name} has its samples already: dataset.loader is for dataset={CUSTOM}":
        dataset.loader is not None and name != CUSTOM,
        f"dataset={name} has its samples already: dataset.builder is for dataset={CUSTOM}":
        dataset.builder is not None and (built_in or name in user_function.plugin_datasets()),
        f"dataset.options.{next(iter(options), '')} is for a function of your own, and dataset={name} has none":
        bool(options) and built_in,
        f"dataset={CUSTOM} has samples of your own: set dataset.builder=MODULE:FUNCTION, which makes them, or "
        "dataset.loader=MODULE:FUNCTION, which gives batches":
        name == CUSTOM and dataset.loader is None and not has_function,
    })  # fmt: skip
    if built_in or has_function or dataset.loader is not None:
        return
    raise InputError(unknown_name_message("dataset", name, [*DATASETS, *user_function.plugin_datasets(), CUSTOM]))


def _shape_samples(config: Config) -> SampleShape:
    """Return the shapes that the samples have, as far as the model leaves them open."""
    dataset, model = config.dataset, config.model
    if dataset.loader is not None:  # of the network: each batch is compared with it
        has_classes = model.loss == "cross_entropy" or (model.loss == user_code.AUTO and not model.target_shape)
        classes = (dataset.classes or max(2, model.outputs)) if has_classes else None
        return SampleShape(tuple(model.input_shape), tuple(model.target_shape), classes)
    if user_function.has_function(dataset):
        return user_function.sample_shape(config, cache_dir(config))
    return DATASETS[dataset.name].shape(config)


def find_function_facts(config: Config) -> user_function.SampleFacts | None:
    """Return the facts about a function's samples, None for another dataset; `config` has the shapes."""
    return user_function.find_facts(config, cache_dir(config)) if user_function.has_function(config.dataset) else None


def count_tokens(config: Config) -> int | None:
    """Return the tokens of a sample, padding included; None where samples are not sequences of tokens, or where a
    user's function gives them in the ranks. `config` has the shapes."""
    model = config.model
    if config.script.path is not None:
        return None
    if not user_code.is_user_model(model) and networks.takes_tokens(model):
        return model.input_shape[0]
    facts = find_function_facts(config)
    return None if facts is None else facts.tokens


def check(config: Config) -> None:
    """Raise InputError for an unknown dataset, one that does not fit the model, or a missing or unused path.

    No files are touched except those that a function has made, and a user's where these give the model its shapes.
    `config.model` has the run's shapes.
    """
    dataset, model = config.dataset, config.model
    _check_name(dataset)
    name, kind = dataset.name, DATASETS.get(dataset.name)
    takes_tokens = not user_code.is_user_model(model) and networks.takes_tokens(model)
    only_decoded = (
        f" is of pictures that are decoded during training, and the samples of dataset={name} are not: leave it out, "
        "or use dataset=imagenet_jpeg"
    )
    is_decoded = decodes_in_training(name)
    _refuse({
        f"model={model.name} takes token numbers, which dataset={name} does not have: choose "
        f"dataset={synthetic.TOKENS}": takes_tokens and name != synthetic.TOKENS and dataset.loader is None,
        f"dataset.workers{only_decoded}": dataset.workers is not None and not is_decoded,
        f"dataset.augment{only_decoded}": not dataset.augment and not is_decoded,
    })  # fmt: skip
    if dataset.loader is not None:
        return  # its batches show in the ranks
    if kind is None or user_function.has_function(dataset):
        return _check_fit(config, dataset.classes is not None)
    real, has_classes = name.removesuffix("_synthetic"), kind.dtypes != ("float32",)
    _refuse({
        f"dataset={name} is read from files: {kind.hint}, then set dataset.path or ${kind.variable}":
        dataset.path is None and kind.define is None,
        f"dataset={name} is generated, not read: leave out dataset.path"
        + (f", or use dataset={real}" if real in DATASETS else ""): dataset.path is not None and kind.read is None,
        f"dataset.feed={dataset.feed} keeps decoded pictures, and dataset={name} decodes them during training: use "
        "dataset.feed=host, or dataset=imagenet": is_decoded and dataset.feed not in ("host", "fixed"),
        f"hardware.node_copy copies the cache, and the files of dataset={name} are not part of it: copy them yourself, "
        "and set dataset.path": is_decoded and config.hardware.node_copy is not None,
        f"dataset.dtype={dataset.dtype}: use {' or '.join(kind.dtypes)}, which dataset={name} has":
        dataset.dtype not in kind.dtypes,
        f"dataset={name} has quantities as targets: leave out dataset.classes":
        dataset.classes is not None and not has_classes,
        f"dataset.classes=null: set the number of classes of dataset={name}": dataset.classes is None and has_classes,
    })  # fmt: skip
    _check_fit(config, has_classes)


def _check_fit(config: Config, has_classes: bool) -> None:
    """Raise InputError where the model takes other samples than the dataset has."""
    model, samples, name = config.model, _shape_samples(config), label(config)
    has_own_loss = samples.fields is not None or user_code.has_user_loss(model)
    is_function = user_function.has_function(config.dataset)
    if is_function and user_code.is_user_model(model) and has_own_loss:
        return  # what the functions make of the samples shows in the ranks
    takes_classes = not model.target_shape or config.dataset.name == synthetic.TOKENS
    if user_code.is_user_model(model):  # whose loss is the one that suits the targets: labels, also one per position
        takes_classes = has_classes
    kinds = "class numbers" if has_classes else "quantities", "class numbers" if takes_classes else "quantities"
    advice = "choose another dataset or model"
    resize = ", or set dataset.image_size" if len(samples.input_shape) == len(model.input_shape) == 3 else ""
    _refuse({
        f"dataset={name} has samples that are kept as they are ({samples.fields}), model={model.name} takes one array "
        f"of floats or bytes: choose model={CUSTOM}, or another dataset": samples.fields is not None,
        f"dataset={name} has samples of {samples.input_shape}, model={model.name} takes {tuple(model.input_shape)}: "
        f"{advice}{resize}": samples.input_shape != tuple(model.input_shape),
        f"dataset={name} has {kinds[0]} as targets, model={model.name} takes {kinds[1]}: {advice}":
        has_classes != takes_classes,
        f"dataset={name} has targets of {samples.target_shape}, model={model.name} takes {tuple(model.target_shape)}: "
        f"{advice}": samples.target_shape != tuple(model.target_shape),
        f"dataset={name} has {samples.classes} classes, model={model.name} has {model.outputs} outputs: choose another "
        f"model, or set model.outputs{'' if is_function else ' or dataset.classes'}":
        model.outputs < (samples.classes or 0),
    })  # fmt: skip


def decodes_in_training(name: str) -> bool:
    """Return whether the pictures of the dataset with this name are decoded when a batch needs them."""
    return name in DATASETS and DATASETS[name].root is not None


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
        folder = cache.copy_to_node(folder, target, spec.config.measure.timeout_s, on_copied)
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
    arguments = _source_arguments(spec, replica, replicas, inputs, targets)
    if "reader" in arguments and border < spec.global_batch:
        raise InputError(
            f"dataset.path={config.dataset.path} has {border} pictures for training, fewer than one global batch of "
            f"{spec.global_batch}: lower train.batch_per_device, or add pictures"
        )
    # Modules of users may normalize over a batch (BatchNorm), which one sample of a device, or of a part, has not.
    fewest = 2 * config.train.accumulate if user_code.is_user_model(config.model) else 1
    train = kind(inputs, targets, feed=config.dataset.feed, last=border, devices=spec.gpus, fewest=fewest, **arguments)
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
    assert kind.root is not None and dataset.path is not None
    place = spec.places[0]  # ranks have equally many cores
    cores = len(place.cpus) or place.threads * max(1, len(place.devices))
    pictures = Pictures(
        root=str(kind.root(_expand_path(dataset.path))),
        side=config.model.input_shape[0],
        dtype=dataset.dtype,
        seed=config.seed,
        augment=dataset.augment,
        workers=(cores if dataset.workers is None else dataset.workers) if in_workers else 0,
        classes=dataset.classes or 0,
        records=kind.records,
    )
    return {"reader": PictureReader(pictures, inputs, targets), "shuffled": not kind.records}


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
