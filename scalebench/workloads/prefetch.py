"""Batches prepared in a background thread while the consumer works on the previous one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class _End:
    """The last item of the queue, with the error that ended the iterable, if there was one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch(iterable: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield the items of `iterable`, which a background thread draws up to `depth` items ahead.

    An error of the iterable is raised here, after the items before it. The thread starts with the first `next` and
    ends when the iterable does, or when this generator is closed or garbage-collected; closing waits for the item that
    is being made. Raises ValueError, at the call, if depth is under 1.
    """
    if depth < 1:
        raise ValueError(f"depth={depth} must be at least 1")
    return _prefetch(iterable, depth)


def _prefetch(iterable: Iterable[T], depth: int) -> Generator[T, None, None]:
    ready: queue.Queue[T | _End] = queue.Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill_queue, args=(iterable, ready, stop), name="prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        _drain(ready)  # the thread may be blocked in put(); once `stop` is set it puts at most one more item
        thread.join()


def _fill_queue(iterable: Iterable[T], ready: queue.Queue[T | _End], stop: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in iterable:
            ready.put(item)
            if stop.is_set():
                return
            del item  # otherwise this thread would keep one more batch alive than the queue holds
    except BaseException as caught:
        error = caught
    ready.put(_End(error))


def _drain(ready: queue.Queue[T | _End]) -> None:
    with suppress(queue.Empty):
        while True:
            ready.get_nowait()
