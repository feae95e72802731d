"""Hydra's launcher for sweeps: checks all runs, adds the missing baselines, then runs one after the other. Layer 4."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from scalebench.config.compose import to_config, use_caching_loader
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec
from scalebench.runner.parent import refuse_results
from scalebench.sweeps import cluster_runs, plan
from scalebench.sweeps.task import prepare_data, session_of

NO_TIME = (
    "sweep.max_minutes is for runs of this machine, and nobody knows how long jobs are in a queue; leave it out: "
    "hardware.slurm.time_minutes limits each job"
)


class SweepLauncher(Launcher):
    """Gets all runs of a sweep at once, so that nothing starts before every one of them is known to be sound."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        use_caching_loader(hydra_context)
        self._context, self._task, self._config = hydra_context, task_function, config
        self.session = session_of(task_function)
        self.session.expect_folder(Path(str(config.hydra.sweep.dir)))
        self._warm = False  # whether a run of this sweep has heated the machine

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        planned = plan.plan(job_overrides, self._compose)
        if self._config.dry_run:
            self.session.show_plan(planned, several=True)
            return []
        sweep_dir = Path(str(self._config.hydra.sweep.dir))
        if self._config.resume:
            earlier = plan.earlier_results(sweep_dir.absolute().parent)
            for job in planned:
                job.earlier = earlier.get(job.key)
        else:
            for number in range(initial_job_idx, initial_job_idx + len(planned)):
                refuse_results(sweep_dir / str(number))
        queued = [n for n, job in enumerate(planned) if job.earlier is None and cluster_runs.submits(job.spec)]
        if queued and self._config.sweep.max_minutes is not None:
            raise InputError(NO_TIME)
        prepare_data([job.spec for job in planned if job.earlier is None], self.session.console)
        settings = self._config.sweep
        sweep = self.session.begin_sweep(planned, sweep_dir, settings.max_minutes, settings.report)
        follow = partial(self._together, planned, initial_job_idx, sweep_dir)
        runs = sweep.runs(planned, initial_job_idx, queued, follow)
        return [self._one(job, number, sweep_dir) for number, job in runs]

    def resolve_run(self, overrides: Sequence[str]) -> RunSpec:
        """Compose and check one run of this sweep. InputError or a composition error where it makes no sense."""
        return resolve(to_config(self._compose(overrides)))

    def jobs_at_once(self, spec: RunSpec) -> int:
        """How many runs like this one go side by side: as many jobs as the scheduler's queue may hold, else 1."""
        return (spec.config.hardware.max_jobs or 1) if cluster_runs.submits(spec) else 1

    def _together(
        self, planned: Sequence[plan.Job], first: int, sweep_dir: Path, places: Sequence[int]
    ) -> Iterator[int]:
        """Have the scheduler do these runs, all at once; yields the place of each whose row is in its folder."""
        if not places:
            return
        from scalebench.runner.jobs import JobRequest

        folders = {place: self._configured(planned[place], first + place, sweep_dir)[1] for place in places}
        asked = [JobRequest(place, planned[place].spec, folder) for place, folder in folders.items()]
        root = sweep_dir.absolute().parent if self._config.resume else None
        for run, result in cluster_runs.follow(asked, self.session.console, root):
            with cluster_runs.undisturbed():
                _adopt(run.folder, folders[run.number])
                self.session.collected[folders[run.number]] = result
            yield run.number

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        return self._context.config_loader.load_sweep_config(self._config, list(overrides))

    def _configured(self, job: plan.Job, number: int, sweep_dir: Path) -> tuple[DictConfig, Path]:
        """The config of run `number` of the sweep, and its folder."""
        config = self._compose(job.overrides)
        with open_dict(config):
            config.hydra.job.id = str(number)
            config.hydra.job.num = number
        return config, (sweep_dir / str(config.hydra.sweep.subdir)).absolute()

    def _one(self, job: plan.Job, number: int, sweep_dir: Path) -> JobReturn:
        config, folder = self._configured(job, number, sweep_dir)
        over = folder in self.session.collected
        if job.earlier is not None:
            _adopt(job.earlier, folder)
        elif self._config.resume and not over:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that did not go well
        if job.earlier is None and job.spec.starts and not over:
            if self._warm:
                self.session.cool_down(job.spec.config.measure.cool_down_s)
            self._warm = True
        with cluster_runs.undisturbed() if over else nullcontext():
            return run_job(
                task_function=self._task,
                config=config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
                hydra_context=self._context,
            )


def _adopt(earlier: Path, folder: Path) -> None:
    """An earlier run becomes part of this sweep, so that the sweep's folder is whole by itself."""
    if earlier.resolve() != folder.resolve():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(earlier, folder)
