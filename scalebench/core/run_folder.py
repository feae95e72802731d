"""The names of all files in the folder of a run, how a folder is known as a run's, and which files are removed.

A folder with anything else in it is refused: a user may name any folder for a run, and has files there that no one else
can make again. Nothing but plain files with exactly these names is ever removed or copied.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scalebench.core.errors import InputError
from scalebench.core.json_files import parse_record, read_record, write_json
from scalebench.core.untrusted import MAX_FILE_BYTES, read_plain_file

SPEC_FILE = "spec.json"
RESULT_FILE = "result.json"
UNREADABLE_RESULT_FILE = "result.unreadable.json"  # an incomplete result.json, kept for inspection
MONITOR_FILE = "monitor.parquet"  # the time series of the first, or only, node
MERGED_TRACE_FILE = "trace.json.gz"
TIMELINE_FILE = "timeline.json"  # Horovod's timeline of gradient synchronizations
PLUGIN_LOG = "plugin.log"  # the traceback of a plugin that failed before there was a process
# These hold what the program that started the ranks printed.
MPIRUN_LOG, SRUN_LOG, COMMAND_LOG = "mpirun.log", "srun.log", "command.log"
JOB_FILE = "job.json"  # the job of SLURM that does a run, or its JobSet
JOB_LOG = "job.log"  # output of the job, besides the logs of its ranks
JOB_RUNS_FILE = "job_runs.json"  # the runs that a job does
JOB_SCRIPT = "job.sh"  # what the job was submitted with
KEY_FILE = "agent.key"  # exists while a run waits for agents that a person starts
TURN_FILE = "turn.json"  # the turn that a run of a cohort has, or had last
WARM_UP_FILE = "warm_up.txt"  # exists once a run of a cohort that was set up beside others may make its first step
SRUN_HOSTS_FILE = "srun_hosts.txt"  # the node of each rank, where nodes have different numbers of ranks
TRY_SPEC_FILE = "try.json"  # the spec of one try of a batch search: as spec.json it would look like an unfinished run
LOCK_FILE = "scalebench.lock"  # exists while a program uses the folder, of a run or of a sweep
HYDRA_FOLDER = ".hydra"
HYDRA_FILES = frozenset({"config.yaml", "hydra.yaml", "overrides.yaml"})  # as Hydra names them
RUN_ID_VARIABLE = "SCALEBENCH_RUN_ID"  # of the environment of ranks and their agents

_RANK_TRACE = re.compile(r"trace(\d+)\.json\.gz")
_TRY_FOLDER = re.compile(r"try_\d+(_again)?")
_TEMPORARY = re.compile(r"\.(.+)\.\d+")  # of json_files.write_text, left where its program was killed


def _match_any(*names: str, numbered: str = "") -> re.Pattern[str]:
    """Return the pattern of these names, and of those that the regular expression `numbered` matches."""
    return re.compile("|".join([*map(re.escape, names), *filter(None, [numbered])]))


# By these the parent and its ranks communicate; they are removed just before result.json is written, so that no parent
# that is killed leaves them beside it.
TRANSIENT_FILES = _match_any(
    TURN_FILE, WARM_UP_FILE, KEY_FILE, SRUN_HOSTS_FILE,
    numbered=r"(progress|machine|turn)\d+\.json|warm_up\d+\.txt",
)  # fmt: skip
OUTPUT_FILES = _match_any(
    MPIRUN_LOG, SRUN_LOG, COMMAND_LOG, PLUGIN_LOG, MONITOR_FILE, MERGED_TRACE_FILE, TIMELINE_FILE,
    numbered=r"rank\d+\.(json|log)|trace\d+\.json\.gz|monitor\d+\.parquet",
)  # fmt: skip
RECORD_FILES = _match_any(
    LOCK_FILE, SPEC_FILE, TRY_SPEC_FILE, RESULT_FILE, UNREADABLE_RESULT_FILE, JOB_FILE, JOB_RUNS_FILE,
    JOB_LOG, JOB_SCRIPT,
)  # fmt: skip

Record = TypeVar("Record")
RunKey = tuple[str, int]  # fingerprint and repeat, by which resume=true knows a run


@dataclass
class _Marker:
    """The fields by which a folder is known as a run's, whichever version of scalebench wrote them: those of spec.json
    and try.json, and of result.json, which stands alone where the scheduler refused a job."""

    fingerprint: str
    config: dict[str, Any] | None = None  # of a spec
    spec: dict[str, Any] | None = None  # the same of a result
    status: str = ""


@dataclass
class _RunMarker:
    """The field by which a rank's report is known as one of a run."""

    run_id: str | None = None


@dataclass
class Turn:
    """The turn of a run that takes turns with others, as turn.json holds it: granted by the parent, then over."""

    number: int  # from 1 on
    slot_s: float | None = None  # how long it lasts; None: measuring is over
    round: int = 0  # of the cohort


def rank_record_path(folder: Path, rank: int) -> Path:
    """Return the path of the record of a rank."""
    return folder / f"rank{rank}.json"


def turn_path(folder: Path, node: int = 0) -> Path:
    """Return the path of the turn of a run that takes turns with others, as one node has it."""
    return _of_node(folder / TURN_FILE, node)


def warm_up_path(folder: Path, node: int = 0) -> Path:
    """Return the path of the file by which the ranks of one node may make their first step."""
    return _of_node(folder / WARM_UP_FILE, node)


def _of_node(path: Path, node: int) -> Path:
    """Return the path of one node's file; the first, or only, node has the plain name."""
    return path.with_stem(f"{path.stem}{node or ''}")


def rank_log_name(rank: int) -> str:
    """Return the name of the file with the output of a rank."""
    return f"rank{rank}.log"


def rank_trace_name(rank: int) -> str:
    """Return the name of the Chrome trace of one rank, which exists until the traces are merged."""
    return f"trace{rank}.json.gz"


def rank_traces(folder: Path) -> dict[int, Path]:
    """Return the Chrome traces of single ranks by rank."""
    traces = {int(match[1]): path for path in folder.iterdir() if (match := _RANK_TRACE.fullmatch(path.name))}
    return dict(sorted(traces.items()))


def progress_path(folder: Path, rank: int) -> Path:
    """Return the path of the progress report of a rank."""
    return folder / f"progress{rank}.json"


def node_report_path(folder: Path, node: int) -> Path:
    """Return the path of the machine facts of one node."""
    return folder / f"machine{node}.json"


def monitor_path(folder: Path, node: int = 0) -> Path:
    """Return the path of the monitor's time series of one node."""
    return _of_node(folder / MONITOR_FILE, node)


def try_folder(folder: Path, batch: int, more_memory: bool = False) -> Path:
    """Return the folder of one try in the search for the largest batch."""
    return folder / f"try_{batch}{'_again' if more_memory else ''}"


def launcher_log_name(folder: Path) -> str | None:
    """Return the name of the log of the program that started the ranks; None where it kept none."""
    return next((name for name in (MPIRUN_LOG, SRUN_LOG, COMMAND_LOG) if (folder / name).exists()), None)


def write_rank_file(path: Path, record: Any, run_id: str | None = None) -> None:
    """Write what a rank reports to its launcher, with the id of the run that both belong to (None: that of this
    process's environment)."""
    write_json(path, {"run_id": run_id or os.environ.get(RUN_ID_VARIABLE), **vars(record)})


def read_rank_file(
    path: Path, record_type: type[Record], run_id: str | None = None, max_bytes: int = MAX_FILE_BYTES
) -> Record | None:
    """Read such a report. None where it is missing or incomplete, or of another run than `run_id`, whose ranks may
    still write after their parent was killed; with `run_id` None that of any run counts."""
    try:
        content = read_plain_file(path, max_bytes=max_bytes)
        of_run = parse_record(content, _RunMarker).run_id
        return parse_record(content, record_type) if run_id in (None, of_run) else None
    except (OSError, ValueError):
        return None


def _read_marker(folder: Path, *names: str) -> _Marker | None:
    """Return the first marker of a run among these files, also of one that did not come to its end."""
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            marker = read_record(folder / name, _Marker)
            if (marker.spec if name == RESULT_FILE else marker.config) is not None:
                return marker
    return None


def read_run_key(folder: Path) -> RunKey | None:
    """Return the key of the run in `folder`, also of one that did not come to its end; None where there is none."""
    marker = _read_marker(folder, RESULT_FILE, SPEC_FILE)
    if marker is None:
        return None
    with contextlib.suppress(ValueError, TypeError):
        return marker.fingerprint, int((marker.spec or marker.config or {}).get("repeat") or 0)
    return None


def has_successful_run(folder: Path) -> bool:
    """Return whether `folder` holds the result of a successful run, of whichever version of scalebench."""
    marker = _read_marker(folder, RESULT_FILE)
    return marker is not None and marker.status == "ok"


def refuse_foreign_folder(folder: Path) -> None:
    """Raise InputError where `folder` holds anything but one run: files of a user, or a link, a pipe or a folder with
    the name of a file of ours, through which we would write elsewhere."""
    if not has_foreign_content(folder, SPEC_FILE):
        return
    if _read_marker(folder, SPEC_FILE, RESULT_FILE) is None:
        raise InputError(f"{folder} is not empty and holds no run of scalebench; choose an empty or a new folder")
    for path in _list_files(folder):
        if not _is_own(path, folder):
            raise InputError(f"{path} is not a plain file of a run of scalebench; move it, or choose another folder")


def has_foreign_content(folder: Path, marker: str, *others: str) -> bool:
    """Return whether `folder` holds more than Hydra's own files, a lock, `others`, and the temporary file of a
    `marker`. Raise InputError where it is not a folder, or could not be shown later."""
    check_folder_name(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder; choose another one")
    for path in _list_files(folder):
        temporary = _TEMPORARY.fullmatch(path.name)
        is_known = path.name in (LOCK_FILE, *others) or (temporary is not None and temporary[1] == marker)
        if not (is_known and path.parent == folder) and not _is_of_hydra(path, folder):
            return True
    return False


def check_folder_name(folder: Path) -> None:
    """Raise InputError for bytes that are not UTF-8, which no column of a frame and no page can hold."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        name = str(folder).encode("utf-8", "backslashreplace").decode()
        raise InputError(f"{name} is not UTF-8: rename it, or choose another folder") from None


def remove_transient_files(folder: Path) -> None:
    """Remove the files by which parent and ranks communicated, also in the folders of tries."""
    _remove(folder, lambda path: _has_name(path, TRANSIENT_FILES))


def remove_leftovers(folder: Path) -> None:
    """Remove the files of ranks whose parent was killed before it wrote result.json, and all of tries."""
    _remove(
        folder, lambda path: _TRY_FOLDER.fullmatch(path.parent.name) or _has_name(path, OUTPUT_FILES, TRANSIENT_FILES)
    )


def remove_run(folder: Path) -> None:
    """Remove a run, if it is there, with its folder if nothing else is in it. The caller knows that it is a run's."""
    _remove(folder, lambda path: path != folder / LOCK_FILE)
    with contextlib.suppress(OSError):
        folder.rmdir()


def copy_run(source: Path, target: Path) -> None:
    """Copy the files of a run into another folder: plain ones with names of ours. There may be links in `source` to
    files that only this user can read, made by others who can write there."""
    for path in _list_files(source):
        if _is_own(path, source) and path.name != LOCK_FILE:
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy, follow_symlinks=False)


def is_owned(path: Path) -> bool:
    """Return whether `path` exists, is not a link, and belongs to the user of this process."""
    try:
        return (status := path.lstat()).st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)
    except OSError:
        return False


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder but its subfolders; nothing of what a link leads to."""
    for above, folders, files in os.walk(folder):
        yield from (Path(above, name) for name in files)
        yield from (path for name in folders if (path := Path(above, name)).is_symlink())


def _is_own(path: Path, folder: Path) -> bool:
    """Return whether `path` is a plain file that scalebench, or Hydra for it, may have written for the run there."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return False
    if path.parent == folder or (path.parent.parent == folder and _TRY_FOLDER.fullmatch(path.parent.name)):
        return _has_name(path, OUTPUT_FILES, TRANSIENT_FILES, RECORD_FILES)
    return _is_of_hydra(path, folder)


def _is_of_hydra(path: Path, folder: Path) -> bool:
    """Return whether Hydra wrote this file; hydra.output_subdir may have given its folder another name."""
    is_its = path.parent.name == HYDRA_FOLDER or (path.parent / "hydra.yaml").is_file()
    return path.parent.parent == folder and path.name in HYDRA_FILES and is_its and not path.is_symlink()


def _has_name(path: Path, *kinds: re.Pattern[str]) -> bool:
    """Return whether a file has such a name, or is the temporary one of such a file."""
    temporary = _TEMPORARY.fullmatch(path.name)
    return any(kind.fullmatch(path.name if temporary is None else temporary[1]) for kind in kinds)


def _remove(folder: Path, is_wanted: Callable[[Path], Any]) -> None:
    """Remove those files of a run, the mark of its folder last, and then its subfolders that are empty."""
    paths = [path for path in _list_files(folder) if _is_own(path, folder) and is_wanted(path)]
    for path in sorted(paths, key=lambda path: path == folder / SPEC_FILE):
        path.unlink(missing_ok=True)
    for subfolder in {path.parent for path in paths} - {folder}:
        with contextlib.suppress(OSError):
            subfolder.rmdir()
