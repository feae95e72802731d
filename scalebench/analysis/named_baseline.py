"""The baseline that a person names, instead of or beside those that are found: `--baseline RUN`. Layer 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.analysis.read_runs import PathLike, figures_in, find
from scalebench.analysis.run_summary import Figures
from scalebench.core.errors import InputError, nearest

MOST_NAMED = 5  # runs, in a message


@dataclass
class Given:
    """One run that went well."""

    run: Figures

    @property
    def words(self) -> str:
        """`horovod_nccl gpus=1 on alpha`, for a column's head."""
        scale = self.run.scale
        return f"{scale.strategy} gpus={scale.gpus} on {scale.hardware}"

    def of(self, run: Figures) -> Figures | None:
        """The baseline, for a run that may be compared with it."""
        return self.run if comparable(run, self.run) else None


def comparable(run: Figures, baseline: Figures) -> bool:
    """Whether the quotient of their throughputs is a speedup: the same samples through the same model, at a batch
    that scaling leaves alone. Strategy, machine and number of devices may differ.

    Between weak and strong scaling there is one device only, where both are the same: a run on one device fits either,
    at the same batch of a device in weak scaling and the same global batch in strong.
    """
    if run.sample != baseline.sample:
        return False
    a, b = run.scale, baseline.scale
    kinds = {scale.scaling for scale in (a, b) if scale.gpus > 1} or {"weak"}
    if len(kinds) > 1:
        return False
    return a.global_batch == b.global_batch if "strong" in kinds else a.batch_per_device == b.batch_per_device


def find_given(baseline: PathLike, rows: Sequence[Figures]) -> Given:
    """The run that `baseline` names: a run's folder, its result.json, a sweep's folder with one run in it, or the
    run_id of one of these rows.

    InputError where there is no such run or several, where it was not measured, and where no row that was may be
    compared with it.
    """
    run = _named(baseline, rows)
    if run.throughput[0] is None:
        raise InputError(f"baseline {baseline} has no throughput: {run.status}: {run.reason or 'not measured'}")
    measured = [row for row in rows if row.throughput[0] is not None]
    alike = [row for row in measured if row.sample == run.sample]
    if measured and not alike:
        others = sorted({_work(row) for row in measured})
        raise InputError(
            f"baseline {baseline} is of {_work(run)}, none of the rows is ({'; '.join(others[:MOST_NAMED])}); "
            "speedups are between runs of one model on one data set"
        )
    if measured and not any(comparable(row, run) for row in alike):
        raise InputError(
            f"baseline {baseline} has {_batch(run)}, none of the rows has the same; speedups are between runs of one "
            "batch per device in weak scaling, of one global batch in strong scaling"
        )
    return Given(run)


def _named(baseline: PathLike, rows: Sequence[Figures]) -> Figures:
    if not Path(baseline).exists():
        known = {row.run_id: row for row in rows}
        if str(baseline) not in known:
            near = nearest(str(baseline), known)
            rather = f"did you mean '{near}'?" if near else f"a run_id looks like {next(iter(known))}"
            raise InputError(f"no folder or file {baseline}, and no run '{baseline}'; {rather}")
        return known[str(baseline)]
    files = find([baseline])
    if len(files) > 1:
        names = ", ".join(str(file.parent) for file in files[:MOST_NAMED])
        more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
        raise InputError(f"baseline {baseline} holds {len(files)} runs; name one of {names}{more}")
    return figures_in(files)[0]


def _work(run: Figures) -> str:
    """`resnet50 on cifar10`; what else a sample is may differ, under the same names."""
    return f"{run.cells['model']} on {run.cells['dataset']}"


def _batch(run: Figures) -> str:
    scale = run.scale
    return f"{scale.batch_per_device} samples per device, {scale.global_batch} in all, {scale.scaling} scaling"
