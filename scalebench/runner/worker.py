"""The child: `python -m scalebench.runner.worker FOLDER` reads spec.json, runs one rank, writes rank<k>.json.

RANK is its rank, as under torchrun. This module imports neither Hydra nor pandas.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from scalebench.config import placement
from scalebench.core import exit_with_parent
from scalebench.core.errors import InputError, describe_exception, find_remote_cause
from scalebench.core.machine import gpus
from scalebench.core.result import RankRecord
from scalebench.core.run_folder import rank_record_path, write_rank_file
from scalebench.core.spec import RunSpec, read_spec
from scalebench.measure import turns
from scalebench.measure.progress import ProgressFile
from scalebench.measure.session import Session, WrongBackend, complete_record
from scalebench.measure.train_to_target import Diverged
from scalebench.runner import memory_limit
from scalebench.runner.launchers.rank_environment import find_interface_in_use
from scalebench.runner.launchers.supervise import STACK_SIGNAL
from scalebench.strategies import registry
from scalebench.strategies.base import Strategy, Unsupported, WrongGroup

CLOSE_LIMIT_S = 5  # for a failed rank to leave its group
AUTOGRAPH_FILE = "__autograph_generated_file"
# TensorFlow begins a message with these to show where an operation was created.
TENSORFLOW_ORIGIN = ("Graph execution error", "Detected at node", "File ")


def main(argv: list[str]) -> int:
    """Run one rank in FOLDER; return 0 when it succeeded, 1 otherwise."""
    return run_rank(Path(argv[0]), lambda *parts: Session(*parts).run())


def run_rank(folder: Path, body: Callable[[RunSpec, Strategy, RankRecord, ProgressFile], None]) -> int:
    """Run the `body` of a rank, pinned to its cores and below its memory limit, and write its record at the end."""
    launched_s = time.time()
    end_with_parent()
    rank = int(os.environ["RANK"])
    spec = read_spec(folder)
    if spec.device == "cpu":
        memory_limit.apply_limit(spec.config.measure.memory_limit_bytes)
    pin_to_cpus(spec.places[rank].cpus or placement.read_cpus_variable(os.environ))
    if rank in spec.services:
        return serve_rank(spec, rank, folder)
    record = RankRecord(rank, socket.gethostname(), os.getpid(), threads=spec.places[rank].threads)
    record.marks_s["launch"] = launched_s
    record.affinity = cpu_affinity()
    record.interface = find_interface_in_use(spec, rank)
    if spec.device == "cuda":
        place = spec.places[rank]
        is_script = spec.config.script.path is not None  # which sees the GPUs of its run only
        first = place.local_rank * len(place.devices)
        record.gpus = gpus.name_visible_gpus(range(first, first + len(place.devices)) if is_script else place.devices)
    progress = ProgressFile(folder, rank, os.getpid())
    strategy: Strategy | None = None

    def measure() -> int:
        nonlocal strategy
        try:
            progress.enter_phase("setup")
            record.marks_s["setup"] = time.time()  # the framework's import is part of it
            strategy = strategy or import_strategy(spec, rank)
            body(spec, strategy, record, progress)
            # One that exits too early can break the last collective of another; a peer may already have exited.
            with contextlib.suppress(Exception):
                strategy.broadcast(0.0)
            strategy.close()
        except BaseException as error:
            if is_headline_safe(error, record):
                phase = "probes" if "probes" in record.marks_s else "evaluate"
                record.probe_failures.setdefault(phase, describe_exception(error))
            else:
                classify_error(error, record)
            with contextlib.suppress(OSError):  # the log of this rank is on the same full disk
                traceback.print_exc()
            write_record(record, progress, folder)
            _close_quietly(strategy)
            return 1
        write_record(record, progress, folder)
        return 0

    if spec.config.script.path is None:
        return measure()
    strategy = registry.create_strategy(spec, rank)
    if spec.cohort is not None:
        turns.open_wakeups()  # a signal handler can only be set here
    faulthandler.enable()  # a fault of its libraries is the user's to find
    threading.Thread(target=lambda: exit_without_cleanup(measure()), name="scalebench", daemon=True).start()
    strategy.run_program()
    threading.Event().wait()  # the other thread ends the process
    return 1


def import_strategy(spec: RunSpec, rank: int) -> Strategy:
    """Create the strategy with the garbage collector off: the import of a framework makes half a million objects that
    stay, and going through them again and again takes a fifth of its time."""
    gc.disable()
    try:
        return registry.create_strategy(spec, rank)
    finally:
        gc.freeze()  # later collections leave these objects out
        gc.enable()


def serve_rank(spec: RunSpec, rank: int, folder: Path) -> int:
    """Run a rank that serves the chief until the launcher ends it. It leaves a record only where it fails."""
    try:
        registry.create_strategy(spec, rank).serve()
    except BaseException as error:
        traceback.print_exc()
        record = RankRecord(rank, socket.gethostname(), os.getpid(), threads=spec.places[rank].threads)
        classify_error(error, record)
        write_rank_file(rank_record_path(folder, rank), record)
    return 1


def write_record(record: RankRecord, progress: ProgressFile, folder: Path) -> None:
    complete_record(record, progress)
    write_rank_file(rank_record_path(folder, record.rank), record)


def is_headline_safe(error: BaseException, record: RankRecord) -> bool:
    """Return whether a failure came after the figures of the run, and says nothing about them."""
    is_measured = not record.marks_s.keys().isdisjoint(("evaluate", "probes"))
    return is_measured and isinstance(error, Exception) and not isinstance(error, (WrongBackend, Diverged))


def classify_error(error: BaseException, record: RankRecord) -> None:
    """Set the status and one-line reason of a failure."""
    text = one_line_message(error) or type(error).__name__
    if isinstance(error, Unsupported):
        record.status, record.reason = "unsupported", text
    elif (full := memory_limit.full_shared_memory_reason(text)) is not None:
        record.status, record.reason = "failed", f"{full} ({text[:300]})"
    elif isinstance(error, MemoryError) or memory_limit.OUT_OF_MEMORY.search(text):
        record.status, record.reason = "oom", f"out of memory: {text[:300]}"
    elif isinstance(error, InputError | WrongGroup | WrongBackend):
        record.status, record.reason = "failed", text
    elif (cause := find_remote_cause(str(error))) is not None:
        record.status, record.reason = "failed", cause[:300]
    else:
        record.status, record.reason = "failed", f"{type(error).__name__}: {text[:300]}"
    record.failed_at_s = time.time()


def one_line_message(error: BaseException) -> str:
    """Return the message in one line, without the pages of TensorFlow's messages on where an operation was created."""
    text = str(error)
    if text.startswith(TENSORFLOW_ORIGIN):
        parts = text.partition("\n\t [[")[0].split("\n\n")
        text = " ".join(part for part in parts if not part.strip().startswith(TENSORFLOW_ORIGIN)) or text
    return " ".join(text.split())


def pin_to_cpus(cpus: list[int]) -> None:
    """Pin this process to its cores; threads started later inherit that."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def cpu_affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def end_with_parent() -> None:
    """Have the kernel end this process when the one that launched it dies, however it dies (Linux).

    A process that no launcher started, as in a test, goes on.
    """
    parent = os.environ.get(exit_with_parent.PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    exit_with_parent.tie_to_parent(int(parent), signal.SIGKILL)
    for number in {signal.SIGUSR1, STACK_SIGNAL}:  # srun forwards the first one to agents and workers alike
        faulthandler.register(number, file=sys.__stderr__ or sys.stderr)


def _close_quietly(strategy: Strategy | None) -> None:
    """Close a strategy after a failure, which has been recorded. The group may be broken, so that this may hang."""
    signal.alarm(CLOSE_LIMIT_S)  # not handled, so that it ends the process, also within a collective
    try:
        if strategy is not None:
            strategy.close()
    except Exception:
        traceback.print_exc()
    finally:
        signal.alarm(0)


def exit_without_cleanup(status: int) -> NoReturn:
    """End this process with that exit status, without the interpreter's clean-up.

    The clean-up of frameworks at the interpreter's end is not part of a run: it takes up to seconds, and native threads
    that still ran then have aborted ranks whose work was done. After a failure, threads of a broken group (a collective
    that waits for a dead rank) would keep the process alive. close() does whatever has to be done before.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, a closed stream
            stream.flush()
    for name, module in list(sys.modules.items()):
        if name.startswith(AUTOGRAPH_FILE):  # a temporary file, which TensorFlow removes in its clean-up
            with contextlib.suppress(OSError):
                os.unlink(str(module.__file__))
    os._exit(status)


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
