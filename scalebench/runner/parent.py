"""The parent's part of one run: RunSpec -> launcher -> rank files -> result.json.

A run always leaves a result.json, also when it failed; nothing here raises for a run that went wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock, claim_run_folder, read_holder
from scalebench.core.json_files import format_json
from scalebench.core.machine import machine, nccl_log
from scalebench.core.process import StartError, ignore_signals, print_error
from scalebench.core.result import Result, SchedulerRecord, read_result, write_result
from scalebench.core.run_folder import (
    LOCK_FILE,
    PLUGIN_LOG,
    RESULT_FILE,
    is_owned,
    launcher_log_name,
    rank_log_name,
    remove_leftovers,
    remove_transient_files,
)
from scalebench.core.spec import RunSpec, read_spec, write_spec
from scalebench.measure import nodes
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.measure.monitor.summary import MonitorPart, make_monitor_part
from scalebench.runner import launchers, max_batch, trace_merge
from scalebench.runner.collect import ResultParts, RunId, RunOutcome, assemble_result, classify_exit, read_ranks
from scalebench.runner.launchers import srun, waiting
from scalebench.runner.launchers.supervise import WORKER, OnProgress
from scalebench.runner.turns import Turns

RANK_RECORD_BYTES = 128 << 10  # a record of some hundred blocks with probes


@dataclass(eq=False)
class RunRequest:
    """A run to do, alone or with others: in a job, or in turns."""

    number: int  # in its sweep
    spec: RunSpec
    folder: Path  # its own
    bare: str | None = None  # fingerprint of its baseline without a wrapper


def run_spec(
    spec: RunSpec,
    folder: Path,
    on_progress: OnProgress = lambda progress: None,
    module: str = WORKER,
    turns: Turns | None = None,
    lock: FolderLock | None = None,
) -> Result:
    """Run `spec` in `folder` and leave its result.json there; with `turns`, beside the other runs of its cohort.

    `lock` is that of claim_run_folder, where the caller has claimed the folder; it is released in the end. Raises
    InputError as claim_run_folder does, OSError when the folder cannot be written before the start, and
    KeyboardInterrupt, after the result is written, when it was cancelled.
    """
    with lock or claim_run_folder(spec, folder):
        return _run(StartedRun(spec, folder, turns=turns), on_progress, module)


def _run(started: StartedRun, on_progress: OnProgress, module: str) -> Result:
    spec, folder = started.spec, started.folder
    write_spec(spec, folder)
    if spec.plugin_error is not None:
        log = PLUGIN_LOG if spec.plugin_traceback else None  # its code may have raised nothing
        if log is not None:
            (folder / log).write_text(spec.plugin_traceback, encoding="utf-8", errors="replace")
        return started.finish(RunOutcome("failed", spec.plugin_error, log=log))
    reason = spec.unsupported or max_batch.search_unsupported_reason(spec)
    if reason is not None:
        return started.finish(RunOutcome("unsupported", reason))
    remove_leftovers(folder)
    try:
        outcome = started.launch(on_progress, module)
    except KeyboardInterrupt:
        started.finish(RunOutcome("cancelled", "cancelled while it ran"))
        raise
    except Exception as error:
        text = f"the parent failed: {type(error).__name__}: {' '.join(str(error).split())}"
        result = started.finish(RunOutcome("failed", text))
        if isinstance(error, OSError):  # not a defect of scalebench, and the row says it
            return result
        raise
    return started.finish(outcome)


def finish_killed_run(folder: Path) -> None:
    """Write the result of a run whose program was killed, by SIGKILL or with its machine: the lock is still in its
    folder, and no process holds it.

    Another user's run, one of another host, and one whose folder cannot be written stay as they are.
    """
    with contextlib.suppress(ValueError, OSError):
        spec, holder = read_spec(folder), read_holder(folder)
        is_running = holder is not None and holder.is_alive()  # then waiting for its lock would be for nothing
        if is_running or (folder / RESULT_FILE).exists() or not is_owned(folder / LOCK_FILE):
            return
        with FolderLock(folder):
            if (folder / RESULT_FILE).exists():  # of a program that has ended just now
                return
            ranks = read_ranks(folder, spec.processes)
            run = RunId.new(None if holder is None else datetime.fromisoformat(holder.since).timestamp())
            machines = nodes.make_machines_part([], [rank for rank in ranks if rank is not None])
            outcome = RunOutcome("failed", "the program that ran it was killed")
            write_result(assemble_result(spec, run, outcome, ResultParts(ranks=ranks, machines=machines)), folder)
            remove_transient_files(folder)


@dataclass
class StartedRun:
    """A run whose result.json is still to be written, with the facts about it that only this process has."""

    spec: RunSpec
    folder: Path
    id: RunId = field(default_factory=RunId.new)
    scheduler: SchedulerRecord | None = None  # the job, where this process is not in it
    monitor: MonitorProcess | None = None
    search: max_batch.BatchSearch | None = None
    turns: Turns | None = None  # of a run that takes turns with others

    def launch(self, on_progress: OnProgress, module: str) -> RunOutcome:
        """Run the ranks, once or for each try of a batch search."""
        if self.spec.config.measure.search == max_batch.MAX_BATCH_SEARCH:
            self.search = max_batch.BatchSearch(self.spec, self.folder, self.id.id)
            return self.search.run(partial(_launch_once, self.id.id), on_progress)
        local = not nodes.has_node_reports(self.spec)
        self.monitor = MonitorProcess(self.spec, self.folder, local=local, run_id=self.id.id)
        if self.turns is not None:
            self.turns.monitor = self.monitor
        with self.monitor:
            return _launch_once(self.id.id, self.spec, self.folder, on_progress, module, self.turns)

    def finish(self, outcome: RunOutcome) -> Result:
        """Write result.json, which no signal interrupts, and return it. One that is there stays: the program that
        submitted this job has written it, since it took the node for dead. Where nothing can be written, as on a full
        disk, the record is printed, and the result is that of a failed run."""
        with ignore_signals():
            with contextlib.suppress(OSError):  # ranks that could not write their records on a full disk left none
                is_full = shutil.disk_usage(self.folder).free < RANK_RECORD_BYTES
                if is_full and outcome.status in ("failed", "timeout"):
                    reasons = filter(None, [outcome.reason, os.strerror(errno.ENOSPC)])
                    outcome = replace(outcome, reason="; ".join(reasons))
            spec = self.spec if self.search is None else self.search.spec
            result = assemble_result(spec, self.id, outcome, self._parts(spec, outcome))
            try:
                remove_transient_files(self.folder)
                if RESULT_FILE in os.listdir(self.folder):  # the file server is queried; a stat may be cached
                    with contextlib.suppress(InputError):
                        return read_result(self.folder / RESULT_FILE)
                write_result(result, self.folder)
            except OSError as error:
                line = f"{self.folder} cannot be written: {error.strerror}"
                print_error(f"{line}; here is the record of its run")
                print(format_json(result, indent=None).rstrip(), flush=True)
                return replace(result, status="failed", reason=line)
            return result

    def _parts(self, spec: RunSpec, outcome: RunOutcome) -> ResultParts:
        rank_folder = self.folder if self.search is None else self.search.rank_folder
        run_id = self.id.id if self.scheduler is None else None  # a job has an id of its own, which only it knows
        records = read_ranks(rank_folder, spec.processes, run_id)
        ranks = [rank for rank in records if rank is not None]
        reports = nodes.read_reports(spec, rank_folder, run_id)
        machines = nodes.make_machines_part(reports, ranks)
        monitor = MonitorPart()
        if self.search is None and (self.monitor is not None or any(reports)):
            reason = None if self.monitor is None else self.monitor.reason
            monitor = make_monitor_part(spec, self.folder, ranks, machines.machine, reason, reports)
        traces: Sequence[int] = ()
        with contextlib.suppress(OSError, ValueError):  # the run is still ok, and the ranks' own traces stay
            offsets_s = {rank.rank: rank.clock_offset_s for rank in ranks if rank.clock_offset_s is not None}
            traces = trace_merge.merge_traces(self.folder, offsets_s)
        return ResultParts(
            ranks=records,
            machines=machines,
            monitor=monitor,
            scheduler=self.scheduler or waiting.describe_jobset(spec) or srun.describe_current_job(spec),
            transports=nccl_log.read_transports(rank_folder / rank_log_name(rank) for rank in range(spec.processes)),
            merged_traces=traces,
            max_batch=None if self.search is None else self.search.answer,
            disturbed_rounds=[] if self.turns is None else self.turns.disturbed_rounds,
            log=_failure_log(self.folder, rank_folder, outcome),
        )


def _launch_once(
    run_id: str,
    spec: RunSpec,
    folder: Path,
    on_progress: OnProgress,
    module: str = WORKER,
    turns: Turns | None = None,
) -> RunOutcome:
    """Launch the ranks once, and return how that ended."""
    kills_before, independent = machine.oom_kills(), spec.config.strategy.independent
    try:
        ended = launchers.launch(spec, folder, run_id, on_progress, module, turns)
    except StartError as error:
        return RunOutcome("failed", f"the processes could not be started: {error.strerror or error}")
    oom_kill = False
    if ended.outcome is None and ended.broken is None:  # which need no other explanation
        oom_kill = kills_before is not None and (machine.oom_kills() or 0) > kills_before
        oom_kill = oom_kill or nodes.any_oom_kill(nodes.read_reports(spec, folder, run_id))
    return classify_exit(ended, read_ranks(folder, spec.processes, run_id), oom_kill, folder, independent)


def _failure_log(folder: Path, rank_folder: Path, outcome: RunOutcome) -> str | None:
    """Return the log with details of a failure: of the rank that failed first, else of the program that started the
    ranks."""
    if outcome.rank is None and outcome.log is not None:
        return outcome.log
    name = None if outcome.rank is None else rank_log_name(outcome.rank)
    if name is None and outcome.status in ("failed", "oom"):
        name = launcher_log_name(rank_folder)
    return name if name is None or rank_folder == folder else f"{rank_folder.name}/{name}"
