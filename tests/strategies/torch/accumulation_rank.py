"""A rank that trains in parts, with a schedule and evaluations, and writes its observations to trained<k>.json."""

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
from tests.strategies.torch.builders import make_features, run_training, scheduled_rates

GLOBAL_BATCH, TRAINING, SAMPLES = 41, 167, 221  # ranks differ, and parts; an epoch ends with 3 samples
STEPS, STEPS_PER_EPOCH, EVALUATED_STEPS = 11, 5, (2, 5, 6)


def sources(replica: int, replicas: int) -> tuple[Source, Source]:
    """Return (training source, validation source)."""
    share: dict[str, Any] = {"seed": 3, "replica": replica, "replicas": replicas, "global_batch": GLOBAL_BATCH}
    arrays = make_features(SAMPLES)
    return Source(*arrays, last=TRAINING, **share), Source(*arrays, first=TRAINING, **share)


def run_rank_training(spec: RunSpec, strategy: Any) -> Any:
    training, validation = sources(*strategy.shard())
    rates = scheduled_rates(spec, STEPS, STEPS_PER_EPOCH)
    return run_training(strategy, training, STEPS, rates=rates, evaluate_after=EVALUATED_STEPS, validation=validation)


def body(spec: RunSpec, strategy: Any, record: RankRecord, progress: Any) -> None:
    strategy.setup()
    actual = run_rank_training(spec, strategy)
    observed = {"sums": actual.sums, "metrics": [actual.metrics[made] for made in EVALUATED_STEPS]}
    observed["weights"] = [float(array.sum(dtype=np.float64)) for array in strategy.parameters().values()]
    observed["messages"], observed["backend"] = strategy.message_sizes(), strategy.backend_used()
    profiling.MAX_OPERATIONS = 1000
    operations = strategy.profile(2, None).operations
    observed["sync_operations"] = {
        operation.name: operation.calls
        for operation in operations
        if operation.collective and "broadcast" not in operation.name
    }
    write_json(progress.folder / f"trained{record.rank}.json", observed)


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
