"""One of some ranks that are taught: in parts, under a schedule, with evaluations; taught<k>.json tells of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.torch import profiling
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import features, scheduled, taught

GLOBAL_BATCH, TRAINING, SAMPLES = 41, 167, 221  # ranks differ, and parts; an epoch ends with 3 samples
UPDATES, PER_EPOCH, LOOKS = 11, 5, (2, 5, 6)


def sources(replica: int, replicas: int) -> tuple[Source, Source]:
    """(of training, of validation)."""
    share: dict[str, Any] = {"seed": 3, "replica": replica, "replicas": replicas, "global_batch": GLOBAL_BATCH}
    arrays = features(SAMPLES)
    return Source(*arrays, last=TRAINING, **share), Source(*arrays, first=TRAINING, **share)


def lesson(spec: RunSpec, strategy: Any) -> Any:
    training, validation = sources(*strategy.shard())
    rates = scheduled(spec, UPDATES, PER_EPOCH)
    return taught(strategy, training, UPDATES, rates=rates, looks=LOOKS, validation=validation)


def body(spec: RunSpec, strategy: Any, record: RankRecord, progress: Any) -> None:
    strategy.setup()
    found = lesson(spec, strategy)
    seen = {"sums": found.sums, "found": [found.found[made] for made in LOOKS]}
    seen["weights"] = [float(array.sum(dtype=np.float64)) for array in strategy.parameters().values()]
    seen["messages"], seen["backend"] = strategy.message_sizes(), strategy.backend_used()
    profiling.KEPT = 1000
    operations = strategy.profile(2, None).operations
    seen["exchanges"] = {one.name: one.calls for one in operations if one.collective and "broadcast" not in one.name}
    write_json(progress.folder / f"taught{record.rank}.json", seen)


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
