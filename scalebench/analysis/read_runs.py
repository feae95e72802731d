"""From folders to the figures of the runs below them. Layer 1."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from scalebench.analysis.rows import figures_of
from scalebench.analysis.run_summary import Figures
from scalebench.core.errors import InputError
from scalebench.core.machine.cpus import usable_cpus
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE

PathLike = str | os.PathLike[str]
MIN_FILES_PER_PROCESS = 200  # a process takes as long to start as to read so many
MAX_PROCESSES = 8
FILES_PER_TASK = 50
Unreadable = list[tuple[Path, str]]  # and one line that says why


def paths_of(path: PathLike | Sequence[PathLike]) -> list[PathLike]:
    return [path] if isinstance(path, (str, os.PathLike)) else list(path)


def find(paths: Sequence[PathLike]) -> list[Path]:
    """All result.json files at or below `paths`, each once, sorted; InputError for a path without any, and for a
    folder that must not be listed."""
    unreadable: Unreadable = []
    found = search(paths, unreadable)
    for _, line in unreadable:
        raise InputError(line)
    return found


def search(paths: Sequence[PathLike], unreadable: Unreadable) -> list[Path]:
    """As find; folders that must not be listed are added to `unreadable`."""
    found: dict[str, Path] = {}
    for given in map(Path, paths):
        known = len(unreadable)
        below = [given] if given.is_file() else list(_below(given, unreadable))
        root = os.path.realpath(given)
        if not below and len(unreadable) == known:
            raise InputError(f"no {RESULT_FILE} at or below {given}; give the folder of a run or a sweep")
        for path in below:
            # Folders below it are no links, since these are not followed; the file itself may be one.
            plain = path is not given and not path.is_symlink()
            found.setdefault(os.path.join(root, path.relative_to(given)) if plain else os.path.realpath(path), path)
    return sorted(found.values())


def _below(folder: Path, unreadable: Unreadable) -> Iterator[Path]:
    """Whatever has the name of a result. Links to folders are not followed: they may lead round in a circle."""

    def refused(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            unreadable.append((Path(error.filename), f"{error.filename}: {error.strerror}"))

    for where, folders, files in os.walk(folder, onerror=refused):
        folders.sort()
        if RESULT_FILE in files or RESULT_FILE in folders:
            yield Path(where, RESULT_FILE)


def figures_in(files: Sequence[Path]) -> list[Figures]:
    """Of each file; InputError for the first one that cannot be read."""
    unreadable: Unreadable = []
    found = readable(files, unreadable)
    for _, line in unreadable:
        raise InputError(line)
    return found


def readable(files: Sequence[Path], unreadable: Unreadable) -> list[Figures]:
    """Of each file that can be read; the others are added to `unreadable`."""
    found = []
    for file, answer in zip(files, _read_all(files), strict=True):
        if isinstance(answer, str):
            unreadable.append((file, answer))
        else:
            found.append(answer)
    return found


def _read_all(files: Sequence[Path]) -> Iterator[Figures | str]:
    """The figures of each file, in order, or one line that says why there are none."""
    processes = min(len(files) // MIN_FILES_PER_PROCESS, len(usable_cpus()), MAX_PROCESSES)
    read = 0
    if processes > 1:
        # Forked: a process of any other kind imports the user's script again, which may call us at its top level.
        # Without garbage collection, a tenth of its time: records hold no cycles.
        with ProcessPoolExecutor(processes, get_context("fork"), gc.disable) as pool:
            try:
                for answer in pool.map(_read, files, chunksize=FILES_PER_TASK):
                    yield answer
                    read += 1
            except (BrokenProcessPool, OSError):
                pass  # a process was killed, or could not be started: the rest is read here
    yield from map(_read, files[read:])


def _read(file: Path) -> Figures | str:
    try:
        return figures_of(read_result(file), file.parent)
    except InputError as error:
        return str(error)
