"""One call of the program: its single run or the runs of its sweep, each planned, run, recorded and printed in turn."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf

from scalebench.cluster.commands import find_site
from scalebench.config.compose import Loader, to_config
from scalebench.config.resolve import resolve
from scalebench.core import folder_lock, process
from scalebench.core.errors import InputError
from scalebench.core.machine import private_network
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import JOB_FILE, RESULT_FILE, refuse_foreign_folder
from scalebench.core.spec import SWEEP_REPEATS, RunSpec
from scalebench.core.sweep_file import MULTIRUN_FILE
from scalebench.sweeps import cluster_runs, plan
from scalebench.sweeps.console import Console
from scalebench.sweeps.execute import RunningSweep, lock_machine
from scalebench.sweeps.plan import KEPT, SweepRun, compute_exit_status, find_swept_keys, name_settings
from scalebench.workloads import datasets

# The imports of what measures and reports take longer than a dry run: each is in the function that needs it.
FOREIGN_LAUNCHER = "a sweep of scalebench needs its own launcher: leave out hydra/launcher"
NO_MAX_MINUTES = (
    "sweep.max_minutes is for runs on this machine, and how long jobs wait in a queue is unknown; leave it out: "
    "hardware.slurm.time_minutes limits each job"
)
MAX_HALF_WIDTH = 0.1  # of a ratio's limits, as a share of it, where a sweep that may go on ends


class SweepSession:
    """The state of one call of the program, which does a sweep or a single run.

    It is also the task function of Hydra's sweepers, by which our launcher gets it: they pass on nothing else of ours.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        config: DictConfig | None = None,
        loader: Loader | None = None,
        shows_tables: bool = True,
    ) -> None:
        """`config` is what the `loader` has composed of the `arguments` of the command line."""
        self.arguments = list(arguments)
        self.config, self._loader = OmegaConf.create() if config is None else config, loader
        self._is_resumed, self._is_strict = bool(self.config.get("resume")), bool(self.config.get("strict"))
        self.console = Console(shows_tables)
        self.folder: Path | None = None  # of the sweep, or of a single run, once it has begun
        self.done: list[Result] = []
        self.expected = 0  # runs of a sweeper that plans one batch after the other; 0: those that are planned
        self._swept_keys: set[str] = set()  # those in which planned runs differ, but for strategy, devices and repeat
        self.sweep: RunningSweep | None = None  # from begin_sweep to end_sweep
        self.at_end: list[Callable[[], None]] = []  # called below the table of the sweep
        self._refused_status = 0  # exit status of runs that left no result
        self._lock: folder_lock.FolderLock | None = None  # on the folder of the sweep, or of a single run
        self._machine_lock: folder_lock.FolderLock | None = None  # from the first run on this machine on

    def __call__(self, config: DictConfig) -> NoReturn:
        raise InputError(FOREIGN_LAUNCHER)  # only another launcher calls it

    def run_single(self, spec: RunSpec) -> None:
        """Do a single run, or show its plan. Raise InputError where it is refused."""
        # A row of a sweep, whose other runs go on; of a single run it is for the user to decide.
        if (refusal := private_network.explain_refusal(spec.config)) is not None and spec.unsupported == refusal:
            raise InputError(refusal)
        self.console.print_open_ports([spec])
        folder = Path(str(self.config.hydra.run.dir))
        run = SweepRun(list(self.config.hydra.overrides.task), spec, folder=folder.absolute())
        run.earlier = folder.absolute() if self._is_resumed and folder_lock.is_done_before(spec, folder) else None
        if self.config.dry_run:
            is_job = run.starts and cluster_runs.is_submitted(spec)
            self.show_plan([run], [[[run]]] if is_job else [], folder, several=False)
            return
        if run.earlier is None:
            if not self._is_resumed:
                folder_lock.refuse_folder_with_result(folder)
                cluster_runs.refuse_running(cluster_runs.select_submitted([run]))
            refuse_foreign_folder(folder)
            prepare_datasets([spec], self.console)
            if (folder / RESULT_FILE).exists():  # of a run that was not successful
                folder_lock.clear_run_folder(folder, of_ended_job=(folder / JOB_FILE).exists())
            if not cluster_runs.is_submitted(spec):  # else its job locks the folder
                self._lock = folder_lock.claim_run_folder(spec, folder)
        self.folder = run.folder
        self._lock_machine([run])
        self._run_alone(run)
        if self.done and self.console.shows_tables:
            try:
                self.console.print_table([self.folder])
                self.console.print_details(self.folder)
            except (MemoryError, ImportError) as error:
                self._refused_status = 1
                self.console.print_error(f"{folder}: no table: {process.describe_error(error)}; show prints it")

    def run_batch(self, lines: Sequence[Sequence[str]], first: int, is_whole: bool) -> list[SweepRun]:
        """Plan the runs of these lines of overrides and do them; return those that were planned. `is_whole`: they are a
        whole sweep, else a batch of one, whose runs are numbered from `first` on.

        Nothing starts before every run has been checked.
        """
        planned = plan.plan_sweep(lines, self.resolve_run)
        sweep_dir = Path(str(self.config.hydra.sweep.dir))
        earlier = plan.find_earlier_results(sweep_dir.absolute()) if self._is_resumed else {}
        for run in planned:
            run.earlier = earlier.get(run.key)
        # A search numbers its trials itself.
        present = plan.find_numbers(sweep_dir.absolute(), earlier) if self._is_resumed and is_whole else None
        unused = plan.number_runs(planned, first, present)
        plan.check_question(self.config.sweep.question, planned)
        submitted = cluster_runs.select_submitted(planned)
        if submitted and self.config.sweep.max_minutes is not None:
            raise InputError(NO_MAX_MINUTES)
        self._set_folders(planned)
        if self._is_resumed and not self.config.dry_run:
            planned += cluster_runs.adopt(submitted, planned, sweep_dir.absolute())
        jobs = plan.plan_jobs([run for run in submitted if run.adopted is None], planned, unused)
        self._set_folders(planned)
        if self.config.dry_run:
            self.show_plan(planned, jobs, sweep_dir, several=True)
            return []
        plan.check_folders(planned, self._is_resumed)
        prepare_datasets([run.spec for run in planned if run.earlier is None], self.console)
        sweep = self.begin_sweep(planned, sweep_dir)
        if not self._is_resumed:  # and no other program waits for them: it would have the folder
            cluster_runs.refuse_running(submitted)
        self.folder = sweep_dir
        if is_whole:  # another sweeper has written it
            OmegaConf.save(self.config, sweep_dir / MULTIRUN_FILE)
        self._run_all(planned, jobs, sweep, unused)
        repeats = itertools.count(SWEEP_REPEATS) if is_whole else ()
        for repeat in repeats:
            more = plan.plan_further_repeat(planned, repeat)
            if not more or not self._needs_repeat(more, sweep):
                break
            for run in more:
                run.earlier = earlier.get(run.key)
                name = run.earlier.name if run.earlier and run.earlier.parent == sweep_dir.absolute() else ""
                run.number = int(name) if name.isdecimal() else next(unused)
            planned += more
            jobs = plan.plan_jobs(cluster_runs.select_submitted(more), more, unused)
            self._set_folders(more)
            self._run_all(more, jobs, sweep, unused)
        return planned

    def _run_all(
        self,
        planned: list[SweepRun],
        jobs: Sequence[Sequence[Sequence[SweepRun]]],
        sweep: RunningSweep,
        unused: Iterator[int],
    ) -> None:
        """Do these runs: first those of `jobs`, which a scheduler does at once, then the others on this machine."""
        sweep.add(planned)
        adopted = [run for run in planned if run.adopted is not None]
        submitted = {*itertools.chain(*itertools.chain(*jobs)), *adopted}
        if submitted:
            for run, result in cluster_runs.follow(jobs, adopted, sweep.folder, self.console, self._is_resumed):
                with cluster_runs.delay_interrupts():
                    self._end(run, result)
        local = [run for run in planned if run not in submitted]
        self._lock_machine(local)
        sweep.do(local, planned, unused, self._do_unit)

    def _lock_machine(self, runs: Sequence[SweepRun]) -> None:
        if self._machine_lock is None and any(run.starts and not cluster_runs.is_submitted(run.spec) for run in runs):
            self._machine_lock = lock_machine(self.console, bool(self.config.wait))

    def _do_unit(self, unit: list[SweepRun]) -> Sequence[SweepRun]:
        """Do a run, or several that take turns. Return those that are over; the others have left nothing."""
        assert self.sweep is not None
        self._set_folders(unit)
        if len(unit) == 1:
            self._run_alone(unit[0])
            return unit
        from scalebench.runner.parent import RunRequest
        from scalebench.sweeps.cohort import Cohort

        for run in unit:
            run.tried_turns = True
            if self._is_resumed:
                folder_lock.clear_run_folder(run.folder)  # of a run that was not successful
        place = (len(self.done) + 1, len(unit), self._count_planned())
        with self.console.show_cohort(*place, self.sweep.format_time_left) as on_progress:
            runs = {RunRequest(run.number, run.spec, run.folder, run.bare): run for run in unit}
            results = [(runs[request], result) for request, result in Cohort([*runs], on_progress).run()]
        for run, result in results:
            self._end(run, result)
        return [run for run, _ in results]

    def _run_alone(self, run: SweepRun) -> None:
        """Do one run by itself. Raise InputError where a single run is refused; a sweep continues with its others."""
        try:
            if run.earlier is not None:
                cluster_runs.copy_earlier_run(run.earlier, run.folder)
                self._end(run, read_result(run.folder / RESULT_FILE), KEPT)
            else:
                self._end(run, self._measure(run))
        except (InputError, OSError) as error:  # before it was started
            if self.sweep is None:
                self.folder = None
                if isinstance(error, OSError):
                    raise InputError(f"{run.folder} cannot be written: {error.strerror or error}") from None
                raise
            if isinstance(error, OSError):  # the next one would fail as well
                raise
            self._refused_status = 1
            self.console.print_error(str(error))

    def _measure(self, run: SweepRun) -> Result:
        from scalebench.runner.parent import run_spec

        sweep, spec = self.sweep, run.spec
        if cluster_runs.is_submitted(spec):  # a single run
            running = cluster_runs.find_running([spec], run.folder) if self._is_resumed else {}
            run.adopted = cluster_runs.match_running([run], running).get(run)
            jobs, adopted = ([[[run]]], []) if run.adopted is None else ([], [run])
            ((_, result),) = cluster_runs.follow(jobs, adopted, run.folder, self.console, self._is_resumed)
            return result
        if sweep is not None and self._is_resumed:
            folder_lock.clear_run_folder(run.folder)  # of a run that was not successful
        if run.tried_turns:
            spec = replace(spec, flags=[*spec.flags, "not_in_turns"])
        time_left = str if sweep is None else sweep.format_time_left
        with self.console.show_progress(spec, len(self.done) + 1, self._count_planned(), time_left) as on_look:
            return run_spec(spec, run.folder, on_look, lock=self._lock if sweep is None else None)

    def _end(self, run: SweepRun, result: Result, note: str = "") -> None:
        """Record that a run is over, and print its line."""
        if not note:
            self._write_hydra_files(run)
        place = (len(self.done) + 1, self._count_planned())
        self.console.print_outcome(result, run.folder, place, name_settings(run.overrides, self._swept_keys), note)
        self.done.append(result)

    def _write_hydra_files(self, run: SweepRun) -> None:
        """Write what other programs of Hydra write, beside the result of a run: its config, Hydra's settings, and its
        overrides. A run is complete without them."""
        if (name := OmegaConf.select(self.config, "hydra.output_subdir")) is not None:
            contents: tuple[Any, ...] = (
                asdict(run.spec.config),
                OmegaConf.masked_copy(self.config, "hydra"),
                run.overrides,
            )
            with contextlib.suppress(OSError):
                (run.folder / str(name)).mkdir(parents=True, exist_ok=True)
                for file, content in zip(("config", "hydra", "overrides"), contents, strict=True):
                    OmegaConf.save(OmegaConf.create(content), run.folder / str(name) / f"{file}.yaml")

    def _count_planned(self) -> int:
        """Return the number of runs, also of a sweep that has planned its baselines once more."""
        return max(1 if self.sweep is None else len(self.sweep.record.runs), self.expected)

    def _needs_repeat(self, more: Sequence[SweepRun], sweep: RunningSweep) -> bool:
        """Return whether a sweep goes on with one more repeat, and say so: the limits of its ratios are too wide for a
        verdict, whatever the ratios are, and there is time."""
        from scalebench.analysis.load import survey
        from scalebench.analysis.ranking import find_widest_ratio

        if not sweep.has_time_for(more):
            return False
        surveyed = survey(sweep.folder)
        width = find_widest_ratio(surveyed.pooled, surveyed.configurations.estimate_ratio)
        if width is None or width <= MAX_HALF_WIDTH:
            return False
        config = more[0].spec.config
        self.console.print_line(
            f"limits of ± {100 * min(width, 9.99):.0f} % are too wide for a verdict: repeat {config.repeat + 1} of at "
            f"most {config.measure.max_repeats} (measure.repeats={SWEEP_REPEATS} stops after {SWEEP_REPEATS})"
        )
        return True

    def resolve_run(self, overrides: Sequence[str]) -> RunSpec:
        """Compose and check one run of a sweep. Raise InputError or a composition error where it is invalid."""
        assert self._loader is not None
        return resolve(to_config(self._loader.load_sweep_config(self.config, list(overrides))))

    def _set_folders(self, runs: Sequence[SweepRun]) -> None:
        folder = Path(str(self.config.hydra.sweep.dir)).absolute()
        for run in runs:
            run.folder = folder / str(run.number)

    @staticmethod
    def max_concurrent_runs(spec: RunSpec) -> int:
        """Return how many runs like this one run side by side: as many jobs as may be in the queue, else 1."""
        return (spec.config.hardware.max_jobs or 1) if cluster_runs.is_submitted(spec) else 1

    def show_plan(
        self, planned: Sequence[SweepRun], jobs: Sequence[Sequence[Sequence[SweepRun]]], folder: Path, several: bool
    ) -> None:
        """Print what would be run in the folder of a sweep (`several`), or in that of a single run, and take the exit
        status that it would have; `jobs` have their runs in units."""
        self._refused_status = compute_exit_status([run.expect()[0] for run in planned], self._is_strict)
        keys = find_swept_keys(planned)
        self.console.print_plan(planned, [name_settings(run.overrides, keys) for run in planned])
        if jobs:
            runs = [[run for unit in job for run in unit] for job in jobs]
            cluster_runs.print_jobs(self.console, runs, folder.absolute(), several)

    def begin_sweep(self, planned: Sequence[SweepRun], folder: Path) -> RunningSweep:
        """Begin a sweep, or the next batch of a search. Raise InputError while another program uses this folder."""
        if self.sweep is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = folder_lock.FolderLock(folder)
            self.sweep = RunningSweep(folder, self.arguments, self.config.sweep.max_minutes)
            self.sweep.record.question = self.config.sweep.question
        self._swept_keys |= find_swept_keys(planned)
        self.console.print_open_ports([run.spec for run in planned])
        return self.sweep

    def finish(self) -> int:
        """Complete the sweep, if there is one, after its last run. Return the program's exit status: 2 where nothing
        was started, else that of its runs (`compute_exit_status`)."""
        sweep = self.sweep
        if sweep is not None:
            try:
                sweep.mark(ended=True)
                self._end_sweep()
            except Exception as error:
                is_expected = isinstance(error, (InputError, OSError, MemoryError, ImportError))
                reason = process.describe_error(error) if is_expected else repr(error)
                self.console.print_error(f"{sweep.folder}: no report: {reason}")
                return 1
        return self._refused_status or compute_exit_status([run.status for run in self.done], self._is_strict)

    def stop(self) -> None:
        """Report the finished runs of a sweep that was cancelled, or that cannot go on."""
        if self.sweep is not None:
            with contextlib.suppress(OSError):  # a full disk: the table can still be printed
                self.sweep.mark(stopped=True)
            self._end_sweep()

    def _end_sweep(self) -> None:
        """Print the sweep's table and the runs that were left out, write its files and its report. Raise InputError
        where there is nothing to report, OSError where the files cannot be written."""
        from scalebench.report.tables import write_tables

        sweep, self.sweep = self.sweep, None
        assert sweep is not None
        folder, record = sweep.folder, sweep.record
        if len(record.left_out) == len(record.runs):
            raise InputError(f"not one run fits into sweep.max_minutes={record.max_minutes:g}")
        if self.console.shows_tables:
            self.console.print_line("")
        survey = self.console.print_table([folder])
        write_tables(folder, survey)
        self.console.print_left_out(record)
        try:
            if self.config.sweep.report:
                from scalebench.report.html import page
                from scalebench.report.report_data import make_report_data

                with self.console.show_line("the report"):
                    path = page.write(make_report_data([folder], survey), folder / "report.html")
                self.console.print_line(f"report: {path}")
        finally:
            for call in self.at_end:
                call()

    def release(self) -> None:
        """Let other programs use the folder and the machine again."""
        for lock in (self._lock, self._machine_lock):
            if lock is not None:
                lock.release()
        self._lock = self._machine_lock = None


def prepare_datasets(specs: Sequence[RunSpec], console: Console) -> None:
    """Make every data set that these runs read, before the first of them. Raise InputError where one is too small."""
    seen = set()
    for spec in specs:
        d, model = spec.config.dataset, spec.config.model
        key = repr((d, model.input_shape, model.target_shape, model.outputs))
        # In pods the agents make the samples.
        has_no_cache = (
            find_site(spec.config.hardware) == "pods" or spec.config.script.path is not None or d.loader is not None
        )
        if not spec.can_start or has_no_cache or key in seen:
            continue
        seen.add(key)
        with console.show_line(f"data set {d.path or d.name} ({d.size:,} samples)"):
            folder = datasets.prepare(spec.config)
        if d.path is not None:
            from scalebench.workloads.datasets import cache

            count = datasets.count_train_samples(d, len(cache.open_arrays(folder)[0]))
            if count < spec.global_batch:
                raise InputError(
                    f"dataset.path={d.path} gives {count} training samples, fewer than one global batch of "
                    f"{spec.global_batch}: lower train.batch_per_device or gpus"
                )
