"""The strategy's collective operations by message size, on request: latency and bandwidth.

Sizes are those of nccl-tests, powers of four here; docs/reference/results.md defines the size of each operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from scalebench.core.probe_record import COLLECTIVES, PER_RANK_COLLECTIVES, CollectiveRecord
from scalebench.core.spec import MeasureSpec
from scalebench.core.units import format_binary_bytes
from scalebench.measure.timing import Clock, check_host_memory, time_action
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
    size_s = settings.probe_s / len(MESSAGE_SIZES)
    block_s = min(settings.block_s, size_s / BLOCK_BOUNDS[1])
    for name in COLLECTIVES:
        last: tuple[int, float] | None = None  # (bytes, seconds of one operation)
        try:
            for size_bytes in list_message_sizes(name, strategy.spec.gpus, sizes):
                report()
                if last is not None and (expected_s := last[1] * size_bytes / last[0]) > MAX_OPERATION_S:
                    size = format_binary_bytes(last[0])
                    raise NotMeasured(f"not above {size}: one more would take about {expected_s:.2g} s")
                what = f"buffers of {format_binary_bytes(size_bytes)}"
                check_host_memory(strategy, BUFFER_COPIES * size_bytes, what)
                action = strategy.collective(name, size_bytes)
                repeats, seconds, once_s = time_action(strategy, action, block_s, size_s, BLOCK_BOUNDS, clock)
                measured.append(CollectiveRecord(name, size_bytes, repeats, seconds))
                last = size_bytes, once_s
                del action  # and with it its buffers, before the next ones are made
        except NotMeasured as reason:  # this operation cannot be measured, or would take too long or too much memory
            reasons[name] = str(reason)
    return measured, reasons


def list_message_sizes(name: str, ranks: int, sizes: Sequence[int] = MESSAGE_SIZES) -> list[int]:
    """Return the sizes in bytes, each once and without 0, rounded down as nccl-tests does where each rank has a part
    of as many float32."""
    unit = FLOAT_BYTES * (ranks if name in PER_RANK_COLLECTIVES else 1)
    return list(dict.fromkeys(size // unit * unit for size in sizes if size >= unit))
