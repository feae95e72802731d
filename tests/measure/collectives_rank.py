"""A rank that does every collective operation once on numbers it is given, then measures them, and bandwidth, on small
buffers; what came of it stays in the run's folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.core.json_files import write_json
from scalebench.core.result import COLLECTIVES, ProbeRecord, RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure import bandwidth, collectives
from scalebench.measure.collectives import usable_sizes
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import NotMeasured, Strategy

SIZES = (4, 16, 4096, 65536)
TRANSFERS = (65536, 262144)


def sent(name: str, size_bytes: int, ranks: int, rank: int) -> np.ndarray:
    """Of one rank; small whole numbers, whose sums are exact."""
    count = size_bytes // 4 // (ranks if name in ("all_gather", "gather") else 1)
    return (np.arange(count) % 1000 + 1000 * rank + 1).astype(np.float32)


def body(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: Any) -> None:
    strategy.setup()
    arrays = {}
    for name in COLLECTIVES:
        for size in usable_sizes(name, spec.gpus, SIZES):
            try:
                action: Any = strategy.collective(name, size)
            except NotMeasured:
                break
            action.put(lambda rank, name=name, size=size: sent(name, size, spec.gpus, rank))
            action()
            strategy.synchronize()
            arrays |= {f"{name} {size} {rank}": result for rank, result in action.results().items()}
    np.savez(progress.folder / f"results{record.rank}.npz", **arrays)
    settings = spec.config.measure
    collectives.SLOWEST_S = 600.0  # sizes here are far apart, and the machine may be busy
    found = ProbeRecord()
    found.collectives, found.reasons = collectives.measure(strategy, settings, sizes=SIZES)
    found.bandwidth, reasons = bandwidth.measure(strategy, settings, sizes=TRANSFERS)
    found.reasons |= reasons
    write_json(progress.folder / f"probes{record.rank}.json", found)


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
