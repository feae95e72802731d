"""Do the sweep of a command line: check all runs, add missing baselines, then run one after the other.

Hydra's basic sweeper lists all runs at once, which is done here. Other sweepers propose runs in batches, and pass them
to our launcher.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, configure_log, run_job
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from scalebench.config.compose import Loader, to_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import (
    claim_run_folder,
    clear_run_folder,
    refuse_folder_with_result,
    refuse_successful_run,
)
from scalebench.core.run_folder import JOB_FILE, RunKey, copy_run, refuse_foreign_folder
from scalebench.core.spec import SWEEP_REPEATS, RunSpec
from scalebench.core.sweep_file import MULTIRUN_FILE, refuse_foreign_sweep_folder
from scalebench.sweeps import cluster_runs, plan
from scalebench.sweeps.execute import RunningSweep
from scalebench.sweeps.task import FOREIGN_LAUNCHER, SweepSession, prepare_datasets

BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"
LAUNCHER = "hydra_plugins.scalebench.ScalebenchLauncher"
SUBDIR_BY_NUMBER = "${hydra.job.num}"  # hydra.sweep.subdir in conf/config.yaml
MAX_HALF_WIDTH = 0.1  # of a ratio's limits, as a share of it, where a sweep that may go on ends
MAX_NAME_BYTES = 255  # of a file's or a folder's name, on all usual file systems
NO_MAX_MINUTES = (
    "sweep.max_minutes is for runs on this machine, and how long jobs wait in a queue is unknown; leave it out: "
    "hardware.slurm.time_minutes limits each job"
)
NO_BATCHES = (
    "hydra.sweeper.max_batch_size divides a sweep, which scalebench plans and measures as a whole; leave it out"
)


def run_sweep(session: SweepSession, loader: Loader, config: DictConfig) -> None:
    """Do the sweep of a composed command line, or show its plan. Raise InputError or a composition error where a run or
    a folder is refused; nothing was started then."""
    if config.hydra.launcher._target_ != LAUNCHER:
        raise InputError(FOREIGN_LAUNCHER)
    session.strict = bool(config.strict)
    if not config.dry_run:
        refuse_foreign_sweep_folder(Path(str(config.hydra.sweep.dir)))
    context = make_context(loader, config)
    context.callbacks.on_multirun_start(config=config, config_name=config.hydra.job.config_name)
    if config.hydra.sweeper._target_ == BASIC_SWEEPER:
        launcher = SweepLauncher()
        launcher.setup(hydra_context=context, task_function=session, config=config)
        for job in launcher.launch(_list_runs(loader, config), 0):
            _ = job.return_value  # raises what the run raised
    else:
        sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=session, config=config)
        sweeper.sweep(arguments=list(config.hydra.overrides.task))
    context.callbacks.on_multirun_end(config=config, config_name=config.hydra.job.config_name)


def make_context(loader: Loader, config: DictConfig) -> HydraContext:
    """Return what Hydra's parts need to know of a program, and set up the log as Hydra does."""
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    return HydraContext(config_loader=loader, callbacks=Callbacks(config))


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
    """Gets all runs of a sweep at once, so that nothing starts before every one of them has been checked."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        assert isinstance(task_function, SweepSession)
        self.session, self._context, self._config = task_function, hydra_context, config
        self._is_listed = config.hydra.sweeper._target_ == BASIC_SWEEPER
        self._is_warm = False  # a run of this sweep has heated the machine
        self._not_in_turns: set[Path] = set()  # folders of runs that could not take turns with the others

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        planned = plan.plan_sweep(job_overrides, self._compose)
        sweep_dir = Path(str(self._config.hydra.sweep.dir))
        earlier = plan.find_earlier_results(sweep_dir.absolute()) if self._config.resume else {}
        unused = self._number_runs(planned, initial_job_idx, sweep_dir.absolute(), earlier)
        submitted = [n for n, run in enumerate(planned) if run.earlier is None and cluster_runs.is_submitted(run.spec)]
        settings = self._config.sweep
        plan.check_question(settings.question, planned)
        if settings.export != "none":
            from scalebench.report.trackers import check_installed

            check_installed(settings.export)
        if submitted and settings.max_minutes is not None:
            raise InputError(NO_MAX_MINUTES)
        finds_running = self._config.resume and not self._config.dry_run
        adopted = self._find_adopted(planned, submitted, sweep_dir) if finds_running else {}
        jobs = plan.plan_jobs([n for n in submitted if n not in adopted], planned, unused)
        folders = self.list_folders(planned, sweep_dir)
        if self._config.dry_run:
            self.session.show_plan(planned, jobs, sweep_dir, several=True)
            return []
        self.session.folder = sweep_dir
        self._check_folders(planned, folders, sweep_dir)
        prepare_datasets([run.spec for run in planned if run.earlier is None], self.session.console)
        sweep = self.session.begin_sweep(planned, sweep_dir, settings.max_minutes, settings.report, settings.export)
        if self._is_listed:  # another sweeper has written it
            OmegaConf.save(self._config, sweep_dir / MULTIRUN_FILE)
        returns: list[JobReturn] = []
        all_runs, more = list(planned), planned
        for repeat in itertools.count(SWEEP_REPEATS):
            follow = partial(self._follow_jobs, more, sweep_dir, jobs, adopted)
            take_turns = partial(self._take_turns, more, sweep_dir)
            positions = [*itertools.chain(*itertools.chain(*jobs)), *adopted]
            returns += [self._run(run, sweep_dir) for run in sweep.iterate(more, unused, positions, follow, take_turns)]
            more = plan.plan_further_repeat(all_runs, repeat) if self._is_listed else []
            if not more or not self._goes_on(more, sweep, sweep_dir):
                return returns
            for run in more:
                run.earlier = earlier.get(run.key)
                name = run.earlier.name if run.earlier and run.earlier.parent == sweep_dir.absolute() else ""
                run.number = int(name) if name.isdecimal() else next(unused)
            submitted = [n for n, run in enumerate(more) if run.earlier is None and cluster_runs.is_submitted(run.spec)]
            jobs, adopted = plan.plan_jobs(submitted, more, unused), {}
            self.session.expect_more(len(more))
            all_runs += more
        return returns

    def _goes_on(self, more: Sequence[plan.SweepRun], sweep: RunningSweep, sweep_dir: Path) -> bool:
        """Return whether a sweep goes on with one more repeat, and say so: the limits of its ratios are too wide for a
        verdict, whatever the ratios are, and there is time."""
        from scalebench.analysis.load import survey
        from scalebench.analysis.ranking import find_widest_ratio

        if not sweep.has_time_for(more):
            return False
        surveyed = survey(sweep_dir)
        width = find_widest_ratio(surveyed.pooled, surveyed.configurations.estimate_ratio)
        if width is None or width <= MAX_HALF_WIDTH:
            return False
        config = more[0].spec.config
        self.session.console.print_line(
            f"limits of ± {100 * min(width, 9.99):.0f} % are too wide for a verdict: repeat {config.repeat + 1} of at "
            f"most {config.measure.max_repeats} (measure.repeats={SWEEP_REPEATS} stops after {SWEEP_REPEATS})"
        )
        return True

    def _number_runs(
        self, planned: Sequence[plan.SweepRun], first: int, sweep_dir: Path, earlier: Mapping[RunKey, Path]
    ) -> Iterator[int]:
        """Find what a resumed sweep keeps, and number the runs as `plan.number_runs` does."""
        if not self._config.resume:
            return plan.number_runs(planned, first)
        for run in planned:
            run.earlier = earlier.get(run.key)
        # A search numbers its trials itself.
        return plan.number_runs(planned, first, plan.find_numbers(sweep_dir, earlier) if self._is_listed else None)

    def resolve_run(self, overrides: Sequence[str]) -> RunSpec:
        """Compose and check one run of this sweep. Raise InputError or a composition error where it is invalid."""
        return resolve(to_config(self._compose(overrides)))

    def max_concurrent_runs(self, spec: RunSpec) -> int:
        """Return how many runs like this one run side by side: as many jobs as may be in the queue, else 1."""
        return (spec.config.hardware.max_jobs or 1) if cluster_runs.is_submitted(spec) else 1

    def _find_adopted(self, planned: list[plan.SweepRun], submitted: Sequence[int], sweep_dir: Path) -> dict[int, Path]:
        """Return the folders of runs whose jobs still run, since only the program that submitted them was killed, by
        their positions in `planned`. Baselines that such a job does once more are added there."""
        running = cluster_runs.find_running([planned[n].spec for n in submitted], sweep_dir.absolute().parent)
        folders = self.list_folders(planned, sweep_dir.absolute())
        adopted = cluster_runs.match_running({n: (planned[n].key, folders[n]) for n in submitted}, running)
        by_key = {run.key: run for run in planned}
        for folder, key in running.items():
            is_own = folder.parent == sweep_dir.absolute() and folder.name.isdecimal()
            if is_own and folder not in adopted.values() and key in by_key:
                adopted[len(planned)] = folder
                planned.append(replace(by_key[key], added=True, earlier=None, number=int(folder.name)))
        return adopted

    def _follow_jobs(
        self,
        planned: Sequence[plan.SweepRun],
        sweep_dir: Path,
        jobs: Sequence[Sequence[Sequence[int]]],
        adopted: Mapping[int, Path],
    ) -> Iterator[int]:
        """Submit these jobs all at once, and follow those of adopted runs. Yield the position of each run when its
        result is in its folder."""
        if not (jobs or adopted):
            return
        from scalebench.runner.jobs import JobRequest, PlannedJob

        folders: dict[int, Path] = {}

        def request(position: int) -> JobRequest:
            run = planned[position]
            folders[position] = self._configure(run, sweep_dir)[1]
            folder = adopted.get(position, folders[position])
            if self._config.resume and position not in adopted:  # a run that was not successful
                clear_run_folder(folder, of_ended_job=(folder / JOB_FILE).exists())
            return JobRequest(position, run.spec, folder, position in adopted, run.bare)

        planned_jobs = []
        for job in jobs:
            units = [[request(position) for position in unit] for unit in job]
            runs = list(itertools.chain(*units))
            lowest = min(planned[run.number].number for run in runs)
            folder = runs[0].folder if len(runs) == 1 else sweep_dir.absolute() / f"job{lowest}"
            planned_jobs.append(PlannedJob(folder, units))
        follow = cluster_runs.follow_jobs(
            planned_jobs, [request(position) for position in adopted], self.session.console, self._config.resume
        )
        for run, result in follow:
            with cluster_runs.delay_interrupts():
                _copy_earlier_run(run.folder, folders[run.number])
                self.session.collected[folders[run.number]] = result
            yield run.number

    def _take_turns(self, planned: Sequence[plan.SweepRun], sweep_dir: Path, positions: Sequence[int]) -> Iterator[int]:
        """Do these runs side by side. Yield the position of each that has ended; the others have left nothing."""
        folders = {n: self._configure(planned[n], sweep_dir)[1] for n in positions}
        self._not_in_turns.update(folders.values())  # until each has
        from scalebench.sweeps.cohort import CohortRun

        if self._config.resume:
            for folder in folders.values():
                clear_run_folder(folder)  # of a run that was not successful
        if self._is_warm:
            self.session.cool_down(max(planned[n].spec.config.measure.cool_down_s for n in positions))
        self._is_warm = True
        for position, result in self.session.run_cohort(
            [CohortRun(n, planned[n].spec, folders[n], planned[n].bare) for n in positions]
        ):
            self.session.collected[folders[position]] = result
            self._not_in_turns.discard(folders[position])
            yield position

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        return self._context.config_loader.load_sweep_config(self._config, list(overrides))

    def _configure(self, run: plan.SweepRun, sweep_dir: Path) -> tuple[DictConfig, Path]:
        """Return the config of a run of the sweep, and its folder."""
        config = self._compose(run.overrides)
        with open_dict(config):
            config.hydra.job.id = str(run.number)
            config.hydra.job.num = run.number
        return config, (sweep_dir / str(config.hydra.sweep.subdir)).absolute()

    def list_folders(self, planned: Sequence[plan.SweepRun], sweep_dir: Path) -> list[Path]:
        """Return the folder of each run. Raise InputError where two runs would get the same one, or where a name is too
        long for a folder."""
        settings = OmegaConf.to_container(self._config.hydra.sweep, resolve=False)
        assert isinstance(settings, dict)
        if settings["subdir"] == SUBDIR_BY_NUMBER:  # to compose each run once more would take as long as planning
            return [sweep_dir / str(run.number) for run in planned]
        key = f"hydra.sweep.subdir={settings['subdir']}"
        runs: dict[Path, plan.SweepRun] = {}
        for run in planned:
            folder = self._configure(run, sweep_dir)[1]
            label = f"{run.spec.label} repeat={run.spec.config.repeat}"
            if (other := runs.setdefault(folder, run)) is not run:
                raise InputError(
                    f"{key} gives several runs the same folder, {folder} ({other.spec.label} "
                    f"repeat={other.spec.config.repeat} and {label}): add {SUBDIR_BY_NUMBER}"
                )
            if (longest := max(len(os.fsencode(part)) for part in folder.parts)) > MAX_NAME_BYTES:
                raise InputError(
                    f"{key} gives {label} a folder whose name has {longest} bytes, and at most {MAX_NAME_BYTES} are "
                    f"possible: use {SUBDIR_BY_NUMBER}"
                )
        return list(runs)

    def _check_folders(self, planned: Sequence[plan.SweepRun], folders: Sequence[Path], sweep_dir: Path) -> None:
        """Raise InputError for the folder of a run that is not below the sweep's own, or is neither empty nor a run's,
        or holds a result, of a resumed sweep another successful one. Nothing has been touched then."""
        for run, folder in zip(planned, folders, strict=True):
            if sweep_dir.resolve() not in folder.resolve().parents:
                raise InputError(
                    f"hydra.sweep.subdir: {folder} is not below {sweep_dir}, where all its runs are; leave it out"
                )
            if not self._config.resume:
                refuse_folder_with_result(folder)
            elif run.earlier != folder.absolute():
                refuse_successful_run(folder)
            refuse_foreign_folder(folder)

    def _run(self, run: plan.SweepRun, sweep_dir: Path) -> JobReturn:
        config, folder = self._configure(run, sweep_dir)
        is_collected = folder in self.session.collected
        if run.earlier is not None:
            _copy_earlier_run(run.earlier, folder)
        elif not is_collected:
            if self._config.resume:
                clear_run_folder(folder)  # of a run that was not successful
            with suppress(InputError):  # which the run itself will report
                claim_run_folder(run.spec, folder).release()  # before Hydra writes there
        if run.starts and not is_collected:
            if self._is_warm:
                self.session.cool_down(run.spec.config.measure.cool_down_s)
            self._is_warm = True
        if folder in self._not_in_turns:
            run = replace(run, spec=replace(run.spec, flags=[*run.spec.flags, "not_in_turns"]))
        with cluster_runs.delay_interrupts() if is_collected else nullcontext():
            job = run_job(
                task_function=lambda _: self.session.run_one(run, folder, self._config.resume),
                config=config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
                hydra_context=self._context,
            )
        if self._is_listed:  # only a search reads them, which gets its jobs in small batches
            job.cfg = job.hydra_cfg = None  # 0.3 MB, which Hydra would keep of each run to the end of the sweep
        return job


def _copy_earlier_run(earlier: Path, folder: Path) -> None:
    """Copy an earlier run into this sweep, so that the sweep's folder is complete by itself."""
    if earlier.resolve() != folder.resolve():
        clear_run_folder(folder)
        copy_run(earlier, folder)
