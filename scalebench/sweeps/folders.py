"""The folders of a sweep's runs: what earlier sweeps have left, and the number and the folder of each run."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from scalebench.core import result as results
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import refuse_folder_with_result, refuse_successful_run
from scalebench.core.run_folder import RESULT_FILE, RunKey, is_owned, read_run_key, refuse_foreign_folder
from scalebench.sweeps.plan import Compose, SweepRun

SUBDIR_BY_NUMBER = "${hydra.job.num}"  # hydra.sweep.subdir in conf/config.yaml
MAX_NAME_BYTES = 255  # of a file's or a folder's name, on all usual file systems


def number_runs(
    planned: Sequence[SweepRun], first: int = 0, present: Mapping[int, RunKey] | None = None
) -> Iterator[int]:
    """Number these runs: one that is `present` in the folder of a resumed sweep keeps its number, and the others get
    those from `first` on that no run has. Return the numbers after these, for baselines that are repeated."""
    taken = present or {}
    own = {key: number for number, key in taken.items()}
    unused = (number for number in itertools.count(first) if number not in taken)
    for run in planned:
        run.number = own[run.key] if run.key in own else next(unused)
    return unused


def find_numbers(sweep_dir: Path, earlier: Mapping[RunKey, Path]) -> dict[int, RunKey]:
    """Map the number of each run in the folder of a sweep, whatever became of it, to its key. Of equal runs the last is
    that of `earlier`, or the first one."""
    keys: dict[int, RunKey] = {}
    for folder in sweep_dir.glob("[0-9]*"):
        if re.fullmatch(r"0|[1-9]\d*", folder.name, re.ASCII) and (key := read_run_key(folder)) is not None:
            keys[int(folder.name)] = key
    last_is_own = sorted(keys, key=lambda number: (earlier.get(keys[number]) == sweep_dir / str(number), -number))
    return {number: keys[number] for number in last_is_own}


def find_earlier_results(sweep_dir: Path) -> dict[RunKey, Path]:
    """Map (fingerprint, repeat) to the folder of a successful run: the sweep's own, which nothing may replace, else
    the latest of the sweeps beside it. Unreadable files are skipped, and results of other users, who may write what
    they like into a shared folder."""
    latest: dict[RunKey, tuple[bool, str, Path]] = {}
    paths = {*sweep_dir.parent.rglob(RESULT_FILE), *sweep_dir.rglob(RESULT_FILE)}  # the latter may be a link
    for path in sorted(paths):
        if not (is_owned(path) and is_owned(path.parent)):
            continue
        try:
            result = results.read_result(path)
        except InputError:
            continue
        if result.status == "ok":
            key = (result.fingerprint, result.scale.repeat)
            candidate = (sweep_dir in path.parents, result.started_at, path.parent)
            latest[key] = max(latest.get(key, candidate), candidate)
    return {key: folder for key, (_, _, folder) in latest.items()}


def set_folders(runs: Sequence[SweepRun], config: DictConfig, compose: Compose) -> None:
    """Set the folder of each run of the sweep of this config by its number. Raise InputError where two runs would get
    the same one, or where a name is too long for a folder."""
    settings = OmegaConf.to_container(config.hydra.sweep, resolve=False)
    assert isinstance(settings, dict)
    key, sweep_dir = f"hydra.sweep.subdir={settings['subdir']}", Path(str(config.hydra.sweep.dir)).absolute()
    by_folder: dict[Path, SweepRun] = {}
    for run in runs:
        subdir = str(run.number)
        if settings["subdir"] != SUBDIR_BY_NUMBER:  # to compose each run once more would take as long as planning
            composed = compose(run.overrides)
            with open_dict(composed):
                composed.hydra.job.id, composed.hydra.job.num = str(run.number), run.number
            subdir = str(composed.hydra.sweep.subdir)
        run.folder = sweep_dir / subdir
        label = f"{run.spec.label} repeat={run.spec.config.repeat}"
        if (other := by_folder.setdefault(run.folder, run)) is not run:
            raise InputError(
                f"{key} gives several runs the same folder, {run.folder} ({other.spec.label} "
                f"repeat={other.spec.config.repeat} and {label}): add {SUBDIR_BY_NUMBER}"
            )
        if (longest := max(len(os.fsencode(part)) for part in run.folder.parts)) > MAX_NAME_BYTES:
            raise InputError(
                f"{key} gives {label} a folder whose name has {longest} bytes, and at most {MAX_NAME_BYTES} are "
                f"possible: use {SUBDIR_BY_NUMBER}"
            )


def check_folders(planned: Sequence[SweepRun], sweep_dir: Path, is_resumed: bool) -> None:
    """Raise InputError for the folder of a run that is not below the sweep's own, or is neither empty nor a run's, or
    holds a result, of a resumed sweep another successful one. Nothing has been touched then."""
    for run in planned:
        if sweep_dir.resolve() not in run.folder.resolve().parents:
            raise InputError(
                f"hydra.sweep.subdir: {run.folder} is not below {sweep_dir}, where all its runs are; leave it out"
            )
        if not is_resumed:
            refuse_folder_with_result(run.folder)
        elif run.earlier != run.folder:
            refuse_successful_run(run.folder)
        refuse_foreign_folder(run.folder)
