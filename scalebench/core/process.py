"""Starting processes and waiting for them, as the launchers, the monitor and SLURM's commands need it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

POLL_INTERVAL_S = 0.02
# Set by the launcher for rank 0: the address of this host on which it waits for the other ranks; "": all interfaces.
LISTEN_ADDRESS = "SCALEBENCH_LISTEN_ADDRESS"

cancelled = threading.Event()  # set by the program's signal handlers: a mere exception can get lost in a __del__


class StartError(OSError):
    """A process could not be started."""


@contextlib.contextmanager
def as_start_errors() -> Iterator[None]:
    """Raise an OSError of the block as StartError."""
    try:
        yield
    except OSError as error:
        raise StartError(*error.args) from error


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Sleep until the condition holds or the time is over, and return whether it held."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def is_process_alive(pid: int, started_at_s: float) -> bool:
    """Return whether the process that started at this time, in seconds since the epoch, still runs.

    Process numbers are used again, so the number alone does not say.
    """
    import psutil

    try:
        return bool(abs(psutil.Process(pid).create_time() - started_at_s) < 1.0)
    except psutil.Error:
        return False


def read_anonymous_bytes(pid: int | None) -> int | None:
    """Return the anonymous memory of a process of this host; None where it cannot be read."""
    import psutil

    if pid is None:
        return None
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return None
    return int(memory.rss - memory.shared)


class CpuMeter:
    """The CPU seconds that some processes of this host have used, with the processes that they had started by now."""

    def __init__(self, pids: Sequence[int]) -> None:
        import psutil

        self._processes = []
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                self._processes += [process, *process.children(recursive=True)]

    def read_s(self) -> float:
        """Return the seconds of those that still exist."""
        import psutil

        total_s = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block: an interrupted start would lose track of its process."""
    received: list[int] = []
    with _signals_handled_by(lambda number, frame: received.append(number)):
        yield
    if received:
        signal.raise_signal(received[0])


@contextlib.contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM within the block, where files must be written completely."""
    with _signals_handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _signals_handled_by(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in previous:
            signal.signal(number, handler)
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)
