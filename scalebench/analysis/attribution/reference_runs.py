"""The one-device runs that an attribution is measured against: bare and self, at the full and at the local batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scalebench.analysis.baselines import Baselines
from scalebench.analysis.identity import local_batch_key
from scalebench.core.result import Result


def samples_per_device(result: Result) -> float:
    """Return the samples of a step on one device; not an integer if the devices' shares differ by one."""
    return result.scale.samples_per_step / result.scale.gpus


@dataclass(frozen=True)
class ReferenceRuns:
    """Runs on one device; None where there is none.

    `full` is the run's global batch in strong scaling, else the batch of a device; `local` is the batch of a device.
    In weak scaling both are one run.
    """

    bare_full: Result | None
    bare_local: Result | None
    self_local: Result | None
    self_full: Result | None = None
    against: str = "bare"

    def or_self(self) -> ReferenceRuns:
        """Return the strategy's own runs in place of the bare ones if there is no bare run at the full batch."""
        if self.bare_full is not None:
            return self
        return ReferenceRuns(self.self_full, self.self_local, self.self_local, self.self_full, "self")


class ReferenceRunFinder:
    """All good one-device runs among `results`, to look up what a run is measured against."""

    def __init__(self, results: Iterable[Result]) -> None:
        runs = list(results)
        self._full, self._local = Baselines.among(runs), Baselines.among(runs, local_batch_key)

    def find(self, result: Result) -> ReferenceRuns:
        """Return the baselines that the frame uses, and in strong scaling the nearest ones at the local batch."""
        bare, own = self._full.find_bare(result), self._full.find_self(result)
        if result.scale.scaling == "strong" and result.scale.gpus > 1:
            return ReferenceRuns(bare, self._local.find_bare(result), self._local.find_self(result), own)
        return ReferenceRuns(bare, bare, own, own)
