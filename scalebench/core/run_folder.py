"""The names of all files in the folder of a run, how a folder is known as a run's, and which files are removed.

Nothing but plain files with exactly these names is ever removed or copied, and only in a folder that is a run's: a user
may name any folder for a run, and has files there that no one else can make again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
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
JOB_FILE = "job.json"  # the job number of a run that is a job of SLURM
JOB_LOG = "job.log"  # output of the job, besides the logs of its ranks
JOB_RUNS_FILE = "job_runs.json"  # the runs that a job does
JOB_SCRIPT = "job.sh"
SUBMITIT_FOLDER = "slurm"
TORCHRUN_FILE = "by_hand.json"  # exists while the launcher `by_hand` waits for the ranks
TURN_FILE = "turn.json"  # the turn that a run of a cohort has, or had last
WARM_UP_FILE = "warm_up.txt"  # exists once a run of a cohort that was set up beside others may make its first step
STALE_TURN_LIMIT_S = 5.0  # for a shared file system to show turn.json as it is
STOP_FILE = "stop.json"  # exists when the ranks under torchrun must end; says whether the run succeeded
SRUN_HOSTS_FILE = "srun_hosts.txt"  # the node of each rank, where nodes have different numbers of ranks
TRY_SPEC_FILE = "try.json"  # the spec of one try of a batch search: as spec.json it would look like an unfinished run
LOCK_FILE = "scalebench.lock"  # exists while a program uses the folder, of a run or of a sweep
HYDRA_FOLDER = ".hydra"
HYDRA_FILES = frozenset({"config.yaml", "hydra.yaml", "overrides.yaml"})  # Hydra writes them before it calls us
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
    TURN_FILE,
    WARM_UP_FILE,
    TORCHRUN_FILE,
    STOP_FILE,
    SRUN_HOSTS_FILE,
    numbered=r"(progress|pid|exit|paused|machine)\d+\.json",
)
OUTPUT_FILES = _match_any(
    MPIRUN_LOG, SRUN_LOG, COMMAND_LOG, PLUGIN_LOG, MONITOR_FILE, MERGED_TRACE_FILE, TIMELINE_FILE,
    numbered=r"rank\d+\.(json|log)|trace\d+\.json\.gz|monitor\d+\.parquet",
)  # fmt: skip
RECORD_FILES = _match_any(
    SPEC_FILE, TRY_SPEC_FILE, RESULT_FILE, UNREADABLE_RESULT_FILE, JOB_FILE, JOB_RUNS_FILE, JOB_LOG
)

Record = TypeVar("Record")
RunKey = tuple[str, int]  # fingerprint and repeat, by which resume=true knows a run


@dataclass
class _SpecMarker:
    """The fields by which spec.json and try.json are known as ours, of whichever version of scalebench."""

    config: dict[str, Any]
    places: list[Any]
    fingerprint: str


@dataclass
class _ResultMarker:
    """Likewise of result.json, which stands alone where the scheduler refused a job."""

    run_id: str
    fingerprint: str
    spec: dict[str, Any]
    status: str = ""


MARKERS = {SPEC_FILE: _SpecMarker, TRY_SPEC_FILE: _SpecMarker, RESULT_FILE: _ResultMarker}


@dataclass
class _RunMarker:
    """The field by which a rank's report is known as one of a run."""

    run_id: str | None = None


@dataclass
class RankProcesses:
    """The host and processes of a rank that mpirun, srun or torchrun started, as pid<k>.json holds them."""

    host: str
    agent: int  # pid of the process that was started for the rank
    worker: int  # pid of its child, which trains


@dataclass
class WorkerExit:
    """The exit of the worker of such a rank, as exit<k>.json holds it."""

    code: int  # negative: the signal
    terminated_by_launcher: bool  # SIGTERM came before its end


@dataclass
class Turn:
    """The turn of a run that takes turns with others, as turn.json holds it: granted by the parent, then over."""

    number: int  # from 1 on
    slot_s: float | None = None  # how long it lasts; None: measuring is over
    round: int = 0  # of the cohort
    over: bool = False  # the ranks are to be stopped; read by their agents on nodes


@dataclass
class PausedWorker:
    """The state of a rank that its agent has parked, as paused<k>.json holds it."""

    turn: int  # number of the turn that is over
    resident_bytes: int | None = None  # its anonymous memory


def paused_worker_path(folder: Path, rank: int) -> Path:
    """Return the path of the file by which the agent of a rank reports that it is parked."""
    return folder / f"paused{rank}.json"


def rank_record_path(folder: Path, rank: int) -> Path:
    """Return the path of the record of a rank."""
    return folder / f"rank{rank}.json"


def turn_path(folder: Path) -> Path:
    """Return the path of the turn of a run that takes turns with others."""
    return folder / TURN_FILE


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


def rank_processes_path(folder: Path, rank: int) -> Path:
    """Return the path of the RankProcesses of a rank."""
    return folder / f"pid{rank}.json"


def worker_exit_path(folder: Path, rank: int) -> Path:
    """Return the path of the WorkerExit of a rank."""
    return folder / f"exit{rank}.json"


def node_report_path(folder: Path, node: int) -> Path:
    """Return the path of the machine facts of one node."""
    return folder / f"machine{node}.json"


def monitor_path(folder: Path, node: int = 0) -> Path:
    """Return the path of the monitor's time series of one node; the first, or only, node has the plain name."""
    return folder / (MONITOR_FILE if node == 0 else MONITOR_FILE.replace(".", f"{node}."))


def try_folder(folder: Path, batch: int, more_memory: bool = False) -> Path:
    """Return the folder of one try in the search for the largest batch."""
    return folder / f"try_{batch}{'_again' if more_memory else ''}"


def try_folders(folder: Path) -> list[Path]:
    """Return the folders of the launches of a run besides its own, as of a batch search; a folder that only has such
    a name is none."""
    paths = [path for path in folder.glob("try_*") if _TRY_FOLDER.fullmatch(path.name)]
    return [path for path in paths if path.is_dir() and not path.is_symlink() and is_run_folder(path)]


def launcher_log_name(folder: Path) -> str | None:
    """Return the name of the log of the program that started the ranks; None where it kept none."""
    return next((name for name in (MPIRUN_LOG, SRUN_LOG, COMMAND_LOG) if (folder / name).exists()), None)


def has_rank_files(names: Iterable[str]) -> bool:
    """Return whether some of these files were written by ranks."""
    return any(name.startswith(("rank", "progress")) for name in names)


def write_rank_file(path: Path, record: Any) -> None:
    """Write what a rank or its agent reports to its launcher, with the id of the run that both belong to."""
    write_json(path, {"run_id": os.environ.get(RUN_ID_VARIABLE), **vars(record)})


def read_rank_file(
    path: Path, record_type: type[Record], run_id: str | None = None, max_bytes: int = MAX_FILE_BYTES
) -> Record | None:
    """Read such a report. None where it is missing or incomplete, or of another run than `run_id`, whose ranks may
    still write after their parent was killed; with `run_id` None that of any run counts."""
    try:
        content = read_plain_file(path, max_bytes=max_bytes)
        of_run = parse_record(content, _RunMarker, ignore_unknown=True).run_id
        return parse_record(content, record_type, ignore_unknown=True) if run_id in (None, of_run) else None
    except (OSError, ValueError):
        return None


def query_file_server(folder: Path) -> None:
    """List a folder that other hosts write to, so that its new files are seen.

    An NFS client remembers for as long as the folder's attributes, 30 s and more, that a file was missing when it was
    looked for; opening the folder has it query the server.
    """
    with contextlib.suppress(OSError):
        os.listdir(folder)


def has_marker(path: Path, record_type: type) -> bool:
    """Return whether `path` is a plain file that reads as such a record, which marks its folder as ours."""
    try:
        read_record(path, record_type, ignore_unknown=True)
    except (OSError, ValueError):
        return False
    return True


def is_run_folder(folder: Path) -> bool:
    """Return whether scalebench made a run in this folder, also one that did not come to its end."""
    return any(has_marker(folder / name, record_type) for name, record_type in MARKERS.items())


def read_run_key(folder: Path) -> RunKey | None:
    """Return the key of the run in `folder`, also of one that did not come to its end; None where there is none."""
    for name, config in ((RESULT_FILE, "spec"), (SPEC_FILE, "config")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            marker: Any = read_record(folder / name, MARKERS[name], ignore_unknown=True)
            return marker.fingerprint, int(getattr(marker, config).get("repeat") or 0)
    return None


def has_successful_run(folder: Path) -> bool:
    """Return whether `folder` holds the result of a successful run, of whichever version of scalebench."""
    with contextlib.suppress(OSError, ValueError):
        return read_record(folder / RESULT_FILE, _ResultMarker, ignore_unknown=True).status == "ok"
    return False


def refuse_foreign_folder(folder: Path) -> None:
    """Raise InputError where `folder` is neither empty nor a run's, so that nothing of it may be touched, and where a
    folder, link or pipe in it has the name of a file of ours, through which we would write elsewhere."""
    if not has_foreign_content(folder, SPEC_FILE):
        return
    if not is_run_folder(folder):
        raise InputError(f"{folder} is not empty and holds no run of scalebench; choose an empty or a new folder")
    for path in sorted(folder.iterdir()):
        if _TRY_FOLDER.fullmatch(path.name) and not path.is_symlink():
            refuse_foreign_folder(path)
        elif _TRY_FOLDER.fullmatch(path.name) or (
            _is_own_name(path.name, OUTPUT_FILES, TRANSIENT_FILES, RECORD_FILES) and not _is_plain(path)
        ):
            raise InputError(f"{path} is a link, or else not a plain file, and scalebench writes there; remove it")


def has_foreign_content(folder: Path, marker: str, *others: str) -> bool:
    """Return whether `folder` holds more than Hydra's own files, a lock, `others`, and the temporary file of a
    `marker`. Raise InputError where it is not a folder, or could not be shown later."""
    check_folder_name(folder)
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in entries
                if not (entry.is_dir(follow_symlinks=False) and _is_made_by_hydra(Path(entry.path)))
            ]
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise InputError(f"{folder} is not a folder; choose another one") from None
    temporaries = {name for name in names if (match := _TEMPORARY.fullmatch(name)) and match[1] == marker}
    return bool(set(names) - temporaries - {LOCK_FILE, *others})


def check_folder_name(folder: Path) -> None:
    """Raise InputError for bytes that are not UTF-8, which no column of a frame and no page can hold."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        name = str(folder).encode("utf-8", "backslashreplace").decode()
        raise InputError(f"{name} is not UTF-8: rename it, or choose another folder") from None


def _is_made_by_hydra(folder: Path) -> bool:
    """Return whether only Hydra has written here; hydra.output_subdir may have given the folder another name."""
    with contextlib.suppress(OSError):
        names = set(os.listdir(folder))
        return names <= HYDRA_FILES and (folder.name == HYDRA_FOLDER or "hydra.yaml" in names)
    return False


def remove_transient_files(folder: Path) -> None:
    """Remove the files by which parent and ranks communicated, also in the folders of tries."""
    for path in (folder, *try_folders(folder)):
        _remove(_own_files(path, TRANSIENT_FILES))


def remove_leftovers(folder: Path) -> None:
    """Remove the files of ranks whose parent was killed before it wrote result.json."""
    _remove(_own_files(folder, OUTPUT_FILES, TRANSIENT_FILES))
    for path in try_folders(folder):
        _remove(_all_own_files(path))
        _drop_if_empty(path)


def remove_run(folder: Path) -> None:
    """Remove a run, if it is there, with its folder if nothing else is in it. The caller knows that it is a run's."""
    if not folder.is_dir():
        return
    _remove(path for path in _all_own_files(folder) if path.name != SPEC_FILE or path.parent != folder)
    for path in [path for path in folder.iterdir() if _TRY_FOLDER.fullmatch(path.name)]:
        _drop_if_empty(path)
    for name in (HYDRA_FOLDER, SUBMITIT_FOLDER):
        _drop_if_empty(folder / name)
    if set(os.listdir(folder)) <= {SPEC_FILE, LOCK_FILE}:  # else it stays, as the mark of a folder that is ours
        (folder / SPEC_FILE).unlink(missing_ok=True)
    _drop_if_empty(folder)


def copy_run(source: Path, target: Path) -> None:
    """Copy the files of a run into another folder: plain ones with names of ours. There may be links in `source` to
    files that only this user can read, made by others who can write there."""
    for path in _all_own_files(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy, follow_symlinks=False)


def is_owned(path: Path) -> bool:
    """Return whether `path` exists, is not a link, and belongs to the user of this process."""
    try:
        return (status := path.lstat()).st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)
    except OSError:
        return False


def _all_own_files(folder: Path) -> Iterator[Path]:
    """Yield the plain files of a run, with those of its tries, of Hydra and of its job."""
    yield from list(_own_files(folder, OUTPUT_FILES, TRANSIENT_FILES, RECORD_FILES))
    for name, files in ((HYDRA_FOLDER, HYDRA_FILES), (SUBMITIT_FOLDER, {JOB_SCRIPT})):
        if not (folder / name).is_symlink():
            yield from (path for file in files if _is_plain(path := folder / name / file))
    for path in try_folders(folder):
        yield from _all_own_files(path)


def _own_files(folder: Path, *kinds: re.Pattern[str]) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if _is_own_name(path.name, *kinds) and _is_plain(path)]


def _is_own_name(name: str, *kinds: re.Pattern[str]) -> bool:
    temporary = _TEMPORARY.fullmatch(name)
    return any(kind.fullmatch(name if temporary is None else temporary[1]) for kind in kinds)


def _is_plain(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        path.unlink(missing_ok=True)


def _drop_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
