"""Finished runs for other trackers: Weights & Biases and MLflow.

Only results are read, after the runs and in the user's process: no worker imports a tracker. Each run becomes one run
of the tracker, with its config, its figures and flags, and its throughput and losses over steps. A second export of the
same runs replaces them, or skips them.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from scalebench.analysis.columns import COLUMN_KINDS
from scalebench.analysis.comparison.facts import flatten
from scalebench.analysis.load import Survey, survey
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.analysis.throughput import merge_rank_blocks
from scalebench.core.errors import InputError
from scalebench.core.result import Result, read_result, start_time
from scalebench.core.run_folder import RESULT_FILE
from scalebench.report.losses import compute_losses

DEFAULT_PROJECT = "scalebench"
RUN_ID_TAG = "scalebench.run_id"
MLFLOW_CONSENT = "MLFLOW_ALLOW_FILE_STORE"
MLFLOW_BATCH, MLFLOW_METRICS = 100, 1000  # The most params, and metrics, that MLflow takes in one call.
MLFLOW_VALUE_CHARACTERS = 500


class Point(NamedTuple):
    step: int
    at_s: float  # Seconds since the epoch.
    value: float


class TrackedRun(NamedTuple):
    """A run in the terms of trackers. Settings, figures and texts that it lacks are left out."""

    run_id: str
    name: str
    group: str  # folder of the sweep
    is_ok: bool
    started_at: datetime
    wall_s: float
    settings: Mapping[str, Any]  # the config by dotted key
    figures: Mapping[str, float]  # the numbers of the frame by column
    texts: Mapping[str, str]  # its texts
    series: Mapping[str, Sequence[Point]]


def export(name: str, paths: Sequence[Path], out: Path | None = None, project: str = DEFAULT_PROJECT) -> list[str]:
    """Write all readable runs at or below `paths` for the tracker `name`, and return lines that say where they are.

    `out` is a folder, by default one of the tracker's name in the first path. MLflow goes to $MLFLOW_TRACKING_URI where
    that is set. Raises InputError where the tracker is not installed or nothing can be read.
    """
    check_installed(name)
    home = paths[0] if paths[0].is_dir() else paths[0].parent
    return WRITERS[name](survey(list(paths)), out or home / name, project)


def check_installed(name: str) -> None:
    """Raise InputError where the package of a tracker is missing."""
    if importlib.util.find_spec(name) is None:
        raise InputError(f"{name} is not installed; pip install 'scalebench-train[trackers]'")


def list_tracked_runs(runs: Survey) -> Iterator[TrackedRun]:
    """Yield each run once, one record after the other: 10,000 would not fit into memory."""
    for row in plain_rows(runs.frame.drop_duplicates("run_id")):
        result = read_result(Path(row["path"]) / RESULT_FILE)
        scale, cells = result.scale, {name: value for name, value in row.items() if value is not None}
        numbers = {name: float(value) for name, value in cells.items() if COLUMN_KINDS.get(name) != "string"}
        yield TrackedRun(
            run_id=result.run_id,
            name=f"{scale.strategy}-{scale.gpus}" + (f"-repeat{scale.repeat}" if scale.repeat else ""),
            group=Path(row["path"]).parent.name,
            is_ok=result.status == "ok",
            started_at=start_time(result),
            wall_s=result.phases.wall_s or 0.0,
            settings={key: value for key, value in flatten(result.spec).items() if value is not None},
            figures={name: number for name, number in numbers.items() if math.isfinite(number)},
            texts={name: str(value) for name, value in cells.items() if name not in numbers and value},
            series=_make_series(result),
        )


def _make_series(result: Result) -> dict[str, list[Point]]:
    """Return throughput and loss of each measured block, and the points of a training's curve, by name.

    Steps count from the start of the run, warm-up included, in blocks as in the curve.
    """
    start_s, measured = start_time(result).timestamp(), [end for end in compute_losses(result) if end.is_measured]
    points: list[tuple[str, int, float, float | None]] = []  # Name, step, time, value.
    if measured:
        first = result.ranks[0]
        begins = first.block_started_at_s or [start_s] * len(first.block_s)
        ends = [begin + seconds for begin, seconds in zip(begins, first.block_s, strict=False)]
        blocks = list(zip(measured, ends, strict=False))
        points += [("block/loss", block.steps, end_s, block.loss) for block, end_s in blocks]
        if not result.scale.independent:  # Replicas that never meet have no common blocks
            seconds, samples = merge_rank_blocks(result.ranks)
            rates = zip(blocks, samples / seconds, strict=False)
            points += [("block/throughput_samples_per_s", block.steps, end_s, float(rate))
                       for (block, end_s), rate in rates]  # fmt: skip
    for point in result.quality.curve:
        values = {"train/loss": point.loss, "epochs": point.epochs, "train_s": point.train_s}
        values |= {f"validation/{name}": value for name, value in point.metrics.items()}
        values |= {f"train/{name}": value for name, value in point.train_metrics.items()}
        points += [(f"curve/{name}", point.step, point.at_s or start_s, value) for name, value in values.items()]
    series: dict[str, list[Point]] = {}
    for name, step, at_s, value in points:
        if value is not None and math.isfinite(value):
            series.setdefault(name, []).append(Point(step, at_s, value))
    return series


def _write_mlflow(runs: Survey, out: Path, project: str) -> list[str]:
    """Add the runs that an experiment does not have yet. Raise InputError where MLflow refuses."""
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    uri = os.environ.get("MLFLOW_TRACKING_URI") or (out.absolute() / "mlruns").as_uri()
    is_file_store, added = uri.startswith("file:"), 0
    # Versions from 3 on refuse a folder of files without consent.
    lacks_consent = is_file_store and MLFLOW_CONSENT not in os.environ
    if lacks_consent:
        os.environ[MLFLOW_CONSENT] = "true"
    try:
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name(project)
        number = client.create_experiment(project) if experiment is None else experiment.experiment_id
        for run in list_tracked_runs(runs):
            if client.search_runs([number], f"tags.`{RUN_ID_TAG}` = '{run.run_id}'", max_results=1):
                continue
            begin_ms = int(run.started_at.timestamp() * 1000)
            tags = {RUN_ID_TAG: run.run_id, "group": run.group, **run.texts}
            texts = {name: text[:MLFLOW_VALUE_CHARACTERS] for name, text in tags.items()}
            run_id = client.create_run(number, begin_ms, run_name=run.name, tags=texts).info.run_id
            params = [Param(key, str(value)[:MLFLOW_VALUE_CHARACTERS]) for key, value in run.settings.items()]
            metrics = [Metric(name, value, begin_ms, 0) for name, value in run.figures.items()]
            metrics += [
                Metric(name, value, int(at_s * 1000), step)
                for name, points in run.series.items()
                for step, at_s, value in points
            ]
            for first in range(0, len(params), MLFLOW_BATCH):
                client.log_batch(run_id, params=params[first : first + MLFLOW_BATCH])
            for first in range(0, len(metrics), MLFLOW_METRICS):
                client.log_batch(run_id, metrics=metrics[first : first + MLFLOW_METRICS])
            end_ms = begin_ms + int(run.wall_s * 1000)
            client.set_terminated(run_id, "FINISHED" if run.is_ok else "FAILED", end_ms)
            added += 1
    except MlflowException as error:
        raise InputError(f"mlflow at {uri}: {str(error).splitlines()[0]}") from error
    finally:
        if lacks_consent:
            del os.environ[MLFLOW_CONSENT]
    way = f"{MLFLOW_CONSENT}=true mlflow ui --backend-store-uri {uri}" if is_file_store else uri
    return [f"{added} runs in experiment '{project}': {way}"]


def _write_wandb(runs: Survey, out: Path, project: str) -> list[str]:
    """Add the runs to a project of Weights & Biases, or with WANDB_MODE=offline to folders for `wandb sync`."""
    import wandb

    out.mkdir(parents=True, exist_ok=True)
    quiet = wandb.Settings(
        console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True,
        reinit="create_new",  # A run that the user has open stays open.
    )  # fmt: skip
    places: dict[str, None] = {}
    for run in list_tracked_runs(runs):
        try:
            session = wandb.init(
                project=project, id=run.run_id, name=run.name, group=run.group, config=dict(run.settings), dir=out,
                resume="allow", tags=[run.texts["strategy"]], notes=run.texts.get("reason"), settings=quiet,
            )  # fmt: skip
        except wandb.Error as error:
            raise InputError(f"wandb: {str(error).splitlines()[0]}; WANDB_MODE=offline writes files") from error
        try:
            by_step: dict[int, dict[str, float]] = {}
            for name, points in run.series.items():
                for step, at_s, value in points:
                    by_step.setdefault(step, {"_timestamp": at_s})[name] = value
            for step in sorted(by_step):
                session.log(by_step[step], step=step)
            session.summary.update({**run.texts, **run.figures, "started_at": run.started_at.isoformat()})
        finally:
            session.finish(exit_code=0 if run.is_ok else 1)
        places[f"wandb sync {out}/wandb/offline-run-*" if session.offline else str(session.project_url)] = None
    return list(places)


WRITERS: dict[str, Callable[[Survey, Path, str], list[str]]] = {
    "mlflow": _write_mlflow,
    "wandb": _write_wandb,
}
