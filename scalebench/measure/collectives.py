"""The strategy's collective operations by size of message, on request: latency and bandwidth. Layer 2.

Sizes are those of nccl-tests, powers of four here; docs/collectives.md says what a size means in which operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psutil

from scalebench.core.result import COLLECTIVES, IN_PARTS, Collective
from scalebench.core.spec import MeasureSpec, RunSpec
from scalebench.core.units import size_words
from scalebench.measure.timing import WARM_CALLS, Clock, how_many, timed_blocks
from scalebench.strategies.base import NotMeasured, Strategy, probes_of

SIZES = tuple(4**power for power in range(1, 15))  # 4 B to 256 MB
FLOAT_BYTES = 4
BLOCKS = (3, 8)  # at least, where a few operations take long, and at most
MOST_REPEATS = 100_000
SLOWEST_S = 2.0  # of one operation; larger sizes are not tried
COPIES = 3  # of a buffer that a process may need at once
ALONE = "one device has nobody to exchange with"


def measure(
    strategy: Strategy,
    settings: MeasureSpec,
    clock: Clock = time.perf_counter,
    report: Callable[[], None] = lambda: None,
    sizes: Sequence[int] = SIZES,
) -> tuple[list[Collective], dict[str, str]]:
    """(what was measured, operation -> why it was not, or not at all sizes); every rank calls this alike.

    Each operation takes about `settings.probe_s`, or longer where three blocks of its large sizes do; `report` is
    called between sizes, for whoever waits for a sign of life.
    """
    if strategy.spec.gpus == 1:
        return [], dict.fromkeys(COLLECTIVES, ALONE)
    found: list[Collective] = []
    reasons = {}
    for name in COLLECTIVES:
        series = _Series(strategy, settings, clock, name)
        try:
            for size_bytes in usable_sizes(name, strategy.spec.gpus, sizes):
                report()
                found.append(series.at(size_bytes))
        except NotMeasured as reason:
            reasons[name] = str(reason)
    return found, reasons


def usable_sizes(name: str, ranks: int, sizes: Sequence[int] = SIZES) -> list[int]:
    """Bytes, rounded down as nccl-tests does where each rank has a part of as many float32; what is left of nothing is
    left out."""
    unit = FLOAT_BYTES * (ranks if name in IN_PARTS else 1)
    return list(dict.fromkeys(size // unit * unit for size in sizes if size >= unit))


class _Series:
    """One operation at growing sizes."""

    def __init__(self, strategy: Strategy, settings: MeasureSpec, clock: Clock, name: str) -> None:
        self._strategy, self._clock, self._name = strategy, clock, name
        self._share_s = settings.probe_s / len(SIZES)
        self._block_s = min(settings.block_s, self._share_s / BLOCKS[1])
        self._last: tuple[int, float] | None = None  # (bytes, seconds of one operation)

    def at(self, size_bytes: int) -> Collective:
        """NotMeasured where the operation is, or where this size would take too long or too much memory."""
        self._expect(size_bytes)
        check_memory(self._strategy, COPIES * size_bytes, "buffers of " + size_words(size_bytes))
        action = probes_of(self._strategy).collective(self._name, size_bytes)
        once_s = slowest_s(self._strategy, action, 1, self._clock)
        # Once more: a single short operation is mostly waiting for the others to begin.
        repeats = how_many(self._block_s, once_s, 1, MOST_REPEATS)
        once_s = slowest_s(self._strategy, action, repeats, self._clock)
        repeats = how_many(self._block_s, once_s, 1, MOST_REPEATS)
        blocks = how_many(self._share_s, repeats * once_s, *BLOCKS)
        measured = timed_blocks(self._strategy, action, repeats, blocks, self._clock)
        self._last = size_bytes, once_s
        return Collective(self._name, size_bytes, repeats, measured)

    def _expect(self, size_bytes: int) -> None:
        if self._last is None:
            return
        expected_s = self._last[1] * size_bytes / self._last[0]
        if expected_s > SLOWEST_S:
            raise NotMeasured(f"not above {size_words(self._last[0])}: one more would take about {expected_s:.2g} s")


def slowest_s(strategy: Strategy, action: Callable[[], None], repeats: int, clock: Clock) -> float:
    """Seconds of one call of several on the slowest rank, as rank 0 sees it, on every rank; the first calls of all,
    which may set something up, come before."""
    timed_blocks(strategy, action, WARM_CALLS, 1, clock)
    strategy.broadcast(0.0)  # comes back when all have come here, also from an action that rank 0 has no part in
    start_s = clock()
    timed_blocks(strategy, action, repeats, 1, clock)
    strategy.broadcast(0.0)
    return strategy.broadcast(clock() - start_s) / repeats


def check_memory(strategy: Strategy, bytes_per_device: int, what: str) -> None:
    """NotMeasured, on all ranks alike, where the devices of a node do not find so much in rank 0's host memory. GPUs
    have their own, which whoever makes the buffers looks after."""
    if strategy.spec.device != "cpu":
        return
    available = int(strategy.broadcast(float(psutil.virtual_memory().available)))
    wanted = bytes_per_device * devices_per_node(strategy.spec)
    if wanted > available:
        raise NotMeasured(
            f"{what} would take {size_words(wanted)} of memory here, and {size_words(available)} are available"
        )


def devices_per_node(spec: RunSpec) -> int:
    """On the node that has most of the run."""
    return max(sum(len(place.devices) for place in spec.places if place.node == node) for node in range(spec.nodes))
