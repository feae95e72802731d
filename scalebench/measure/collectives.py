"""The strategy's collective operations by message size, on request: latency and bandwidth.

Sizes are those of nccl-tests, powers of four here; docs/reference/results.md defines the size of each operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from scalebench.core.probe_record import COLLECTIVES, PER_RANK_COLLECTIVES, CollectiveRecord
from scalebench.core.spec import MeasureSpec
from scalebench.core.units import format_binary_bytes
from scalebench.measure.timing import (
    MAX_REPEATS,
    Clock,
    check_host_memory,
    repeats_within,
    time_blocks,
    time_on_slowest_rank,
)
from scalebench.strategies.base import NotMeasured, Strategy
from scalebench.workloads.network import FLOAT_BYTES

MESSAGE_SIZES = tuple(4**power for power in range(1, 15))  # 4 B to 256 MB
BLOCK_BOUNDS = (3, 8)  # the fewest, where a few operations take long, and the most
MAX_OPERATION_S = 2.0  # of one operation; larger sizes are not tried
BUFFER_COPIES = 3  # of a buffer that a process may need at once
ONE_DEVICE = "one device has nobody to exchange with"


def measure_collectives(
    strategy: Strategy,
    settings: MeasureSpec,
    clock: Clock = time.perf_counter,
    report: Callable[[], None] = lambda: None,
    sizes: Sequence[int] = MESSAGE_SIZES,
) -> tuple[list[CollectiveRecord], dict[str, str]]:
    """Return the measured operations, and why an operation was not measured, or not at all sizes; every rank has to
    call this.

    Each operation takes about `settings.probe_s`, or longer where three blocks of its large sizes do; `report` is
    called between sizes, as a sign of life.
    """
    if strategy.spec.gpus == 1:
        return [], dict.fromkeys(COLLECTIVES, ONE_DEVICE)
    measured: list[CollectiveRecord] = []
    reasons = {}
    for name in COLLECTIVES:
        sweep = _SizeSweep(strategy, settings, clock, name)
        try:
            for size_bytes in list_message_sizes(name, strategy.spec.gpus, sizes):
                report()
                measured.append(sweep.measure_size(size_bytes))
        except NotMeasured as reason:
            reasons[name] = str(reason)
    return measured, reasons


def list_message_sizes(name: str, ranks: int, sizes: Sequence[int] = MESSAGE_SIZES) -> list[int]:
    """Return the sizes in bytes, each once and without 0, rounded down as nccl-tests does where each rank has a part
    of as many float32."""
    unit = FLOAT_BYTES * (ranks if name in PER_RANK_COLLECTIVES else 1)
    return list(dict.fromkeys(size // unit * unit for size in sizes if size >= unit))


class _SizeSweep:
    """One operation at growing sizes."""

    def __init__(self, strategy: Strategy, settings: MeasureSpec, clock: Clock, name: str) -> None:
        self._strategy, self._clock, self._name = strategy, clock, name
        self._size_s = settings.probe_s / len(MESSAGE_SIZES)
        self._block_s = min(settings.block_s, self._size_s / BLOCK_BOUNDS[1])
        self._last: tuple[int, float] | None = None  # (bytes, seconds of one operation)

    def measure_size(self, size_bytes: int) -> CollectiveRecord:
        """Measure one size. Raise NotMeasured where the operation cannot be measured, or where this size would take
        too long or too much memory."""
        self._refuse_slow(size_bytes)
        check_host_memory(self._strategy, BUFFER_COPIES * size_bytes, "buffers of " + format_binary_bytes(size_bytes))
        action = self._strategy.collective(self._name, size_bytes)
        once_s = time_on_slowest_rank(self._strategy, action, 1, self._clock)
        # Twice: a single short operation is mostly waiting for the other ranks to begin.
        repeats = repeats_within(self._block_s, once_s, 1, MAX_REPEATS)
        once_s = time_on_slowest_rank(self._strategy, action, repeats, self._clock)
        repeats = repeats_within(self._block_s, once_s, 1, MAX_REPEATS)
        blocks = repeats_within(self._size_s, repeats * once_s, *BLOCK_BOUNDS)
        block_s = time_blocks(self._strategy, action, repeats, blocks, self._clock)
        self._last = size_bytes, once_s
        return CollectiveRecord(self._name, size_bytes, repeats, block_s)

    def _refuse_slow(self, size_bytes: int) -> None:
        if self._last is None:
            return
        expected_s = self._last[1] * size_bytes / self._last[0]
        if expected_s > MAX_OPERATION_S:
            last = format_binary_bytes(self._last[0])
            raise NotMeasured(f"not above {last}: one more would take about {expected_s:.2g} s")
