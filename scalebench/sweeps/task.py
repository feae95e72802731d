"""One call of the program: its single run or the runs of its sweep, and the state of the call so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hydra.core.utils import run_job
from hydra.types import HydraContext
from omegaconf import DictConfig

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import (
    FolderLock,
    claim_run_folder,
    clear_run_folder,
    is_done_before,
    refuse_folder_with_result,
)
from scalebench.core.machine import private_network
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import JOB_FILE, RESULT_FILE, refuse_foreign_folder
from scalebench.core.spec import RunSpec
from scalebench.measure.progress import RankProgress
from scalebench.sweeps import cluster_runs, job_plan
from scalebench.sweeps.console import Console
from scalebench.sweeps.execute import RunningSweep
from scalebench.sweeps.pace import record_pace
from scalebench.sweeps.plan import KEPT, SweepRun, compute_exit_status, find_swept_keys, name_settings
from scalebench.sweeps.time_estimate import estimate_left_s
from scalebench.workloads import datasets

# The imports of what measures and reports take longer than a dry run: each is in the function that needs it.
if TYPE_CHECKING:
    from scalebench.analysis.load import Survey
    from scalebench.runner.parent import UnwrittenResult
    from scalebench.sweeps.cohort import CohortRun

FOREIGN_LAUNCHER = "a sweep of scalebench needs its own launcher: leave out hydra/launcher"


class SweepSession:
    """The state of one call of the program, which does a sweep or a single run.

    It is also the task function of Hydra's sweepers, by which our launcher gets it: they pass on nothing else of ours.
    """

    def __init__(self, arguments: Sequence[str], shows_tables: bool = True) -> None:
        self.arguments = list(arguments)  # of the command line
        self.console = Console(shows_tables)
        self.folder: Path | None = None  # of the sweep, or of a single run
        self.done: list[Result] = []
        self._planned = 1  # without the baselines that a sweep repeats
        self.expected = 0  # runs of a sweeper that plans one batch after the other; 0: those that are planned
        self._launched = False  # the processes of a run, of which nothing may be in `done` yet
        self._swept_keys: set[str] = set()  # those in which planned runs differ, but for strategy, devices and repeat
        self.sweep: RunningSweep | None = None  # from begin_sweep to end_sweep
        self.collected: dict[Path, Result] = {}  # by folder: results of runs that a scheduler has done
        self.at_end: list[Callable[[], None]] = []  # called below the table of the sweep
        self.strict = False  # as in the config
        self._refusal: str | None = None  # why a single run was not started
        self._refused_status = 0  # exit status of runs that left no result
        self._lock: FolderLock | None = None  # on the folder of the sweep, or of a single run

    def __call__(self, config: DictConfig) -> NoReturn:
        raise InputError(FOREIGN_LAUNCHER)  # only another launcher calls it

    def run_single(self, spec: RunSpec, config: DictConfig, context: HydraContext) -> None:
        """Do the single run of a config, or show its plan. Raise InputError where it is refused."""
        # A row of a sweep, whose other runs go on; of a single run it is for the user to decide.
        if (refusal := private_network.explain_refusal(spec.config)) is not None and spec.unsupported == refusal:
            raise InputError(refusal)
        self.console.print_open_ports([spec])
        folder = Path(str(config.hydra.run.dir))
        run = SweepRun([], spec, earlier=folder if config.resume and is_done_before(spec, folder) else None)
        if config.dry_run:
            is_job = run.starts and cluster_runs.is_submitted(spec)
            self.show_plan([run], [[[0]]] if is_job else [], folder, several=False)
            return
        if run.earlier is None:
            self._claim(spec, folder, config.resume)
        self.folder = folder.absolute()
        context.callbacks.on_run_start(config=config, config_name=config.hydra.job.config_name)
        job = run_job(
            task_function=lambda _: self.run_one(run, folder.absolute(), config.resume),
            config=config,
            job_dir_key="hydra.run.dir",
            job_subdir_key=None,
            hydra_context=context,
        )
        context.callbacks.on_run_end(config=config, config_name=config.hydra.job.config_name, job_return=job)
        _ = job.return_value  # raises what the run raised
        if self._refusal is not None:
            raise InputError(self._refusal)
        if self.done and self.console.shows_tables:
            self._print_single(self.folder)

    def _claim(self, spec: RunSpec, folder: Path, resume: bool) -> None:
        """Make the folder that of a single run before Hydra writes there. Raise InputError where it is another's."""
        if not resume:
            refuse_folder_with_result(folder)
        refuse_foreign_folder(folder)
        prepare_datasets([spec], self.console)
        if (folder / RESULT_FILE).exists():  # of a run that was not successful
            clear_run_folder(folder, of_ended_job=(folder / JOB_FILE).exists())
        if not cluster_runs.is_submitted(spec):  # else its job locks the folder
            self._lock = claim_run_folder(spec, folder)

    def run_one(self, run: SweepRun, folder: Path, resume: bool) -> None:
        """Do one run in its folder. It raises no error of the user or of the file system: other runs may follow."""
        from scalebench.runner.parent import UnwrittenResult

        try:
            if folder in self.collected:
                result, note = self.collected[folder], ""
            elif run.earlier is not None:
                result, note = read_result(folder / RESULT_FILE), KEPT
            else:
                result, note = self._measure(run.spec, folder, resume), ""
        except InputError as error:
            self._refuse(str(error))
        except UnwrittenResult as error:
            self._print_unwritten(error)
        except OSError as error:  # before it was started
            self._refuse(f"{folder} cannot be written: {error.strerror or error}")
        else:
            settings = name_settings(run.overrides, self._swept_keys)
            place = (len(self.done) + 1, self._count_planned())
            self.console.print_outcome(result, folder, place, settings, note)
            if not note:
                record_pace(result)
            self.done.append(result)

    def expect_more(self, runs: int) -> None:
        """Count runs of a further repeat among those that are planned."""
        self._planned += runs

    def _refuse(self, line: str) -> None:
        """End a call of a single run that was not started; a sweep continues without the run that was refused."""
        if self.sweep is None and not self.done:
            self._refusal, self._launched = line, False
        else:
            self._refused_status = 1
            self.console.print_error(line)

    def _count_planned(self) -> int:
        """Return the number of runs, also of a sweep that has planned its baselines once more."""
        recorded = 0 if self.sweep is None else len(self.sweep.record.runs)
        return max(self._planned, self.expected, recorded)

    def _print_single(self, folder: Path) -> None:
        try:
            self.console.print_table([folder])
            self.console.print_details(folder)
        except (MemoryError, ImportError) as error:
            self._refused_status = 1
            self.console.print_error(f"{folder}: no table: {process.describe_error(error)}; show prints it")

    def _measure(self, spec: RunSpec, folder: Path, resume: bool) -> Result:
        from scalebench.runner.parent import run_spec

        if cluster_runs.is_submitted(spec):
            return cluster_runs.run_single(spec, folder.absolute(), self.console, resume)
        sweep = self.sweep
        if sweep is None:
            with self.console.show_progress(spec, len(self.done) + 1, self._count_planned()) as on_look:
                self._launched = True
                return run_spec(spec, folder, on_look, lock=self._lock)
        with self.console.show_progress(
            spec, len(self.done) + 1, self._count_planned(), sweep.format_time_left
        ) as on_look:

            def look(ranks: list[RankProgress]) -> None:
                sweep.update_time_left(estimate_left_s(spec, ranks, time.time()))
                on_look(ranks)

            self._launched = True
            return run_spec(spec, folder, look)

    def run_cohort(self, runs: Sequence[CohortRun]) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of each of these runs that could be done side by side."""
        from scalebench.sweeps.cohort import Cohort

        time_left = self.sweep.format_time_left if self.sweep is not None else str
        self._launched = True
        number, planned = len(self.done) + 1, self._count_planned()
        with self.console.show_cohort(number, len(runs), planned, time_left) as on_progress:
            cohort = Cohort(runs, on_progress)
            yield from cohort.run()
        for error in cohort.unwritten:
            self._print_unwritten(error)

    def _print_unwritten(self, error: UnwrittenResult) -> None:
        self._refused_status = 1
        self.console.print_error(f"{error.folder} cannot be written: {error.strerror}; here is the record of its run")
        self.console.print_line(error.record)

    def show_plan(
        self, planned: Sequence[SweepRun], jobs: Sequence[Sequence[Sequence[int]]], folder: Path, several: bool
    ) -> None:
        """Print what would be run in the folder of a sweep (`several`), or in that of a single run, and take the exit
        status that it would have; `jobs` have the positions of their runs, in units."""
        self._refused_status = compute_exit_status([run.expect_status() for run in planned], self.strict)
        on_cluster = [run for run in planned if cluster_runs.is_for_cluster(run.spec)]
        local = [run for run in planned if not (several and cluster_runs.is_for_cluster(run.spec))]
        if local:
            keys = find_swept_keys(planned)
            self.console.print_plan(local, [name_settings(run.overrides, keys) for run in local])
        runs_of_jobs = [[planned[position] for unit in job for position in unit] for job in jobs]
        if jobs or (several and on_cluster):
            job_plan.print_jobs(self.console, runs_of_jobs, [run for run in on_cluster if not run.starts])
        if jobs:
            job_plan.print_remote_note(self.console, [run.spec for runs in runs_of_jobs for run in runs])
            job_plan.print_largest_script(self.console, runs_of_jobs, folder.absolute(), several)

    def cool_down(self, seconds: float) -> None:
        """Pause before the next run of a sweep. Ctrl-C and SIGTERM raise KeyboardInterrupt, as in a run."""
        if seconds > 0:
            with self.console.show_pause(seconds):
                if process.cancelled.wait(seconds):
                    raise KeyboardInterrupt

    def begin_sweep(
        self,
        planned: Sequence[SweepRun],
        folder: Path,
        max_minutes: float | None,
        report: bool,
        export: str = "none",
    ) -> RunningSweep:
        """Begin a sweep, or the next batch of a search. Raise InputError while another program uses this folder."""
        if self.sweep is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder)
            self._planned = 0
            self.sweep = RunningSweep(folder, self.arguments, max_minutes, report, export)
            self.sweep.record.question = planned[0].spec.config.sweep.question if planned else None
        self._planned += len(planned)
        self._swept_keys |= find_swept_keys(planned)
        self.console.print_open_ports([run.spec for run in planned])
        return self.sweep

    def finish(self) -> int:
        """Complete the sweep, if there is one, after its last run. Return the program's exit status."""
        if self.sweep is None:
            return self.exit_status()
        folder = self.sweep.folder
        try:
            self.sweep.mark_ended()
            self.end_sweep()
        except Exception as error:
            is_expected = isinstance(error, (InputError, OSError, MemoryError, ImportError))
            reason = process.describe_error(error) if is_expected else repr(error)
            self.console.print_error(f"{folder}: no report: {reason}")
            return 1
        return min(1, self.exit_status())  # 2 means that nothing was started

    def stop(self) -> None:
        """Report the finished runs of a sweep that was cancelled, or that cannot go on."""
        if self.sweep is not None:
            with contextlib.suppress(OSError):  # a full disk: the table can still be printed
                self.sweep.mark_stopped()
            self.end_sweep()

    def has_started(self) -> bool:
        """Return whether a run was started, or one that a scheduler has done was collected."""
        return self._launched or bool(self.done or self.collected)

    def end_sweep(self) -> None:
        """Print the sweep's table and the runs that were left out, write its files and its report. Raise InputError
        where there is nothing to report, OSError where the files cannot be written."""
        from scalebench.report.tables import write_tables

        sweep, self.sweep = self.sweep, None
        assert sweep is not None
        record = sweep.record
        if len(record.left_out) == len(record.runs):
            raise InputError(f"not one run fits into sweep.max_minutes={record.max_minutes:g}")
        if self.console.shows_tables:
            self.console.print_line("")
        survey = self.console.print_table([sweep.folder])
        write_tables(sweep.folder, survey)
        self.console.print_left_out(record)
        try:
            if sweep.report:
                self._write_report(sweep.folder, survey)
            if sweep.export != "none":
                self._export(sweep)
        finally:
            for call in self.at_end:
                call()

    def _write_report(self, folder: Path, survey: Survey) -> None:
        from scalebench.report.html import page
        from scalebench.report.report_data import make_report_data

        with self.console.show_activity("the report"):
            path = page.write(make_report_data([folder], survey), folder / "report.html")
        self.console.print_line(f"report: {path}")

    def _export(self, sweep: RunningSweep) -> None:
        from scalebench.report import trackers

        with self.console.show_activity(f"the export to {sweep.export}"):
            lines = trackers.export(sweep.export, [sweep.folder])
        self.console.print_line(f"exported: {', '.join(lines)}")

    def release(self) -> None:
        """Let other programs use the folder again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def exit_status(self) -> int:
        """Return 2 where nothing was started, else the status of the runs (`compute_exit_status`)."""
        return self._refused_status or compute_exit_status([run.status for run in self.done], self.strict)


def prepare_datasets(specs: Sequence[RunSpec], console: Console) -> None:
    """Make every data set that these runs read, before the first of them. Raise InputError where one is too small."""
    seen = set()
    for spec in specs:
        d, model = spec.config.dataset, spec.config.model
        samples = (*model.input_shape, "->", *model.target_shape, model.outputs)
        user_code = (d.builder, d.code_digest, d.requested_size, str(d.options))
        key = (d.name, d.size, d.seed, d.path, d.dtype, d.classes, d.cache, user_code, samples)
        has_no_cache = spec.config.script.path is not None or d.loader is not None
        if not spec.can_start or has_no_cache or key in seen:
            continue
        seen.add(key)
        with console.show_activity(f"data set {d.path or d.name} ({d.size:,} samples)"):
            folder = datasets.prepare(spec.config)
        if d.path is not None:
            _check_user_data(spec, folder)


def _check_user_data(spec: RunSpec, folder: Path) -> None:
    from scalebench.workloads.datasets import cache

    samples = datasets.count_train_samples(spec.config.dataset, len(cache.open_arrays(folder)[0]))
    if samples < spec.global_batch:
        raise InputError(
            f"dataset.path={spec.config.dataset.path} gives {samples} training samples, fewer than one global "
            f"batch of {spec.global_batch}: lower train.batch_per_device or gpus"
        )
