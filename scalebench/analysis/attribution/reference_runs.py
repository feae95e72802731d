"""The one-device runs that an attribution is measured against: bare and self, at the full and at the local batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scalebench.analysis.identity import Baselines, identify
from scalebench.core.result import Result


def samples_per_device(result: Result) -> float:
    """Return the samples of a step on one device; not an integer if the devices' shares differ by one."""
    return result.scale.samples_per_step / result.scale.gpus


@dataclass(frozen=True)
class ReferenceRuns:
    """Runs on one device; None where there is none. `full` is the run's global batch in strong scaling, else the batch
    of a device, as `local` is always."""

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
        self._results = {result.run_id: result for result in results}
        self._baselines = {
            local_batch: Baselines([identify(result, local_batch) for result in self._results.values()])
            for local_batch in (False, True)
        }

    def find(self, result: Result) -> ReferenceRuns:
        """Return the baselines that the frame uses, and in strong scaling the nearest ones at the local batch."""
        has_local_batch = result.scale.scaling == "strong" and result.scale.gpus > 1
        runs: list[Result | None] = []
        for local_batch in (False, has_local_batch):
            run, baselines = identify(result, local_batch), self._baselines[local_batch]
            both = baselines.find_bare(run), baselines.find_self(run)
            runs += [None if baseline is None else self._results[baseline.run_id] for baseline in both]
        bare, own, local_bare, local_own = runs
        return ReferenceRuns(bare, local_bare, local_own, own)
