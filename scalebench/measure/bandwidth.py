"""What goes between devices, and between them and host memory, on request: bytes per second. Layer 2.

docs/collectives.md says what each kind of transfer does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, permutations

from scalebench.core.result import Transfer
from scalebench.core.spec import MeasureSpec
from scalebench.core.units import size_words
from scalebench.measure.collectives import check_memory, slowest_s
from scalebench.measure.timing import Clock, how_many, timed_blocks
from scalebench.strategies.base import NotMeasured, Strategy, probes_of

MEBIBYTE = 2**20
SIZE_BYTES = 64 * MEBIBYTE  # far beyond what latency or a socket's buffers show in
MEMORY_BYTES = 256 * MEBIBYTE  # beyond the caches of a processor
COPIES = 4  # of a buffer that a process may need at once
BLOCKS = (3, 8)
MOST_REPEATS = 1000

BETWEEN = ("send", "peer", "staged")  # by the group's backend; from GPU to GPU; by way of pinned host memory
WITH_HOST = ("host_to_device", "device_to_host", "host_both_ways")


@dataclass(frozen=True)
class Route:
    """One way to measure; source and target are those of results.Transfer."""

    kind: str
    source: int | None
    target: int | None

    @property
    def memory(self) -> bool:
        return self.kind.startswith("memcpy")


def routes(ranks: int, device: str) -> list[Route]:
    """All of them, by kind. `device` is cpu or cuda."""
    found = []
    for way in BETWEEN if device == "cuda" else BETWEEN[:1]:
        found += [Route(f"{way}_one_way", i, j) for i, j in permutations(range(ranks), 2)]
        found += [Route(f"{way}_both_ways", i, j) for i, j in combinations(range(ranks), 2)]
        found += [Route(f"{way}_ring", None, None)] if ranks > 1 else []
    for kind in ("memcpy", *(WITH_HOST if device == "cuda" else ())):
        found += [Route(kind, rank, rank) for rank in range(ranks)]
        found += [Route(f"{kind}_all", None, None)] if ranks > 1 else []
    return found


def measure(
    strategy: Strategy,
    settings: MeasureSpec,
    clock: Clock = time.perf_counter,
    report: Callable[[], None] = lambda: None,
    sizes: tuple[int, int] = (SIZE_BYTES, MEMORY_BYTES),
) -> tuple[list[Transfer], dict[str, str]]:
    """(what was measured, kind of transfer -> why it was not); every rank calls this alike.

    `sizes`: bytes between devices, and within host memory. A kind takes about `settings.probe_s`, or longer where
    three transfers of each pair do; `report` is called between them, for whoever waits for a sign of life.
    """
    found: list[Transfer] = []
    reasons: dict[str, str] = {}
    planned = routes(strategy.spec.processes, strategy.spec.device)
    for route in planned:
        report()
        size_bytes = sizes[1] if route.memory else sizes[0]
        share_s = settings.probe_s / sum(other.kind == route.kind for other in planned)
        try:
            check_memory(strategy, COPIES * size_bytes, f"{route.kind} of {size_words(size_bytes)}")
            action = probes_of(strategy).transfer(route.kind, route.source, route.target, size_bytes)
        except NotMeasured as reason:
            reasons.setdefault(route.kind, str(reason))
            continue
        once_s = slowest_s(strategy, action, 1, clock)
        repeats = how_many(settings.block_s, once_s, 1, MOST_REPEATS)
        blocks = how_many(share_s, repeats * once_s, *BLOCKS)
        measured = timed_blocks(strategy, action, repeats, blocks, clock)
        found.append(Transfer(route.kind, route.source, route.target, size_bytes, repeats, measured))
        del action  # and with it its buffers, before the next ones are made
    return found, reasons
