"""Runs whose devices keep known bytes of a model of 1000 parameters."""

from __future__ import annotations

from typing import Any

from scalebench.results import BatchTried, MaxBatch, Monitor, Quality, Result
from tests import sweeps

PARAMETERS = 1000
WHOLE = 16 * PARAMETERS  # float32 with Adam


def kept(strategy: str, gpus: int, state: int | None, peak: int | None = None, **changes: Any) -> Result:
    """One ok run; its last device keeps `state` bytes and had `peak`, the others half of that."""
    made = sweeps.run(strategy, gpus, monitor=Monitor(rss_anon_bytes_max=10**6 * gpus), **changes)
    made.workload.model_params = PARAMETERS
    for rank in made.ranks:
        share = 2 if rank.rank < gpus - 1 else 1
        rank.state_bytes = [None if state is None else state // share]
        rank.peak_memory_bytes = [None if peak is None else peak // share]
    return made


def out_of_memory(strategy: str, gpus: int) -> Result:
    made = sweeps.failed(strategy, gpus, status="oom")
    made.workload.model_params = None
    return made


def searched(strategy: str, gpus: int, batch: int, limit: int | None, state: int | None) -> Result:
    """One that looked for the largest batch."""
    tried = [BatchTried(batch, "ok", None, None, None, None)]
    found = MaxBatch(batch, limit, "memory", tried)
    made = kept(strategy, gpus, state, quality=Quality(max_batch=found))
    made.run_id = made.fingerprint = f"{strategy}-{gpus}-searched"
    made.scale.batch_per_device, made.scale.global_batch = batch, batch * gpus
    return made
