"""The store of saved baselines by machine class: another class of machine has none, which is not a regression.

<store>/<fingerprint of the machine>/machine.json
<store>/<fingerprint of the machine>/<name>/<number>/result.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.analysis.comparison.sessions import number_sessions
from scalebench.analysis.read_runs import find_results
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_record, write_json
from scalebench.core.machine.machine import MachineClass, classify_machine
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE

STORE_VARIABLE = "SCALEBENCH_BASELINES"
DEFAULT_STORE = Path(".scalebench") / "baselines"
MACHINE_FILE = "machine.json"
MAX_SESSIONS = 10  # that a baseline keeps, the latest ones
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
SavedRun = tuple[Path, Result]  # a file, and its record without ranks and spec


@dataclass(frozen=True)
class SavedBaseline:
    """A baseline of one machine class after a save, with the number of its runs and of their sessions."""

    kind: MachineClass
    folder: Path
    runs: int
    sessions: int


def store_folder() -> Path:
    """Return $SCALEBENCH_BASELINES, else .scalebench/baselines in the working directory, which a CI job can keep."""
    return Path(os.environ.get(STORE_VARIABLE) or DEFAULT_STORE).expanduser()


def check_baseline_name(name: str) -> str:
    """Return the name; InputError for one that is not a plain folder name."""
    if not NAME_PATTERN.fullmatch(name):
        raise InputError(
            f"baseline name {name!r}: 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        )
    return name


def save_baseline(name: str, paths: Sequence[str | os.PathLike[str]], replace: bool = False) -> list[SavedBaseline]:
    """Add copies of all records at or below `paths` to baseline `name` of their machine class; with `replace` they are
    all that it has then.

    It keeps the runs of its last MAX_SESSIONS sessions. Each baseline is saved completely or not at all. InputError if
    no record is ok, and for a store that cannot be written.
    """
    check_baseline_name(name)
    by_class: dict[str, dict[str, SavedRun]] = {}
    kinds: dict[str, MachineClass] = {}
    for file, record in map(_read_run, find_results([Path(path) for path in paths])):
        kind = classify_machine(record.machine)
        kinds[kind.fingerprint] = kind
        by_class.setdefault(kind.fingerprint, {}).setdefault(record.run_id, (file, record))
    good = [key for key, runs in by_class.items() if any(record.status == "ok" for _, record in runs.values())]
    if not good:
        raise InputError(f"no run of {', '.join(map(str, paths))} went well: nothing to compare with later")
    saved = []
    try:
        for key in sorted(good):
            folder = store_folder() / key / name
            saved_before = find_results([folder]) if folder.is_dir() and not replace else []
            runs = {record.run_id: (file, record) for file, record in map(_read_run, saved_before)} | by_class[key]
            numbers = number_sessions(record for _, record in runs.values())
            sessions = sorted(set(numbers.values()))[-MAX_SESSIONS:]
            files = [file for run_id, (file, _) in runs.items() if numbers[run_id] in sessions]
            saved.append(SavedBaseline(kinds[key], _write_baseline(kinds[key], name, files), len(files), len(sessions)))
    except OSError as error:
        raise InputError(
            f"{store_folder()}: {error.strerror or error}; set {STORE_VARIABLE} to a folder that can be written"
        ) from error
    return saved


def _read_run(file: Path) -> SavedRun:
    return file, dataclasses.replace(read_result(file), ranks=[], spec={})


def _write_baseline(kind: MachineClass, name: str, files: Iterable[Path]) -> Path:
    home = store_folder() / kind.fingerprint
    home.mkdir(parents=True, exist_ok=True)
    write_json(home / MACHINE_FILE, kind)
    new, old = home / f".{name}.{os.getpid()}.new", home / f".{name}.{os.getpid()}.old"
    try:
        for number, file in enumerate(files):
            (new / str(number)).mkdir(parents=True)
            shutil.copyfile(file, new / str(number) / RESULT_FILE)
        if (home / name).exists():
            os.rename(home / name, old)
        os.rename(new, home / name)
    except BaseException:
        if old.exists() and not (home / name).exists():
            os.rename(old, home / name)
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return home / name


def find_baseline_folders(name: str, kinds: Iterable[MachineClass]) -> list[Path]:
    """Return the folders that baseline `name` has for these machine classes."""
    check_baseline_name(name)
    folders = [store_folder() / fingerprint / name for fingerprint in dict.fromkeys(kind.fingerprint for kind in kinds)]
    return [folder for folder in folders if folder.is_dir()]


def explain_missing_baseline(name: str, kinds: Iterable[MachineClass]) -> str:
    """Return the error line for a baseline that was not saved for these machine classes, with what there is instead."""
    own_kinds = "; ".join(dict.fromkeys(map(str, kinds)))
    if others := [str(kind) for kind, names in list_saved_baselines() if name in names]:
        return f"no baseline '{name}' for this machine ({own_kinds}); saved ones are for {'; '.join(others)}"
    names = sorted({each for _, names in list_saved_baselines() for each in names})
    return f"no baseline '{name}' in {store_folder()} ({own_kinds}); saved names: {', '.join(names) or 'none'}"


def list_saved_baselines() -> list[tuple[MachineClass, list[str]]]:
    """Return the names of the baselines of each machine class in the store that can be read."""
    saved = []
    for file in sorted(store_folder().glob(f"*/{MACHINE_FILE}")):
        with contextlib.suppress(OSError, ValueError):
            folders = [path.name for path in file.parent.iterdir() if path.is_dir()]
            names = sorted(name for name in folders if NAME_PATTERN.fullmatch(name))
            saved.append((read_record(file, MachineClass), names))
    return saved
