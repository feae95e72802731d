"""Actions timed by themselves, in blocks that all ranks begin together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import psutil

from scalebench.core.units import format_binary_bytes
from scalebench.strategies.base import NotMeasured, Strategy

Clock = Callable[[], float]
WARMUP_CALLS = 2  # the first may compile, the second may still set something up
MAX_REPEATS = 100_000  # of a short action in one block
# On a GPU, which runs behind the host, blocks are longer and have more steps: choose_block_s says why.
ASYNC_BLOCK_S, ASYNC_BLOCK_STEPS, MAX_ASYNC_BLOCK_S = 0.25, 10, 2.5


def time_blocks(
    strategy: Strategy, action: Callable[[], None], repeats: int, blocks: int, clock: Clock = time.perf_counter
) -> list[float]:
    """Return the seconds of each block of `repeats` calls, as this rank sees them; every rank has to call this."""
    seconds = []
    for _ in range(blocks):
        strategy.broadcast(0.0)  # a barrier
        start_s = clock()
        for _ in range(repeats):
            action()
        strategy.synchronize()
        seconds.append(clock() - start_s)
    return seconds


def time_warm_call(strategy: Strategy, action: Callable[[], None], clock: Clock = time.perf_counter) -> float:
    """Return the seconds of one call after a few that do not count, as rank 0 sees them, on every rank."""
    time_blocks(strategy, action, WARMUP_CALLS, 1, clock)
    return strategy.broadcast(time_blocks(strategy, action, 1, 1, clock)[0])


def time_on_slowest_rank(strategy: Strategy, action: Callable[[], None], repeats: int, clock: Clock) -> float:
    """Return the mean seconds of `repeats` calls on the slowest rank, as rank 0 sees them, on every rank; the very
    first calls, which may set something up, do not count."""
    time_blocks(strategy, action, WARMUP_CALLS, 1, clock)
    strategy.broadcast(0.0)  # a barrier, also after an action that rank 0 takes no part in
    start_s = clock()
    time_blocks(strategy, action, repeats, 1, clock)
    strategy.broadcast(0.0)
    return strategy.broadcast(clock() - start_s) / repeats


def time_action(
    strategy: Strategy,
    action: Callable[[], None],
    block_s: float,
    total_s: float,
    bounds: tuple[int, int],
    clock: Clock,
    max_repeats: int = MAX_REPEATS,
) -> tuple[int, list[float], float]:
    """Time an action in blocks of about `block_s`, within `bounds` as many as fill `total_s`. Return the calls in each
    block and its seconds, and those of one call on the slowest rank. Every rank has to call this."""
    repeats = 1
    for _ in range(2):  # a single short action is mostly waiting for the other ranks to begin
        once_s = time_on_slowest_rank(strategy, action, repeats, clock)
        repeats = repeats_within(block_s, once_s, 1, max_repeats)
    blocks = repeats_within(total_s, repeats * once_s, *bounds)
    return repeats, time_blocks(strategy, action, repeats, blocks, clock), once_s


def choose_block_s(device: str, step_s: float, block_s: float) -> float:
    """Return the seconds of a block of steps on this kind of device; `block_s` is what the settings request.

    A GPU works on what its host has queued. The synchronization at the end of a block empties the queue, so the device
    idles until the host has launched the first step of the next block: for 3 to 10 ms, which would be 6 to 20 % of a
    block of 50 ms, most for the fastest strategy. Blocks of at least 0.25 s and ten steps keep it near 1 %. Steps so
    slow that ten of them take longer than 2.5 s need fewer for that.
    """
    if device != "cuda":
        return block_s
    return max(block_s, ASYNC_BLOCK_S, min(ASYNC_BLOCK_STEPS * step_s, MAX_ASYNC_BLOCK_S))


def repeats_within(limit_s: float, each_s: float, minimum: int, maximum: int) -> int:
    """Return how many repeats of `each_s` fill `limit_s`, within bounds."""
    return maximum if each_s <= 0 else max(minimum, round(min(maximum, limit_s / each_s)))


def check_host_memory(strategy: Strategy, bytes_per_device: int, what: str) -> None:
    """Raise NotMeasured, on all ranks, where the devices of a node need more host memory than rank 0's host has
    available. GPUs have memory of their own, which the code that allocates the buffers has to check."""
    if strategy.spec.device != "cpu":
        return
    available_bytes = int(strategy.broadcast(float(psutil.virtual_memory().available)))
    devices: Counter[int] = Counter()
    for place in strategy.spec.places:
        devices[place.node] += len(place.devices)
    needed_bytes = bytes_per_device * max(devices.values())
    if needed_bytes > available_bytes:
        raise NotMeasured(
            f"{what} would take {format_binary_bytes(needed_bytes)} of memory here, and "
            f"{format_binary_bytes(available_bytes)} are available"
        )
