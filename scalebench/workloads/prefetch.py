"""Batches made ready in the background while the consumer is busy with the one before."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class _End:
    """The last thing in the queue, with the error that ended the iterable, if one did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch(iterable: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """The items of `iterable`, drawn by a background thread up to `depth` items ahead.

    An error of the iterable is raised here after the items before it. The thread starts with the
    first item asked for and ends when the iterable does, or when this generator is closed or
    dropped; closing waits for the item that is being made. Raises ValueError if depth is under 1.
    """
    if depth < 1:
        raise ValueError(f"depth={depth} must be at least 1")
    return _prefetch(iterable, depth)


def _prefetch(iterable: Iterable[T], depth: int) -> Generator[T, None, None]:
    ready: queue.Queue[T | _End] = queue.Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(iterable, ready, stop), name="prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        _drain(ready)  # the thread may be blocked in a put; after stop it makes one more at most
        thread.join()


def _fill(iterable: Iterable[T], ready: queue.Queue[T | _End], stop: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in iterable:
            ready.put(item)
            if stop.is_set():
                return
            del item  # or this thread would keep a batch alive on top of those in the queue
    except BaseException as caught:
        error = caught
    ready.put(_End(error))


def _drain(ready: queue.Queue[T | _End]) -> None:
    with suppress(queue.Empty):
        while True:
            ready.get_nowait()
