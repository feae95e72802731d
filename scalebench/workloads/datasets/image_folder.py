"""Pictures in one folder per class at `dataset.path`: the dataset `imagenet` decodes them once into the cache,
`imagenet_jpeg` in every epoch, so that the cache only has their names."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.core.machine.machine import count_usable_cores
from scalebench.core.spec import Config, DatasetSpec
from scalebench.workloads.datasets import cache, images
from scalebench.workloads.datasets.picture_reader import PictureReader, Pictures
from scalebench.workloads.source import BatchRows

VERSION = 1  # raise it when the same files give other arrays than before
HINT = "have a folder that holds a folder of JPEG files for each class, as ILSVRC2012 (https://image-net.org) has them"
SUFFIXES = (".jpeg", ".jpg", ".png")
CHUNK = 256  # pictures decoded at a time
MIN_POOL_PICTURES = 60  # a core decodes some 200 of them in a second, and starting a pool takes 0.3 s


def import_image_folders(config: Config, cache_dir: Path, path: Path) -> Path:
    """Return the folder under `cache_dir` with at most `dataset.size` pictures of the class folders in `path`.

    Classes are numbered in the order of their names. Pictures are chosen evenly over the classes and shuffled, both by
    `dataset.seed`; the central square of each is resized to the model's input. They are decoded once: as long as no
    class folder changes (files are added or removed), they are taken from the cache. Raises InputError, in one line,
    for anything that is wrong.
    """
    dataset, side = config.dataset, config.model.input_shape[0]
    images.load_pillow(dataset.name)
    class_folders = _list_checked_folders(config, path)
    identity = _identify(config, path, class_folders) | {"side": side, "dtype": dataset.dtype}
    write = partial(_decode_all, find_root(path), class_folders, dataset, side)
    # The number of pictures is unknown before the folders are listed; create_array checks the space.
    return cache.ensure_folder(cache_dir, dataset.name, identity, 0, write)


def index_image_folders(config: Config, cache_dir: Path, path: Path) -> Path:
    """Return the folder under `cache_dir` with the file names, below `find_root(path)`, and the classes of the pictures
    that import_image_folders would choose, in the same order. Raises InputError as that does."""
    dataset, class_folders = config.dataset, _list_checked_folders(config, path)
    write = partial(_write_names, class_folders, dataset.size, dataset.seed)
    return cache.ensure_folder(cache_dir, dataset.name, _identify(config, path, class_folders), 0, write)


def find_root(path: Path) -> Path:
    """Return the folder that has the class folders: `path`/train if that exists, else `path`."""
    return path / "train" if (path / "train").is_dir() else path


def _identify(config: Config, path: Path, class_folders: list[Path]) -> dict[str, Any]:
    """Return what makes these pictures differ from others. A file that is replaced under its name is not noticed."""
    return {
        "version": VERSION,
        "path": str(path),
        "folders": [[folder.name, folder.stat().st_mtime_ns] for folder in class_folders],
        "samples": config.dataset.size,
        "seed": config.dataset.seed,
    }


def _list_checked_folders(config: Config, path: Path) -> list[Path]:
    """Return the class folders. Raises InputError where the model does not take their pictures or classes."""
    try:
        entries = sorted(find_root(path).iterdir())
        class_folders = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"dataset.path={path} cannot be read ({error.strerror}): {HINT}") from None
    if not class_folders:
        raise InputError(f"dataset.path={path} has no class folders: {HINT}")
    max_classes = config.dataset.classes or 0
    if len(class_folders) > max_classes:
        raise InputError(
            f"dataset.path={path} has {len(class_folders)} class folders, dataset.classes={max_classes} "
            f"(model={config.model.name} has {config.model.outputs} outputs): "
            "raise dataset.classes, or choose another model"
        )
    return class_folders


def _decode_all(root: Path, class_folders: list[Path], dataset: DatasetSpec, side: int, folder: Path) -> None:
    names, classes = _choose_files(class_folders, dataset.size, dataset.seed)
    inputs = cache.create_array(folder / cache.INPUTS, (len(names), side, side, 3), dataset.dtype)
    workers = count_usable_cores() if len(names) >= MIN_POOL_PICTURES else 0
    reader = PictureReader(Pictures(str(root), side, dataset.dtype, 0, False, workers), names, classes)
    first = 0
    for batch in reader.read(
        BatchRows(rows, 0) for rows in np.array_split(np.arange(len(names)), -(-len(names) // CHUNK))
    ):
        inputs[first : first + batch.samples] = batch.inputs
        first += batch.samples
    cache.create_array(folder / cache.TARGETS, classes.shape, images.LABEL_DTYPE)[:] = classes


def _write_names(class_folders: list[Path], size: int, seed: int, folder: Path) -> None:
    names, classes = _choose_files(class_folders, size, seed)
    for file, array in ((cache.INPUTS, names), (cache.TARGETS, classes)):
        cache.create_array(folder / file, array.shape, array.dtype.str)[:] = array


def _choose_files(class_folders: list[Path], size: int, seed: int) -> tuple[NDArray[np.bytes_], NDArray[np.int64]]:
    """Return the names, below the root, and the classes of the chosen pictures."""
    files = [_list_pictures(class_folder) for class_folder in class_folders]
    chosen = choose_pictures([len(names) for names in files], size, seed)
    return np.array([os.fsencode(f"{class_folders[c].name}/{files[c][i]}") for c, i in chosen]), chosen[:, 0]


def _list_pictures(folder: Path) -> list[str]:
    """Return the sorted names of the pictures in a class folder. A class without any is most likely a mistake. A pipe
    among them would be read without an end, so only regular files count."""
    try:
        with os.scandir(folder) as entries:
            files = [entry.name for entry in entries if entry.name[0] != "." and entry.is_file()]
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}): {HINT}") from None
    names = sorted(name for name in files if name.lower().endswith(SUFFIXES))
    if not names:
        raise InputError(f"{folder} has no JPEG files: remove it, or fill it, since every folder is a class")
    return names


def choose_pictures(counts: list[int], size: int, seed: int) -> NDArray[np.int64]:
    """Choose `size` pictures, or all if there are fewer, and return (class, number within the class) in shuffled order.

    `counts` has the number of pictures of each class. No class gets two fewer than another, unless all of its pictures
    are chosen; the choice and the order depend on `seed`.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed]))
    numbers = np.concatenate([rng.permutation(count) for count in counts])
    rounds = np.concatenate([np.arange(count) for count in counts])
    classes = np.repeat(np.arange(len(counts)), counts)
    chosen = np.lexsort((rng.random(len(rounds)), rounds))[:size]  # round by round, in random order within a round
    chosen = rng.permutation(chosen)
    return np.stack([classes[chosen], numbers[chosen]], axis=1)
