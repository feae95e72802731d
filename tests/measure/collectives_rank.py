"""A rank that does every collective operation once, then measures them and bandwidth, on small buffers."""

import sys
from pathlib import Path

import numpy as np

from scalebench.core.json_files import write_json
from scalebench.core.result import COLLECTIVES, ProbeRecord
from scalebench.measure import bandwidth, collectives
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import NotMeasured

SIZES = (4, 16, 4096, 65536)
TRANSFERS = (65536, 262144)


def sent(name, size_bytes, ranks, rank):
    """Of one rank; small whole numbers, whose sums are exact."""
    count = size_bytes // 4 // (ranks if name in ("all_gather", "gather") else 1)
    return (np.arange(count) % 1000 + 1000 * rank + 1).astype(np.float32)


def body(spec, strategy, record, progress):
    strategy.setup()
    arrays = {}
    for name in COLLECTIVES:
        for size in collectives.list_message_sizes(name, spec.gpus, SIZES):
            try:
                action = strategy.collective(name, size)
            except NotMeasured:
                break
            action.put(lambda rank, name=name, size=size: sent(name, size, spec.gpus, rank))
            action()
            strategy.synchronize()
            arrays |= {f"{name} {size} {rank}": result for rank, result in action.results().items()}
    np.savez(progress.folder / f"results{record.rank}.npz", **arrays)
    settings = spec.config.measure
    collectives.MAX_OPERATION_S = 600.0  # sizes here are far apart, and the machine may be busy
    found = ProbeRecord()
    found.collectives, found.reasons = collectives.measure_collectives(strategy, settings, sizes=SIZES)
    found.bandwidth, reasons = bandwidth.measure_bandwidth(strategy, settings, sizes=TRANSFERS)
    found.reasons |= reasons
    write_json(progress.folder / f"probes{record.rank}.json", found)


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
