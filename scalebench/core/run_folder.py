"""The names of all files that a run keeps in its folder, and which of them do not outlive it. Layer 0."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SPEC_FILE = "spec.json"
RESULT_FILE = "result.json"
UNREADABLE_RESULT_FILE = "result.unreadable.json"  # a result.json that was no whole record, kept to be looked at
MONITOR_FILE = "monitor.parquet"  # the time series of the first, or only, node
MERGED_TRACE_FILE = "trace.json.gz"
TIMELINE_FILE = "timeline.json"  # what Horovod wrote of its exchanges
PLUGIN_LOG = "plugin.log"  # the traceback of a plugin that failed before there was a process
MPIRUN_LOG, SRUN_LOG = "mpirun.log", "srun.log"  # what the program that started the ranks printed
JOB_FILE = "job.json"  # a run that is a job of SLURM: its number
JOB_LOG = "job.log"  # what the job prints, beside the logs of its ranks
JOB_SCRIPT = "job.sh"
SUBMITIT_FOLDER = "slurm"
TORCHRUN_FILE = "by_hand.json"  # exists while the launcher `by_hand` waits for the ranks of the folder
STOP_FILE = "stop.json"  # exists when the ranks under torchrun must end: whether the run went well
SRUN_HOSTS_FILE = "srun_hosts.txt"  # the node of each rank, where nodes have unequally many
TRY_SPEC_FILE = "try.json"  # the spec of one try of a batch search: under spec.json it would pass for an unfinished run

_RANK_TRACE = re.compile(r"trace(\d+)\.json\.gz")
_TRY_FOLDER = re.compile(r"try_\d+(_again)?")
# By these the parent and its ranks communicate; nothing of them is kept once result.json is written.
TRANSIENT_FILES = ("progress*.json", "pid*.json", "exit*.json", "machine*.json", TORCHRUN_FILE, STOP_FILE)
OUTPUT_FILES = (
    "rank*.json", "rank*.log", "trace*.json.gz", f"{Path(MONITOR_FILE).stem}*", MPIRUN_LOG, SRUN_LOG, PLUGIN_LOG
)  # fmt: skip


def rank_record_path(folder: Path, rank: int) -> Path:
    """Return the path of what a rank measured."""
    return folder / f"rank{rank}.json"


def rank_log_name(rank: int) -> str:
    """Return the name of the file with everything that a rank prints."""
    return f"rank{rank}.log"


def rank_trace_name(rank: int) -> str:
    """Return the name of the Chrome trace of one rank, which exists until the traces are merged."""
    return f"trace{rank}.json.gz"


def rank_traces(folder: Path) -> dict[int, Path]:
    """Return the Chrome traces of single ranks by rank."""
    traces = {int(match[1]): path for path in folder.iterdir() if (match := _RANK_TRACE.fullmatch(path.name))}
    return dict(sorted(traces.items()))


def progress_path(folder: Path, rank: int) -> Path:
    """Return the path of what a rank is doing now."""
    return folder / f"progress{rank}.json"


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
    """Remove what parent and ranks communicated by, also in the folders of tries."""
    for where in (folder, *try_folders(folder)):
        _remove(where, TRANSIENT_FILES)


def remove_leftovers(folder: Path) -> None:
    """Remove what the ranks of a run left whose parent was killed before it wrote result.json."""
    _remove(folder, (*OUTPUT_FILES, *TRANSIENT_FILES))
    for path in try_folders(folder):
        with contextlib.suppress(OSError):
            shutil.rmtree(path)


def _remove(folder: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


@dataclass
class RankProcesses:
    """pid<k>.json: where a rank runs that mpirun, srun or torchrun started."""

    host: str
    agent: int  # the process that was started for the rank
    worker: int  # its child, which trains


@dataclass
class WorkerExit:
    """exit<k>.json: how the worker of such a rank ended."""

    code: int  # negative: the signal
    terminated_by_launcher: bool  # SIGTERM came before its end


def rank_processes_path(folder: Path, rank: int) -> Path:
    """Return the path of the process ids of a rank; see RankProcesses."""
    return folder / f"pid{rank}.json"


def worker_exit_path(folder: Path, rank: int) -> Path:
    """Return the path of how the worker of a rank ended; see WorkerExit."""
    return folder / f"exit{rank}.json"
