"""The baseline that a user names (`--baseline RUN`), besides the ones that are found automatically."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.analysis.identity import is_comparable
from scalebench.analysis.read_runs import PathLike, find_results, summarize_files
from scalebench.analysis.run_summary import RunSummary
from scalebench.core.errors import InputError, nearest_name

MAX_LISTED_RUNS = 5  # in a message


@dataclass
class NamedBaseline:
    """A run with a throughput, which the columns `given` are measured against."""

    run: RunSummary

    @property
    def label(self) -> str:
        """Describe it for the head of a column: `horovod_nccl gpus=1 on alpha`."""
        scale = self.run.scale
        return f"{scale.strategy} gpus={scale.gpus} on {scale.hardware}"

    def for_run(self, run: RunSummary) -> RunSummary | None:
        """Return the baseline if the run may be compared with it."""
        return self.run if is_comparable(run, self.run) else None


def resolve_named_baseline(baseline: PathLike, runs: Sequence[RunSummary]) -> NamedBaseline:
    """Return the run that `baseline` names: the folder of a run, its result.json, the folder of a sweep with a single
    run, or the run_id of one of `runs`.

    Raises InputError if there is no such run or several, if it was not measured, and if no measured run may be compared
    with it.
    """
    run = _resolve_run(baseline, runs)
    if run.throughput[0] is None:
        raise InputError(f"baseline {baseline} has no throughput: {run.status}: {run.reason or 'not measured'}")
    measured = [other for other in runs if other.throughput[0] is not None]
    same_samples = [other for other in measured if other.sample_key == run.sample_key]
    if measured and not same_samples:
        others = sorted({_format_work(other) for other in measured})
        raise InputError(
            f"baseline {baseline} is of {_format_work(run)}, none of the rows is "
            f"({'; '.join(others[:MAX_LISTED_RUNS])}); speedups are between runs of one model on one data set"
        )
    if measured and not any(is_comparable(other, run) for other in same_samples):
        raise InputError(
            f"baseline {baseline} has {_format_batch(run)}, none of the rows has the same; speedups are between runs "
            "of one batch per device in weak scaling, of one global batch in strong scaling"
        )
    return NamedBaseline(run)


def _resolve_run(baseline: PathLike, runs: Sequence[RunSummary]) -> RunSummary:
    if not Path(baseline).exists():
        by_id = {run.run_id: run for run in runs}
        if str(baseline) not in by_id:
            near = nearest_name(str(baseline), by_id)
            hint = f"did you mean '{near}'?" if near else f"a run_id looks like {next(iter(by_id))}"
            raise InputError(f"no folder or file {baseline}, and no run '{baseline}'; {hint}")
        return by_id[str(baseline)]
    files = find_results([baseline])
    if len(files) > 1:
        names = ", ".join(str(file.parent) for file in files[:MAX_LISTED_RUNS])
        more = f" and {len(files) - MAX_LISTED_RUNS} more" if len(files) > MAX_LISTED_RUNS else ""
        raise InputError(f"baseline {baseline} holds {len(files)} runs; name one of {names}{more}")
    return summarize_files(files)[0]


def _format_work(run: RunSummary) -> str:
    """Return `resnet50 on cifar10`; runs with these names may still differ in the rest of their sample_key."""
    return f"{run.cells['model']} on {run.cells['dataset']}"


def _format_batch(run: RunSummary) -> str:
    scale = run.scale
    return f"{scale.batch_per_device} samples per device, {scale.global_batch} in all, {scale.scaling} scaling"
