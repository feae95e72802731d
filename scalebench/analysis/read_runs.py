"""Find result.json files below folders, read and summarize them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.analysis.rows import RunSummary, summarize_run
from scalebench.core.errors import InputError
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE, SPEC_FILE
from scalebench.core.sweep_file import SWEEP_FILE

PathLike = str | os.PathLike[str]
Unreadable = list[tuple[Path, str]]  # files or folders, each with one line that gives the reason


@dataclass
class RunFiles:
    """The files and folders that a search below some paths returns."""

    results: list[Path]  # each file once, sorted
    unfinished_folders: list[Path] = field(default_factory=list)  # of runs that have a spec, but no result; sorted
    sweep_folders: list[Path] = field(default_factory=list)  # those with a sweep.json, sorted


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
    """As `find_results`, with the folders of unfinished runs and of sweeps, but add folders that cannot be listed to
    `unreadable`."""

    def note_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            unreadable.append((Path(error.filename), f"{error.filename}: {error.strerror}"))

    files: dict[str, Path] = {}
    unfinished, sweeps = set[Path](), set[Path]()
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
                unfinished.add(Path(folder))
            if SWEEP_FILE in entries:
                sweeps.add(Path(folder))
        if not below and len(unreadable) == unreadable_before:
            option, is_setting, value = str(start).partition("=")
            hint = f" (options are written --{option} {value})" if is_setting and not start.exists() else ""
            raise InputError(f"no {RESULT_FILE} at or below {start}; give the folder of a run or a sweep{hint}")
        for path in below:
            files.setdefault(os.path.realpath(path), path)
    return RunFiles(sorted(files.values(), key=lambda path: path.parts), sorted(unfinished), sorted(sweeps))


def summarize_files(files: Sequence[Path], unreadable: Unreadable | None = None) -> list[RunSummary]:
    """Read and summarize each file, and add those that cannot be read to `unreadable`; without it raise InputError for
    the first of them."""
    runs = []
    for file in files:
        try:
            runs.append(summarize_run(read_result(file), file.parent))
        except InputError as error:
            if unreadable is None:
                raise
            unreadable.append((file, str(error)))
    return runs
