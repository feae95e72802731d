"""Bandwidth between devices, and between devices and host memory, on request: bytes per second.

docs/reference/results.md defines each kind of transfer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations, permutations
from typing import NamedTuple

from scalebench.core.probe_record import TransferRecord
from scalebench.core.spec import MeasureSpec
from scalebench.core.units import format_binary_bytes
from scalebench.measure.timing import Clock, check_host_memory, time_action
from scalebench.strategies.base import NotMeasured, Strategy

MEBIBYTE = 2**20
TRANSFER_BYTES = 64 * MEBIBYTE  # so large that neither latency nor a socket's buffers matter
LATENCY_BYTES = 4  # so small that its time is latency
HOST_COPY_BYTES = 256 * MEBIBYTE  # larger than the caches of a processor
TRANSFER_COPIES = 4  # of a buffer that a process may need at once
TRANSFER_BLOCK_BOUNDS = (3, 8)  # the fewest and the most
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
        bounds = TRANSFER_BLOCK_BOUNDS
        repeats, block_s, _ = time_action(strategy, action, settings.block_s, route_s, bounds, clock, MAX_TRANSFERS)
        measured.append(TransferRecord(route.kind, route.source, route.target, size_bytes, repeats, block_s))
        del action  # and with it its buffers, before the next ones are made
    return measured, reasons
