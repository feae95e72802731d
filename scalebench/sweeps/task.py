"""One call of the program: the function that Hydra calls for each run, and the state of the call so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

from scalebench.analysis.load import Survey
from scalebench.config.compose import to_config
from scalebench.config.error_messages import explain_error
from scalebench.config.resolve import resolve
from scalebench.core import process
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock
from scalebench.core.machine import private_network
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import JOB_FILE, RESULT_FILE, refuse_foreign_folder
from scalebench.core.spec import RunSpec
from scalebench.core.sweep_file import MULTIRUN_FILE, refuse_foreign_sweep_folder
from scalebench.measure.progress import RankProgress
from scalebench.report.tables import write_tables
from scalebench.runner.parent import (
    UnwrittenResult,
    claim_run_folder,
    clear_run_folder,
    is_done_before,
    refuse_folder_with_result,
    run_spec,
)
from scalebench.sweeps import cluster_runs, job_plan
from scalebench.sweeps.cohort import Cohort, CohortRun
from scalebench.sweeps.console import Console
from scalebench.sweeps.execute import RunningSweep
from scalebench.sweeps.pace import record_pace
from scalebench.sweeps.plan import KEPT, SweepRun, compute_exit_status, find_swept_keys, name_settings
from scalebench.sweeps.time_estimate import estimate_left_s
from scalebench.workloads import datasets
from scalebench.workloads.datasets import user_function


class RepeatsRequested(SystemExit):
    """Raised for a single run with several repeats, which is a sweep. It is a SystemExit, since no other exception of a
    callback leaves Hydra."""


class NothingStarted(SystemExit):
    """Raised where bad input is refused before anything was started; a SystemExit for the same reason."""

    def __init__(self, line: str) -> None:
        super().__init__(2)
        self.line = line


class SweepSession:
    """The state of one call of the program, which does a sweep or a single run.

    Hydra creates the launcher and the sweeper itself, and passes them nothing of ours but the task function. That is
    the bound method `session.run_one`, from which `get_session` gets the session: nothing global is needed.
    """

    def __init__(self, arguments: Sequence[str], console: Console | None = None, is_single: bool = False) -> None:
        """`is_single`: several repeats, which make a sweep, are refused."""
        user_function.forget_failures()
        self.arguments = list(arguments)  # of the command line
        self.console, self.is_single = console or Console(), is_single
        self.folder: Path | None = None  # of the sweep, or of a single run
        self.done: list[Result] = []  # here, since Hydra drops what a task function returns
        self._planned = 1  # without the baselines that a sweep repeats
        self.expected = 0  # runs of a sweeper that plans one batch after the other; 0: those that are planned
        self._launched = False  # the processes of a run, of which nothing may be in `done` yet
        self._swept_keys: set[str] = set()  # those in which planned runs differ, but for strategy, devices and repeat
        self.sweep: RunningSweep | None = None  # from begin_sweep to end_sweep
        self.collected: dict[Path, Result] = {}  # by folder: results of runs that a scheduler has done
        self.not_in_turns: set[Path] = set()  # folders of runs that could not take turns with the others
        self.at_end: list[Callable[[], None]] = []  # called below the table of the sweep
        self.strict = False  # as in the config
        self._refused_status = 0  # exit status of runs that left no result
        self._lock: FolderLock | None = None  # on the folder of the sweep, or of a single run
        self._new_folders: list[Path] = []  # folders that Hydra makes for the sweep, innermost first

    def run_one(self, composed: DictConfig) -> None:
        """Run one config in the output folder that Hydra made. No run of a sweep raises here, since Hydra would end the
        sweep. Raise NothingStarted for a single run that is refused."""
        try:
            self._run_one(composed)
        except InputError as error:
            self._refuse(str(error))
        except UnwrittenResult as error:
            self._print_unwritten(error)
        except OSError as error:  # before it was started
            self._refuse(f"{HydraConfig.get().runtime.output_dir} cannot be written: {error.strerror or error}")

    def _refuse(self, line: str) -> None:
        """End a call of a single run that was not started; a sweep continues without the run that was refused."""
        if self.sweep is None and not self.done:
            raise NothingStarted(line)
        self._refused_status = 1
        self.console.print_error(line)

    def _run_one(self, composed: DictConfig) -> None:
        hydra = HydraConfig.get()
        folder = Path(hydra.runtime.output_dir)
        single = hydra.mode == RunMode.RUN
        self.folder = folder if single else self.folder
        if not single and self.sweep is None:
            raise InputError("a sweep of scalebench needs its own launcher: leave out hydra/launcher")
        if folder.absolute() in self.collected:
            result = self.collected[folder.absolute()]
            self._print_outcome(result, folder)
            record_pace(result)
        elif (folder / RESULT_FILE).exists() and composed.resume:
            result = read_result(folder / RESULT_FILE)
            self._print_outcome(result, folder, KEPT)
        else:
            spec = resolve(to_config(composed))
            if folder.absolute() in self.not_in_turns:
                spec.flags.append("not_in_turns")
            if single and spec.config.dry_run:
                planned = self.planned_folder("hydra.run.dir")
                kept = planned if composed.resume and is_done_before(spec, planned) else None
                self.show_plan([SweepRun([], spec, earlier=kept)], several=False)
                return
            result = self._measure(spec, folder, composed.resume)
            self._print_outcome(result, folder)
            record_pace(result)
        self.done.append(result)
        if single:
            self._print_single(folder)

    def _count_planned(self) -> int:
        """Return the number of runs, also of a sweep that has planned its baselines once more."""
        recorded = 0 if self.sweep is None else len(self.sweep.record.runs)
        return max(self._planned, self.expected, recorded)

    def _print_outcome(self, result: Result, folder: Path, note: str = "") -> None:
        settings = name_settings(HydraConfig.get().overrides.task, self._swept_keys)
        self.console.print_outcome(result, folder, (len(self.done) + 1, self._count_planned()), settings, note)

    def _print_single(self, folder: Path) -> None:
        if not self.console.shows_tables:
            return
        try:
            self.console.print_table([folder])
            self.console.print_details(folder)
        except (MemoryError, ImportError) as error:
            self._refused_status = 1
            self.console.print_error(f"{folder}: no table: {process.describe_error(error)}; show prints it")

    def _measure(self, spec: RunSpec, folder: Path, resume: bool) -> Result:
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

    def show_plan(self, planned: Sequence[SweepRun], several: bool) -> None:
        """Print what would be run, in a sweep (`several`) or as a single run."""
        one_job = several and cluster_runs.is_one_job([run.spec for run in planned if run.earlier is None])
        on_cluster = [run for run in planned if cluster_runs.is_for_cluster(run.spec)]
        jobs = [run for run in on_cluster if run.starts]
        local = [run for run in planned if not (several and cluster_runs.is_for_cluster(run.spec))]
        if local:
            keys = find_swept_keys(planned)
            self.console.print_plan(local, [name_settings(run.overrides, keys) for run in local])
        if jobs or (several and on_cluster):
            job_plan.print_jobs(self.console, on_cluster, one_job)
        if not jobs:
            return
        specs = [run.spec for run in jobs]
        job_plan.print_remote_note(self.console, specs)
        folder = self.planned_folder("hydra.sweep.dir" if several else "hydra.run.dir")
        if one_job:
            job_plan.print_sweep_script(self.console, specs, folder)
        else:
            folders = [folder / str(run.number) if several else folder for run in jobs]
            job_plan.print_largest_script(self.console, specs, folders)

    def planned_folder(self, key: str) -> Path:
        """Return the folder that a planned run or sweep would get, by its key; in a dry run Hydra itself gets a
        temporary one. A run that is a sweep, since it has repeats, may name that of the run."""
        words = {word.lstrip("+").partition("=")[0]: word for word in self.arguments}
        if (word := words.get(key, words.get("hydra.run.dir"))) is None:
            pattern = OmegaConf.select(OmegaConf.load(conf_dir() / "config.yaml"), key)
        else:
            pattern = OverridesParser.create().parse_override(word).value()
        return Path(str(OmegaConf.create({"folder": pattern}).folder)).absolute()

    def cool_down(self, seconds: float) -> None:
        """Pause before the next run of a sweep. Ctrl-C and SIGTERM raise KeyboardInterrupt, as in a run."""
        if seconds > 0:
            with self.console.show_pause(seconds):
                if process.cancelled.wait(seconds):
                    raise KeyboardInterrupt

    def expect_folder(self, folder: Path) -> None:
        """Remember the sweep's folder, and which ones Hydra is about to make, for `drop_unused_folder`."""
        self.folder = folder
        self._new_folders = [new for new in (folder, *folder.parents) if not new.exists()]

    def drop_unused_folder(self) -> None:
        """Remove the folder of a refused sweep: Hydra makes it before it checks whether the sweep makes sense."""
        folders, self._new_folders = self._new_folders, []
        if folders and [path.name for path in folders[0].glob("*")] == [MULTIRUN_FILE]:
            (folders[0] / MULTIRUN_FILE).unlink()
            with contextlib.suppress(OSError):  # another program has made a folder there
                for folder in folders:
                    folder.rmdir()

    def hold(self, lock: FolderLock) -> None:
        """Take over the lock on the folder of a single run."""
        self._lock = lock

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
            self._planned, self._new_folders = 0, []
            self.sweep = RunningSweep(folder, self.arguments, max_minutes, report, export)
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
        from scalebench.report.html import page  # its import takes longer than a dry run
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
        return self._refused_status or compute_exit_status(self.done, self.strict)


def get_session(task_function: TaskFunction) -> SweepSession:
    """Return the session whose `run_one` Hydra was started with."""
    session = getattr(task_function, "__self__", None)
    assert isinstance(session, SweepSession), "scalebench's launcher runs scalebench's own task function only"
    return session


class CheckFolders(Callback):
    """Refuses an invalid single run, and a folder that is not scalebench's, before Hydra writes there; a run with
    several repeats becomes a sweep.

    Hydra turns exceptions of callbacks into warnings, except for SystemExit.
    """

    def __init__(self) -> None:
        self._lock: FolderLock | None = None  # on the folder of a single run, until there is a session to hold it

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        console = Console()
        with _refuse_in_one_line():
            spec = resolve(to_config(config))
            if spec.repeats > 1:
                raise RepeatsRequested
            # A row of a sweep, whose other runs go on; of a single run it is for the user to decide.
            if (refusal := private_network.explain_refusal(spec.config)) is not None and spec.unsupported == refusal:
                raise InputError(refusal)
            console.print_open_ports([spec])
            if not config.dry_run:
                self._claim(spec, Path(str(config.hydra.run.dir)), config.resume, console)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with _refuse_in_one_line():
            if not config.dry_run:
                refuse_foreign_sweep_folder(Path(str(config.hydra.sweep.dir)))

    def on_job_start(self, config: DictConfig, *, task_function: TaskFunction, **kwargs: Any) -> None:
        if self._lock is not None:
            get_session(task_function).hold(self._lock)

    def _claim(self, spec: RunSpec, folder: Path, resume: bool, console: Console) -> None:
        if resume and is_done_before(spec, folder):
            return
        if not resume:
            refuse_folder_with_result(folder)
        refuse_foreign_folder(folder)
        prepare_datasets([spec], console)
        if (folder / RESULT_FILE).exists():  # of a run that was not successful
            clear_run_folder(folder, of_ended_job=(folder / JOB_FILE).exists())
        if not cluster_runs.is_submitted(spec):  # else its job locks the folder
            self._lock = claim_run_folder(spec, folder)


@contextlib.contextmanager
def _refuse_in_one_line() -> Iterator[None]:
    """Raise an error of the block as NothingStarted."""
    try:
        yield
    except Exception as error:
        raise NothingStarted(explain_error(error, [])) from error


def prepare_datasets(specs: Sequence[RunSpec], console: Console) -> None:
    """Make every data set that these runs read, before the first of them. Raise InputError where one is too small."""
    seen = set()
    for spec in specs:
        d, model = spec.config.dataset, spec.config.model
        samples = (*model.input_shape, "->", *model.target_shape, model.outputs)
        user_code = (d.builder, d.code_digest, d.requested_size, str(d.options))
        key = (d.name, d.size, d.seed, d.path, d.dtype, d.classes, d.cache, user_code, samples)
        if not spec.can_start or key in seen:
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
