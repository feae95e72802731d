"""Sweeps by Hydra's rules: the runs that its basic sweeper lists, and a launcher for other sweepers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from scalebench.config.compose import Loader
from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec
from scalebench.core.sweep_file import refuse_foreign_sweep_folder
from scalebench.sweeps import cluster_runs, folders, plan
from scalebench.sweeps.task import FOREIGN_LAUNCHER, SweepSession

BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"
LAUNCHER = "hydra_plugins.scalebench.ScalebenchLauncher"
NO_BATCHES = (
    "hydra.sweeper.max_batch_size divides a sweep, which scalebench plans and measures as a whole; leave it out"
)


def run_sweep(session: SweepSession, loader: Loader, config: DictConfig) -> None:
    """Do the sweep of a composed command line, or show its plan. Raise InputError or a composition error where a run or
    a folder is refused; nothing was started then."""
    if config.hydra.launcher._target_ != LAUNCHER:
        raise InputError(FOREIGN_LAUNCHER)
    if not config.dry_run:
        refuse_foreign_sweep_folder(Path(str(config.hydra.sweep.dir)))
    if config.hydra.sweeper._target_ == BASIC_SWEEPER:
        session.run_batch(_list_runs(loader, config), first=0, is_whole=True)
        return
    context = HydraContext(config_loader=loader, callbacks=Callbacks(config))
    sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=session, config=config)
    sweeper.sweep(arguments=list(config.hydra.overrides.task))


def _list_runs(loader: Loader, config: DictConfig) -> list[list[str]]:
    """Return the overrides of each run, as the basic sweeper lists them. Raise InputError for a sweep in batches, and
    for one that is too large to be listed."""
    sweeper = config.hydra.sweeper
    if sweeper.get("max_batch_size") is not None:
        raise InputError(NO_BATCHES)
    words = [f"{key}={value}" for key, value in (sweeper.params or {}).items()] + config.hydra.overrides.task
    overrides = OverridesParser.create(loader).parse_overrides(words)
    plan.check_size(overrides)
    (runs,) = BasicSweeper.split_arguments(overrides, None)
    return runs


class SweepLauncher(Launcher):
    """Does the runs that a sweeper proposes in batches, after all of a batch have been checked."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        assert isinstance(task_function, SweepSession)
        self.session = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        planned = self.session.run_batch(job_overrides, initial_job_idx, is_whole=False)
        return [_describe_job(run) for run in planned]

    def resolve_run(self, overrides: Sequence[str]) -> RunSpec:
        """Compose and check one run of this sweep. Raise InputError or a composition error where it is invalid."""
        return self.session.resolve_run(overrides)

    def set_folders(self, runs: Sequence[plan.SweepRun]) -> None:
        """Set the folder of each run by its number. Raise InputError where that is not possible."""
        folders.set_folders(runs, self.session.config, self.session.compose)

    def max_concurrent_runs(self, spec: RunSpec) -> int:
        """Return how many runs like this one run side by side: as many jobs as may be in the queue, else 1."""
        return (spec.config.hardware.max_jobs or 1) if cluster_runs.is_submitted(spec) else 1


def _describe_job(run: plan.SweepRun) -> JobReturn:
    """Return what a sweeper learns of a run: its number, and its folder, which has no result where it was left out."""
    about = {"job": {"num": run.number, "id": str(run.number)}, "runtime": {"output_dir": str(run.folder)}}
    hydra_config = OmegaConf.create({"hydra": about})
    return JobReturn(run.overrides, hydra_cfg=hydra_config, status=JobStatus.COMPLETED, working_dir=str(run.folder))
