"""Starting processes and waiting for them, as the launchers, the monitor and SLURM's commands need it. Layer 0."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

POLL_S = 0.02

cancelled = threading.Event()  # set by the program's signal handlers: an exception alone can get lost in a __del__


class StartError(OSError):
    """A process could not be started."""


@contextlib.contextmanager
def start_errors() -> Iterator[None]:
    """Turn an OSError into a StartError."""
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
        time.sleep(POLL_S)
    return True


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the end: an interrupted start would lose sight of its process."""
    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield
        return
    came: list[int] = []
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    try:
        for sign in before:
            signal.signal(sign, lambda number, frame: came.append(number))
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
    if came:
        signal.raise_signal(came[0])


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM: what is written in here must be written whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    try:
        for sign in before:
            signal.signal(sign, signal.SIG_IGN)
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
