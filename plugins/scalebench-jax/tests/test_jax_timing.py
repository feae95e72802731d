from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from scalebench_jax.timing import MeasuredReplay, ProgramBacklog, device_seconds


class Issued:
    def __init__(self) -> None:
        self.waited = False

    def block_until_ready(self) -> None:
        self.waited = True


def test_backlog_waits_for_the_oldest_only() -> None:
    backlog: Any = ProgramBacklog(max_issued=2)
    issued = [Issued() for _ in range(5)]
    for one in issued:
        backlog.add(one)
    assert [one.waited for one in issued] == [True, True, True, False, False]


def test_measured_steps_begin_after_a_warm_up_step() -> None:
    waits: list[int] = []
    loop = MeasuredReplay("batch", 3, lambda: waits.append(len(seen)))
    seen: list[Any] = []
    for batch in loop:
        seen.append(batch)
        if loop.done(None):
            break
    assert seen == ["batch"] * 4
    assert waits == [1, 4]
    assert 0 < loop.start_ns < loop.end_ns


@pytest.mark.parametrize("slow", [0, 1])
def test_a_quick_device_does_not_wait_for_a_slow_one(slow: int) -> None:
    """Neither the order of the parts nor that of the threads matters."""
    both_wait = threading.Barrier(2, timeout=20)
    quick_is_through = threading.Event()

    def part(number: int) -> Any:
        def ready() -> None:
            both_wait.wait()
            if number == slow:
                assert quick_is_through.wait(20)
            else:
                quick_is_through.set()

        return SimpleNamespace(index=(slice(number, number + 1),), data=SimpleNamespace(block_until_ready=ready))

    shards = SimpleNamespace(addressable_shards=[part(1), part(0)])
    with ThreadPoolExecutor(2) as waiters:
        seconds = device_seconds(lambda: shards, waiters)  # type: ignore[arg-type, return-value]
    assert seconds[slow] == max(seconds)
