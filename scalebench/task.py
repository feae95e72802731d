"""What Hydra calls for each run, and what people see of it. Layer 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from scalebench import on_cluster
from scalebench.configs import conf_dir
from scalebench.folder_lock import FolderLock
from scalebench.frame import Survey
from scalebench.jobs import Job, to_config
from scalebench.jobs import exit_status as jobs_exit_status
from scalebench.launchers import watch
from scalebench.report.console import Console
from scalebench.report.tables import write_tables
from scalebench.resolve import resolve
from scalebench.results import RESULT_FILE, Result, read_result
from scalebench.run import run
from scalebench.spec import InputError, RunSpec
from scalebench.sweeping import Sweep
from scalebench.workloads import datasets


@dataclass
class State:
    """What this process has done, since Hydra drops what a run returns."""

    console: Console
    done: list[Result] = field(default_factory=list)
    planned: int = 1
    refused: int = 0  # exit status of what left no row
    sweep_dir: Path | None = None  # while it is new and nothing has run in it
    new_parents: list[Path] = field(default_factory=list)  # of it, made together with it; innermost first
    words: list[str] = field(default_factory=list)  # of the command line
    sweep: Sweep | None = None  # that has begun
    lock: FolderLock | None = None  # on its folder
    last_words: list[Callable[[], None]] = field(default_factory=list)  # below the sweep's table
    collected: dict[Path, Result] = field(default_factory=dict)  # by folder: what a scheduler has done for this sweep


state = State(Console())


class AsSweep(SystemExit):
    """A single run that asks for repeats is a sweep. SystemExit: no other exception of a callback leaves Hydra."""


def one_run(composed: DictConfig) -> None:
    """What Hydra calls: one run in its output folder. Never raises for a run, since Hydra would end the sweep."""
    try:
        _one_run(composed)
    except InputError as error:
        state.refused = 2 if not state.done else 1
        state.console.error(str(error))
    except OSError as error:  # the row itself cannot be written
        state.refused = 1
        state.console.error(f"{HydraConfig.get().runtime.output_dir} cannot be written: {error.strerror or error}")


def _one_run(composed: DictConfig) -> None:
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    if folder.absolute() in state.collected:
        result = state.collected[folder.absolute()]
        state.console.ended(result, folder)
    elif (folder / RESULT_FILE).exists() and composed.resume:
        result = read_result(folder / RESULT_FILE)
        state.console.skipped(result, len(state.done) + 1, state.planned)
    else:
        spec = resolve(to_config(composed))
        if hydra.mode == RunMode.RUN and spec.config.dry_run:
            show_plan([Job([], spec)], several=False)
            return
        if on_cluster.submits(spec):
            result = on_cluster.one(spec, folder.absolute(), state.console, composed.resume)
        else:
            left = state.sweep.left if state.sweep is not None else str
            with state.console.progress(spec, len(state.done) + 1, state.planned, left) as on_look:
                result = run(spec, folder, on_look)
        state.console.ended(result, folder)
    state.done.append(result)
    if hydra.mode == RunMode.RUN:
        state.console.table([folder])
        state.console.details(folder)


def prepare_data(specs: Sequence[RunSpec]) -> None:
    """Make every data set that these runs read, before the first of them. InputError for an unfit one."""
    seen = set()
    for spec in specs:
        d, model = spec.config.dataset, spec.config.model
        samples = (*model.input_shape, "->", *model.target_shape, model.outputs)
        own = (d.builder, d.code, d.asked, str(d.options))
        key = (d.name, d.size, d.seed, d.path, d.dtype, d.classes, d.cache, own, samples)
        if not spec.starts or key in seen:
            continue
        seen.add(key)
        with state.console.working(f"data set {d.path or d.name} ({d.size:,} samples)"):
            folder = datasets.prepare(spec.config)
        if d.path is not None:
            _check_user_data(spec, folder)


def _check_user_data(spec: RunSpec, folder: Path) -> None:
    from scalebench.workloads import cache

    samples = datasets.train_samples(spec.config, len(cache.open_arrays(folder)[0]))
    if samples < spec.global_batch:
        raise InputError(
            f"dataset.path={spec.config.dataset.path} gives {samples} training samples, fewer than one global "
            f"batch of {spec.global_batch}: lower train.batch_per_device or gpus"
        )


def show_plan(planned: Sequence[Job], several: bool) -> None:
    """What would be run; of a sweep or of a single run."""
    state.console.plan([(job.spec, job.added) for job in planned])
    for number, job in enumerate(planned):
        hardware = job.spec.config.hardware
        if hardware.scheduler == "slurm" and not hardware.here:
            state.console.script(job.spec, _folder_to_be(str(number) if several else None))


def _folder_to_be(number: str | None) -> Path:
    """Of a run that is only planned: Hydra has been given another one, so that it leaves nothing."""
    key = "hydra.run.dir" if number is None else "hydra.sweep.dir"
    told = [word.partition("=")[2] for word in state.words if word.lstrip("+").startswith(f"{key}=")]
    pattern = told[-1] if told else OmegaConf.select(OmegaConf.load(conf_dir() / "config.yaml"), key)
    folder = Path(str(OmegaConf.create({"folder": pattern}).folder)).absolute()
    return folder if number is None else folder / number


def cool_down(seconds: float) -> None:
    """Pause before the next run of a sweep. Ctrl-C and SIGTERM end it as they end a run: KeyboardInterrupt."""
    if seconds > 0:
        with state.console.cooling_down(seconds):
            if watch.cancelled.wait(seconds):
                raise KeyboardInterrupt


def begin_sweep(planned: Sequence[Job], folder: Path, max_minutes: float | None, report: bool) -> Sweep:
    """Or the next batch of it, where Hydra's hydra.sweeper.max_batch_size cuts it up. InputError while another program
    sweeps in this folder."""
    if state.sweep is None:
        folder.mkdir(parents=True, exist_ok=True)
        state.lock = FolderLock(folder)
        state.planned, state.sweep_dir = 0, None
        state.sweep = Sweep(folder, state.words, max_minutes, report)
    state.planned += len(planned)
    return state.sweep


def end_sweep(folder: Path) -> None:
    """All that is left to do once no run of it will follow: its table, its files, what it left out, and its report.
    InputError where there is nothing to tell of, OSError where the files cannot be written."""
    sweep, state.sweep = state.sweep, None
    if sweep is not None and len(sweep.record.left_out) == len(sweep.record.runs):
        raise InputError(f"not one run fits into sweep.max_minutes={sweep.record.max_minutes:g}")
    found = state.console.table([folder])
    write_tables(folder, found)
    if sweep is not None:
        state.console.left_out(sweep.record)
    try:
        if sweep is None or sweep.report:
            _report(folder, found)
    finally:
        for tell in state.last_words:
            tell()


def _report(folder: Path, found: Survey) -> None:
    from scalebench.report.html import page  # which takes longer to import than a dry run takes
    from scalebench.report.report_data import make_report_data

    with state.console.working("the report"):
        path = page.write(make_report_data([folder], found), folder / "report.html")
    state.console.line(f"report: {path}")


def release() -> None:
    """The sweep's folder is anybody's again."""
    lock, state.lock = state.lock, None
    if lock is not None:
        lock.release()


def exit_status() -> int:
    """0: all asked runs ok or unsupported; 1: any other status among them; 2: nothing was started."""
    return state.refused or jobs_exit_status(state.done)


def drop_unused_folder() -> None:
    """Hydra makes a sweep's folder before it knows whether the sweep makes sense."""
    folder, state.sweep_dir = state.sweep_dir, None
    if folder is not None and [path.name for path in folder.glob("*")] == ["multirun.yaml"]:
        (folder / "multirun.yaml").unlink()
        for new in (folder, *state.new_parents):
            new.rmdir()
