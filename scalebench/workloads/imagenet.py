"""The data set `imagenet`: a folder of pictures for each class at `dataset.path`, decoded once into the cache."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import Config, InputError
from scalebench.workloads import cache, images
from scalebench.workloads.recipe import Recipe

VERSION = 1  # goes up when the same files give other arrays than before
HINT = "have a folder that holds a folder of JPEG files for each class, as ILSVRC2012 (https://image-net.org) has them"
SUFFIXES = (".jpeg", ".jpg", ".png")
FORMATS = ("JPEG", "PNG")  # one picture of ILSVRC2012's training set is a PNG named .JPEG
CHUNK = 32  # pictures decoded at a time
POOL_BYTES = 60 * 224 * 224 * 3  # one core decodes some 200 pictures/s, and starting processes takes 0.3 s
Arrays = tuple[NDArray[Any], NDArray[Any]]


def ensure(config: Config, cache_dir: Path, path: Path) -> Path:
    """Folder under `cache_dir` with at most `dataset.size` pictures of the class folders in `path`.

    Classes are numbered in the order of their names. Pictures are chosen evenly over the classes and shuffled,
    both by `dataset.seed`; the middle of each is resized to what the model takes. They are decoded once: as long
    as no class folder changes (files come or go), they are taken from the cache. Raises InputError, in one line, for
    whatever is wrong.
    """
    dataset = config.dataset
    images.check_pictures(config)
    images.pillow("imagenet")
    classes = _class_folders(path)
    most = dataset.classes or 0
    if len(classes) > most:
        raise InputError(
            f"dataset.path={path} holds {len(classes)} class folders, dataset.classes={most} "
            f"(model={config.model.name} has {config.model.outputs} outputs): "
            "raise dataset.classes, or choose another model"
        )
    side = config.model.input_shape[0]
    identity = {
        "version": VERSION,
        "path": str(path),
        "folders": [[folder.name, folder.stat().st_mtime_ns] for folder in classes],
        "samples": dataset.size,
        "seed": dataset.seed,
        "side": side,
        "dtype": dataset.dtype,
    }
    write = partial(_unpack, classes, dataset.size, dataset.seed, side, dataset.dtype)
    # How many pictures there are is not known before the folders are read; creating the arrays checks the space.
    return cache.ensure(cache_dir, "imagenet", identity, 0, write)


def _class_folders(path: Path) -> list[Path]:
    """Folders in `path`, or in its folder `train` where it has one, by name; hidden ones are left out."""
    root = path / "train" if (path / "train").is_dir() else path
    try:
        folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"dataset.path={path} cannot be read ({error.strerror}): {HINT}") from None
    if not folders:
        raise InputError(f"dataset.path={path} holds no class folders: {HINT}")
    return folders


def _unpack(classes: list[Path], size: int, seed: int, side: int, dtype: str, folder: Path) -> None:
    files = [_pictures(directory) for directory in classes]
    chosen = choose([len(names) for names in files], size, seed)
    Recipe(
        name="imagenet",
        version=VERSION,
        samples=len(chosen),
        seed=seed,
        input_shape=(side, side, 3),
        target_shape=(),
        chunk=CHUNK,
        make=partial(_decode, [os.path.join(classes[c], files[c][i]) for c, i in chosen], chosen[:, 0], side, dtype),
        input_dtype=dtype,
        target_dtype=images.LABEL_DTYPE,
        pool_bytes=POOL_BYTES * np.dtype(dtype).itemsize,
    ).write(folder)


def _pictures(folder: Path) -> list[str]:
    """Names of the pictures in a class folder, in order; a class without any is most likely a slip."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES) and name[0] != ".")
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}): {HINT}") from None
    if not names:
        raise InputError(f"{folder} holds no JPEG files: remove it, or fill it, since every folder is a class")
    return names


def choose(counts: list[int], size: int, seed: int) -> NDArray[np.int64]:
    """`size` of the pictures, or all if there are fewer: (class, number within it), in the order of the data set.

    `counts` pictures are there of each class. No class has two fewer than another unless all of its pictures are
    taken; which ones, and their order, is drawn from `seed`.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed]))
    numbers = np.concatenate([rng.permutation(count) for count in counts])
    rounds = np.concatenate([np.arange(count) for count in counts])
    classes = np.repeat(np.arange(len(counts)), counts)
    taken = np.lexsort((rng.random(len(rounds)), rounds))[:size]  # round by round, at random within each
    taken = rng.permutation(taken)
    return np.stack([classes[taken], numbers[taken]], axis=1)


def _decode(paths: list[str], labels: NDArray[np.int64], side: int, dtype: str, start: int, count: int) -> Arrays:
    rows = slice(start, start + count)
    pictures = np.stack([_picture(path, side) for path in paths[rows]])
    return images.in_dtype(pictures, dtype), labels[rows]


def _picture(path: str, side: int) -> NDArray[np.uint8]:
    pillow = images.pillow("imagenet")
    try:
        with pillow.open(path, formats=FORMATS) as picture:
            return images.central_square(picture.convert("RGB"), side)
    except Exception as error:  # of several kinds for a garbled picture; none of them is ours to tell apart
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path} is no whole JPEG file ({reason}): mend it or take it away") from None
