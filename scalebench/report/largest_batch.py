"""What a search for the largest batch found, in one line. Layer 3."""

from __future__ import annotations

from scalebench.report.units import size
from scalebench.results import Result


def words(result: Result) -> str:
    """`simulated gpus=2: the largest batch is 21 per device, 42 global; 22 does not fit within 500 MB (7 tries)`.
    ValueError of a run that searched for none, or in vain."""
    search = result.quality.max_batch
    if search is None or search.batch_per_device is None:
        raise ValueError(f"{result.run_id} found no largest batch")
    found, gpus = search.batch_per_device, result.scale.gpus
    tries = f"{len(search.tried)} {'try' if len(search.tried) == 1 else 'tries'}"
    within = "" if search.limit_bytes is None else f" within {size(search.limit_bytes)} a process"
    if search.bounded_by == "data":
        samples = f"{found * gpus} of the {result.workload.train_samples} training samples"
        why = f"it fits{within}, and the data set has no larger one ({samples}; {tries}): raise dataset.size"
    else:
        least = min(tried.batch_per_device for tried in search.tried if tried.status != "ok")
        why = f"{least} does not fit{within or ' into memory'} ({tries})"
    return f"{result.scale.strategy} gpus={gpus}: the largest batch is {found} per device, {found * gpus} global; {why}"
