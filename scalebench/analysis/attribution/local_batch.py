"""One-device runs at the batch that each device has in strong scaling. Layer 1.

Equal to the run in all that analysis.comparison_key holds but for its batch and for how it was told: scaling=weak with
train.batch_per_device, or scaling=strong with train.global_batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from scalebench.analysis.attribution.components import share_of_device
from scalebench.analysis.baselines import Baselines
from scalebench.core.result import Result

MARK = " without its batch"  # no run_id or fingerprint of a real run ends so
BATCH_KEYS = ("batch_per_device", "global_batch")


class LocalBaselines:
    """The good one-device runs among results, by their batch."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._records: dict[str, Result] = {}
        by_batch: dict[int, list[Result]] = {}
        for result in results:
            if result.scale.gpus == 1:
                self._records[result.run_id] = result
                by_batch.setdefault(result.scale.global_batch, []).append(_without_batch(result))
        self._by_batch = {batch: Baselines.among(alike) for batch, alike in by_batch.items()}

    def bare_of(self, result: Result) -> Result | None:
        """One device, no wrapper, at the local batch of `result`; the nearest as for all baselines."""
        found = self._among(result)
        return None if found is None else self._record(found.bare_of(_without_batch(result)))

    def self_of(self, result: Result) -> Result | None:
        """The same strategy on one device at the local batch."""
        found = self._among(result)
        return None if found is None else self._record(found.self_of(_without_batch(result)))

    def _among(self, result: Result) -> Baselines[Result] | None:
        batch = share_of_device(result)
        return self._by_batch.get(int(batch)) if batch.is_integer() else None

    def _record(self, found: Result | None) -> Result | None:
        return None if found is None else self._records[found.run_id.removesuffix(MARK)]


def _without_batch(result: Result) -> Result:
    """A copy that tells nothing of its batch, by which unlike batches of one workload compare as equal."""
    train: dict[str, Any] = {k: v for k, v in result.spec.get("train", {}).items() if k not in BATCH_KEYS}
    spec = {**result.spec, "train": train, "scaling": None}
    names = {"run_id": result.run_id + MARK, "fingerprint": result.fingerprint + MARK}
    return dataclasses.replace(result, spec=spec, **names)  # type: ignore[arg-type]
