"""The child: `python -m scalebench.runner.worker FOLDER` reads spec.json, runs one rank, writes rank<k>.json. Layer 3.

RANK says which rank it is, as torchrun sets it too. No Hydra and no pandas here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from scalebench.config import placement
from scalebench.core import exit_with_parent
from scalebench.core.errors import InputError
from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.run_folder import rank_record_path
from scalebench.core.spec import RunSpec, read_spec
from scalebench.measure.progress import ProgressFile
from scalebench.measure.session import Session, finish
from scalebench.runner import memory_limit
from scalebench.runner.launchers import rank_agent
from scalebench.strategies import registry
from scalebench.strategies.base import Strategy, Unsupported

PARENT = "SCALEBENCH_PARENT_PID"
CLOSE_LIMIT_S = 5  # that a failed rank has to leave its group
OUT_OF_MEMORY = (
    "out of memory",
    "oom when allocating",
    "can't allocate memory",
    "cannot allocate memory",
    "unable to allocate",
)
TENSORFLOW_ORIGIN = (
    "Graph execution error",
    "Detected at node",
    "File ",
)  # TensorFlow begins with these where an operation was made


def main(argv: list[str]) -> int:
    """Run one rank in FOLDER; 0 when it went well, 1 otherwise."""
    rank_agent.become_agent(Path(argv[0]))
    return run_rank(Path(argv[0]), lambda *parts: Session(*parts).run())


def run_rank(folder: Path, body: Callable[[RunSpec, Strategy, RankRecord, ProgressFile], None]) -> int:
    """Run the `body` of a rank with everything around it: its place, its record, its end."""
    arrived_s = time.time()
    end_with_parent()
    rank = int(os.environ["RANK"])
    spec = read_spec(folder)
    if spec.device == "cpu":
        memory_limit.hold(spec.config.measure.memory_limit_bytes)
    pin(spec.places[rank].cpus or placement.cpus_from(os.environ))
    if rank in spec.services:
        return serve(spec, rank, folder)
    record = RankRecord(rank, socket.gethostname(), os.getpid(), threads=spec.places[rank].threads)
    record.marks_s["launch"] = arrived_s
    record.affinity = affinity()
    progress = ProgressFile(folder, rank, os.getpid())
    strategy: Strategy | None = None
    try:
        progress.phase("setup")
        record.marks_s["setup"] = time.time()  # the framework's import is part of it
        strategy = registry.create(spec, rank)
        body(spec, strategy, record, progress)
        _final_barrier(strategy)
        strategy.close()
    except BaseException as error:
        classify(error, record)
        traceback.print_exc()
        write_record(record, progress, folder)
        _close_quietly(strategy)
        return 1
    write_record(record, progress, folder)
    return 0


def serve(spec: RunSpec, rank: int, folder: Path) -> int:
    """Run a rank that serves the chief. It leaves a record only where it fails: the launcher ends it."""
    try:
        registry.create(spec, rank).serve()
    except BaseException as error:
        record = RankRecord(rank, socket.gethostname(), os.getpid(), threads=spec.places[rank].threads)
        classify(error, record)
        traceback.print_exc()
        write_json(rank_record_path(folder, rank), record)
    return 1


def write_record(record: RankRecord, progress: ProgressFile, folder: Path) -> None:
    finish(record, progress)
    write_json(rank_record_path(folder, record.rank), record)


def classify(error: BaseException, record: RankRecord) -> None:
    """Set status and one-line reason of a failure."""
    text = message(error) or type(error).__name__
    if isinstance(error, Unsupported):
        record.status, record.reason = "unsupported", text
    elif isinstance(error, MemoryError) or any(phrase in text.lower() for phrase in OUT_OF_MEMORY):
        record.status, record.reason = "oom", f"out of memory: {text[:300]}"
    elif isinstance(error, InputError):
        record.status, record.reason = "failed", text
    else:
        record.status, record.reason = "failed", f"{type(error).__name__}: {text[:300]}"
    record.failed_at_s = time.time()


def message(error: BaseException) -> str:
    """Return the message in one line. TensorFlow's begin with pages on where an operation was made: left out."""
    text = str(error)
    if text.startswith(TENSORFLOW_ORIGIN):
        parts = text.partition("\n\t [[")[0].split("\n\n")
        text = " ".join(part for part in parts if not part.strip().startswith(TENSORFLOW_ORIGIN)) or text
    return " ".join(text.split())


def pin(cpus: list[int]) -> None:
    """Keep this process on its cores; threads started later inherit it."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def end_with_parent() -> None:
    """Have the kernel end this process when the one that launched it dies, however it dies (Linux).

    A process that no launcher started, as in a test, is left alone.
    """
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    exit_with_parent.exit_with(int(parent), signal.SIGKILL)
    faulthandler.register(
        signal.SIGUSR1, file=sys.__stderr__ or sys.stderr
    )  # the launcher asks a rank that hangs where it is


def _final_barrier(strategy: Strategy) -> None:
    """Wait for all ranks: one that ended would take away what another still fetches for their last collective.

    A rank that gets here has all that it needs, so that failure is harmless: a peer may already have exited.
    """
    with contextlib.suppress(Exception):
        strategy.broadcast(0.0)


def _close_quietly(strategy: Strategy | None) -> None:
    """After a failure the group may be broken, and hold us; what went wrong first has been recorded."""
    signal.alarm(CLOSE_LIMIT_S)  # nothing handles it, so it ends the process, also in the midst of a collective
    try:
        if strategy is not None:
            strategy.close()
    except Exception:
        traceback.print_exc()
    finally:
        signal.alarm(0)


def exit_without_cleanup(status: int) -> NoReturn:
    """End this process with that exit status, past the interpreter's own end.

    What frameworks do at the interpreter's end is no part of a run: it takes up to seconds, and native threads that
    still ran then have aborted ranks whose work was done. After a failure, threads of a broken group (a collective
    that waits for a dead rank) would keep the process. Whatever must be left in order is left before, in close().
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, a closed stream
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
