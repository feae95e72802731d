"""The strategy's collective operations by message size, and transfers between devices and host memory, on request.

Sizes are those of nccl-tests, powers of four here; docs/reference/results.md defines the size of each operation and the
kinds of transfers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from scalebench.core.probe_record import COLLECTIVES, PER_RANK_COLLECTIVES, CollectiveRecord, TransferRecord
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


TRANSFER_BYTES = 64 * 2**20  # so large that neither latency nor a socket's buffers matter
LATENCY_BYTES = 4  # so small that its time is latency
HOST_COPY_BYTES = 256 * 2**20  # larger than the caches of a processor
TRANSFER_COPIES = 4  # of a buffer that a process may need at once
MAX_TRANSFERS = 1000  # in one block

BETWEEN_DEVICES = ("send", "peer", "staged")  # by the group's backend; from GPU to GPU; by way of pinned host memory
WITHIN_DEVICE = "device_copy"  # the bandwidth of a GPU's own memory, which is read and written
WITH_HOST = ("host_to_device", "device_to_host", "host_both_ways")


class Route(NamedTuple):
    """One transfer to measure; source and target are those of TransferRecord."""

    kind: str
    source: int | None
    target: int | None


def list_routes(ranks: int, device: str) -> list[Route]:
    """Return all routes between this many ranks, by kind. `device` is cpu or cuda."""
    routes = []
    for way in BETWEEN_DEVICES if device == "cuda" else BETWEEN_DEVICES[:1]:
        pairs = list(permutations(range(ranks), 2))
        routes += [Route(f"{way}_{what}", i, j) for what in ("latency", "one_way") for i, j in pairs]
        routes += [Route(f"{way}_both_ways", i, j) for i, j in combinations(range(ranks), 2)]
        routes += [Route(f"{way}_ring", None, None)] if ranks > 1 else []
    for kind in ("memcpy", *((WITHIN_DEVICE, *WITH_HOST) if device == "cuda" else ())):
        routes += [Route(kind, rank, rank) for rank in range(ranks)]
        routes += [Route(f"{kind}_all", None, None)] if ranks > 1 else []
    # A copy to the GPU of another rank leaves this process memory there (a CUDA context), so that these come last.
    return sorted(routes, key=lambda route: route.kind.startswith(("peer", "staged")))


def measure_bandwidth(
    strategy: Strategy,
    settings: MeasureSpec,
    clock: Clock = time.perf_counter,
    report: Callable[[], None] = lambda: None,
    sizes: tuple[int, int] = (TRANSFER_BYTES, HOST_COPY_BYTES),
) -> tuple[list[TransferRecord], dict[str, str]]:
    """Return the measured transfers, and why a kind of transfer was not measured; every rank has to call this.

    `sizes`: bytes between devices, and within host memory. A kind takes about `settings.probe_s`, or longer where
    three transfers of each pair do; `report` is called between transfers, as a sign of life.
    """
    measured: list[TransferRecord] = []
    reasons: dict[str, str] = {}
    routes = list_routes(strategy.spec.processes, strategy.spec.device)
    for route in routes:
        report()
        size_bytes = sizes[route.kind.startswith("memcpy")]
        if route.kind.endswith("_latency"):
            size_bytes = LATENCY_BYTES
        route_s = settings.probe_s / sum(other.kind == route.kind for other in routes)
        try:
            what = f"{route.kind} of {format_binary_bytes(size_bytes)}"
            check_host_memory(strategy, TRANSFER_COPIES * size_bytes, what)
            action = strategy.transfer(route.kind, route.source, route.target, size_bytes)
        except NotMeasured as reason:
            reasons.setdefault(route.kind, str(reason))
            continue
        repeats, block_s, _ = time_action(
            strategy, action, settings.block_s, route_s, BLOCK_BOUNDS, clock, MAX_TRANSFERS
        )
        measured.append(TransferRecord(route.kind, route.source, route.target, size_bytes, repeats, block_s))
        del action  # and with it its buffers, before the next ones are made
    return measured, reasons
