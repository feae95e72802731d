"""Finding result.json files below folders, and reading and summarizing thousands of them in several processes."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from scalebench.analysis.rows import summarize_run
from scalebench.analysis.run_summary import RunSummary
from scalebench.core.errors import InputError
from scalebench.core.machine.machine import count_usable_cores
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE, SPEC_FILE
from scalebench.core.sweep_file import SWEEP_FILE

PathLike = str | os.PathLike[str]
Unreadable = list[tuple[Path, str]]  # files or folders, each with one line that gives the reason
MIN_FILES_PER_PROCESS = 200  # starting a process takes as long as reading so many
MAX_PROCESSES = 8
FILES_PER_TASK = 50


@dataclass
class RunFiles:
    """The files and folders that a search below some paths returns."""

    results: list[Path]  # each file once, sorted
    unfinished_folders: list[Path] = field(default_factory=list)  # of runs that have a spec, but no result; sorted
    sweep_folders: list[Path] = field(default_factory=list)  # those with a sweep.json, sorted


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector, which saves a tenth of the time of reading, and a fifth of that of a page: runs and
    rows have no reference cycles, but are so many that each collection takes long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def list_paths(path: PathLike | Sequence[PathLike]) -> list[PathLike]:
    """Return one path, or several, as a list."""
    return [path] if isinstance(path, (str, os.PathLike)) else list(path)


def find_results(paths: Sequence[PathLike]) -> list[Path]:
    """Return all result.json files at or below `paths`, each once, sorted.

    Raises InputError for a path without any, and for a folder that cannot be listed.
    """
    unreadable: Unreadable = []
    results = search_results(paths, unreadable).results
    for _, line in unreadable:
        raise InputError(line)
    return results


def search_results(paths: Sequence[PathLike], unreadable: Unreadable) -> RunFiles:
    """Find results as `find_results` does, with the folders of unfinished runs and of sweeps, but add folders that
    cannot be listed to `unreadable`."""

    def note_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            unreadable.append((Path(error.filename), f"{error.filename}: {error.strerror}"))

    files: dict[str, Path] = {}
    unfinished: list[Path] = []
    sweeps: list[Path] = []
    for start in map(Path, paths):
        unreadable_before = len(unreadable)
        below = [start] if start.is_file() else []
        # Links to folders are not followed, since they may form a circle.
        for folder, folders, names in os.walk(start, onerror=note_error):
            folders.sort()
            entries = {*folders, *names}
            if RESULT_FILE in entries:
                below.append(Path(folder, RESULT_FILE))
            elif SPEC_FILE in entries:
                unfinished.append(Path(folder))
            if SWEEP_FILE in entries:
                sweeps.append(Path(folder))
        if not below and len(unreadable) == unreadable_before:
            raise InputError(f"no {RESULT_FILE} at or below {start}; give the folder of a run or a sweep")
        for path in below:
            files.setdefault(os.path.realpath(path), path)
    return RunFiles(sorted(files.values(), key=lambda path: path.parts), sorted({*unfinished}), sorted({*sweeps}))


def summarize_files(files: Sequence[Path]) -> list[RunSummary]:
    """Read and summarize each file; raises InputError for the first that cannot be read."""
    unreadable: Unreadable = []
    runs = summarize_readable(files, unreadable)
    for _, line in unreadable:
        raise InputError(line)
    return runs


def summarize_readable(files: Sequence[Path], unreadable: Unreadable) -> list[RunSummary]:
    """Read and summarize each file that can be read, and add the others to `unreadable`."""
    runs = []
    for file, summary in zip(files, _summarize_all(files), strict=True):
        if isinstance(summary, str):
            unreadable.append((file, summary))
        else:
            runs.append(summary)
    return runs


def _summarize_all(files: Sequence[Path]) -> Iterator[RunSummary | str]:
    """Yield the summary of each file in order, or one line that says why there is none."""
    processes = min(len(files) // MIN_FILES_PER_PROCESS, count_usable_cores(), MAX_PROCESSES)
    read = 0
    if processes > 1:
        # Forked, since a spawned process imports the user's script again, which may call us at its top level.
        with ProcessPoolExecutor(processes, get_context("fork"), gc.disable) as pool:
            try:
                summaries = pool.map(_summarize_file, files, chunksize=FILES_PER_TASK)
                for library in ("pandas", "scipy.special"):  # which the frames need, while the others read
                    importlib.import_module(library)
                for summary in summaries:
                    yield summary
                    read += 1
            except (BrokenProcessPool, OSError):
                pass  # a process was killed, or could not be started: the remaining files are read here
    yield from map(_summarize_file, files[read:])


def _summarize_file(file: Path) -> RunSummary | str:
    try:
        return summarize_run(read_result(file), file.parent)
    except InputError as error:
        return str(error)
