"""Saved records to compare with, by machine: a runner of another type has none, which is no regression. Layer 1.

<store>/<fingerprint of the machine>/machine.json
<store>/<fingerprint of the machine>/<name>/<number>/result.json
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.analysis.read_runs import find_results
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_record, write_json
from scalebench.core.machine.machine import MachineClass, classify_machine
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE

VARIABLE = "SCALEBENCH_BASELINES"
DEFAULT = Path(".scalebench") / "baselines"
MACHINE_FILE = "machine.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Saved:
    """What the store has under one machine."""

    kind: MachineClass
    folder: Path
    names: list[str]


def store() -> Path:
    """$SCALEBENCH_BASELINES, else .scalebench/baselines in the working directory, as a CI job can keep it."""
    return Path(os.environ.get(VARIABLE) or DEFAULT).expanduser()


def check_name(name: str) -> str:
    """The name itself; InputError for one that would be no plain folder."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"baseline name {name!r}: 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        )
    return name


def save(
    name: str, paths: Sequence[str | os.PathLike[str]], replace: bool = False
) -> list[tuple[MachineClass, Path, int]]:
    """Copies of all records at or below `paths` as baseline `name` of their machine: (machine, folder, runs) of each.

    A baseline is there whole or not at all. InputError for a name that is taken, without `replace`; for records of
    which none went well; for a store that cannot be written.
    """
    check_name(name)
    found: dict[str, tuple[MachineClass, dict[str, Path]]] = {}
    good: set[str] = set()
    for file in find_results([Path(path) for path in paths]):
        result = read_result(file)
        kind = classify_machine(result.machine)
        found.setdefault(kind.fingerprint, (kind, {}))[1].setdefault(result.run_id, file)
        good |= {kind.fingerprint} if result.status == "ok" else set()
    if not good:
        raise InputError(f"no run of {', '.join(map(str, paths))} went well: nothing to compare with later")
    chosen = [found[fingerprint] for fingerprint in sorted(good)]
    for kind, _ in chosen:
        if (store() / kind.fingerprint / name).exists() and not replace:
            raise InputError(f"baseline '{name}' of this machine ({kind}) is there already; --replace takes its place")
    try:
        return [(kind, _write(kind, name, list(files.values())), len(files)) for kind, files in chosen]
    except OSError as error:
        raise InputError(
            f"{store()}: {error.strerror or error}; set {VARIABLE} to a folder that can be written"
        ) from error


def _write(kind: MachineClass, name: str, files: Iterable[Path]) -> Path:
    home = store() / kind.fingerprint
    home.mkdir(parents=True, exist_ok=True)
    write_json(home / MACHINE_FILE, kind)
    made, old = home / f".{name}.{os.getpid()}.new", home / f".{name}.{os.getpid()}.old"
    try:
        for number, file in enumerate(files):
            (made / str(number)).mkdir(parents=True)
            shutil.copyfile(file, made / str(number) / RESULT_FILE)
        if (home / name).exists():
            os.rename(home / name, old)
        os.rename(made, home / name)
    except BaseException:
        if old.exists() and not (home / name).exists():
            os.rename(old, home / name)
        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return home / name


def load_folder(name: str, kinds: Iterable[MachineClass]) -> list[Path]:
    """The folders of baseline `name` of these machines; none where there is none."""
    check_name(name)
    folders = [store() / fingerprint / name for fingerprint in dict.fromkeys(kind.fingerprint for kind in kinds)]
    return [folder for folder in folders if folder.is_dir()]


def no_baseline(name: str, kinds: Iterable[MachineClass]) -> str:
    """The line that says what there is instead."""
    wanted = "; ".join(dict.fromkeys(map(str, kinds)))
    here = saved()
    alike = [str(one.kind) for one in here if name in one.names]
    if alike:
        return f"no baseline '{name}' for this machine ({wanted}); saved ones are for {'; '.join(alike)}"
    names = sorted({other for one in here for other in one.names})
    return f"no baseline '{name}' in {store()} ({wanted}); saved names: {', '.join(names) or 'none'}"


def saved() -> list[Saved]:
    """All machines of the store that can be read."""
    found = []
    for file in sorted(store().glob(f"*/{MACHINE_FILE}")):
        try:
            kind = read_record(file, MachineClass)
        except (OSError, ValueError):
            continue
        names = sorted(path.name for path in file.parent.iterdir() if path.is_dir() and NAME.fullmatch(path.name))
        found.append(Saved(kind, file.parent, names))
    return found
