"""Batches prepared in a background thread while the consumer works on the previous one."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
END: Any = object()  # what the thread gives when the iterable is over


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
    items, ready = iter(iterable), deque[Future[T]]()
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        ready.extend(pool.submit(next, items, END) for _ in range(depth + 1))  # one of them is in the thread's hand
        while True:
            item = ready.popleft().result()
            if item is END:
                return
            ready.append(pool.submit(next, items, END))  # before the item is used
            yield item
            del item  # or one more batch would be alive than the queue holds
    finally:
        pool.shutdown(cancel_futures=True)
