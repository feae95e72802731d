"""The names of all files in the folder of a run, and which of them are removed when it ends."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SPEC_FILE = "spec.json"
RESULT_FILE = "result.json"
UNREADABLE_RESULT_FILE = "result.unreadable.json"  # an incomplete result.json, kept for inspection
MONITOR_FILE = "monitor.parquet"  # the time series of the first, or only, node
MERGED_TRACE_FILE = "trace.json.gz"
TIMELINE_FILE = "timeline.json"  # Horovod's timeline of gradient synchronizations
PLUGIN_LOG = "plugin.log"  # the traceback of a plugin that failed before there was a process
MPIRUN_LOG, SRUN_LOG = "mpirun.log", "srun.log"  # what the program that started the ranks printed
JOB_FILE = "job.json"  # the job number of a run that is a job of SLURM
JOB_LOG = "job.log"  # output of the job, besides the logs of its ranks
JOB_SCRIPT = "job.sh"
SUBMITIT_FOLDER = "slurm"
TORCHRUN_FILE = "by_hand.json"  # exists while the launcher `by_hand` waits for the ranks
TURN_FILE = "turn.json"  # the turn that a run of a cohort has, or had last
STALE_TURN_LIMIT_S = 5.0  # for a shared file system to show turn.json as it is
STOP_FILE = "stop.json"  # exists when the ranks under torchrun must end; says whether the run succeeded
SRUN_HOSTS_FILE = "srun_hosts.txt"  # the node of each rank, where nodes have different numbers of ranks
TRY_SPEC_FILE = "try.json"  # the spec of one try of a batch search: as spec.json it would look like an unfinished run

_RANK_TRACE = re.compile(r"trace(\d+)\.json\.gz")
_TRY_FOLDER = re.compile(r"try_\d+(_again)?")
# By these the parent and its ranks communicate; they are removed once result.json is written.
TRANSIENT_FILES = (
    "progress*.json",
    "pid*.json",
    "exit*.json",
    "paused*.json",
    "machine*.json",
    "room*",
    TURN_FILE,
    TORCHRUN_FILE,
    STOP_FILE,
)
OUTPUT_FILES = (
    "rank*.json", "rank*.log", "trace*.json.gz", f"{Path(MONITOR_FILE).stem}*", MPIRUN_LOG, SRUN_LOG, PLUGIN_LOG
)  # fmt: skip


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


def reserved_room_path(folder: Path, rank: int | None = None) -> Path:
    """Return the path of the room that a rank reserves for its record, or the parent for its result."""
    return folder / f"room{'' if rank is None else rank}"


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
    """Return the folders of all tries of the batch search of a run."""
    paths = [path for path in folder.glob("try_*") if _TRY_FOLDER.fullmatch(path.name)]
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def launcher_log_name(folder: Path) -> str | None:
    """Return the name of the log of the program that started the ranks; None where it kept none."""
    return next((name for name in (MPIRUN_LOG, SRUN_LOG) if (folder / name).exists()), None)


def has_rank_files(names: Iterable[str]) -> bool:
    """Return whether some of these files were written by ranks."""
    return any(name.startswith(("rank", "progress")) for name in names)


def remove_transient_files(folder: Path) -> None:
    """Remove the files by which parent and ranks communicated, also in the folders of tries."""
    for path in (folder, *try_folders(folder)):
        _remove(path, TRANSIENT_FILES)


def remove_leftovers(folder: Path) -> None:
    """Remove the files of ranks whose parent was killed before it wrote result.json."""
    _remove(folder, (*OUTPUT_FILES, *TRANSIENT_FILES))
    for path in try_folders(folder):
        with contextlib.suppress(OSError):
            shutil.rmtree(path)


def _remove(folder: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
