"""The parent's part of one run: RunSpec -> launcher -> rank files -> result.json. Layer 3.

A run always leaves a result.json, also when it failed; nothing here raises for a run that went wrong.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.machine import machine, nccl_log
from scalebench.core.process import StartError, signals_ignored
from scalebench.core.result import RankRecord, Result, SchedulerRecord, read_result, write_result
from scalebench.core.run_folder import (
    PLUGIN_LOG,
    RESULT_FILE,
    launcher_log_name,
    rank_log_name,
    remove_leftovers,
    remove_transient_files,
)
from scalebench.core.spec import RunSpec, write_spec
from scalebench.measure import nodes
from scalebench.measure.monitor.aggregate import MonitorPart, monitor_part
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.runner import launchers, max_batch, trace_merge
from scalebench.runner.collect import Parts, RunId, RunOutcome, assemble, classify_exit, read_ranks
from scalebench.runner.launchers import srun
from scalebench.runner.launchers.supervise import WORKER, OnProgress


def run(spec: RunSpec, folder: Path, on_progress: OnProgress = lambda progress: None, module: str = WORKER) -> Result:
    """Run `spec` in `folder` and leave its result.json there.

    Raises InputError when the folder already holds a result, OSError when it cannot be written, and
    KeyboardInterrupt, after the result is written, when it was cancelled.
    """
    refuse_results(folder)
    folder.mkdir(parents=True, exist_ok=True)
    started = StartedRun(spec, folder)
    write_spec(spec, folder)
    if spec.broken is not None:
        return started.finish(RunOutcome("failed", spec.broken, log=_write_plugin_log(spec, folder)))
    reason = spec.unsupported or max_batch.unsupported_reason(spec)
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
        started.finish(RunOutcome("failed", text))
        raise
    return started.finish(outcome)


@dataclass
class StartedRun:
    """A run whose result.json is still to be written, and what only this process knows of it."""

    spec: RunSpec
    folder: Path
    id: RunId = field(default_factory=RunId.new)
    scheduler: SchedulerRecord | None = None  # of a job that this process is not in
    monitor: MonitorProcess | None = None
    search: max_batch.Search | None = None

    def launch(self, on_progress: OnProgress, module: str) -> RunOutcome:
        """Run the ranks, once or for each try of a batch search."""
        if self.spec.config.measure.search == max_batch.SEARCH:
            self.search = max_batch.Search(self.spec, self.folder)
            return self.search.run(lambda *of_try: _attempt(self.id.id, module, *of_try), on_progress)
        self.monitor = MonitorProcess(self.spec, self.folder, local=not nodes.nodes_report(self.spec))
        with self.monitor:
            return _attempt(self.id.id, module, self.spec, self.folder, on_progress)

    def finish(self, outcome: RunOutcome) -> Result:
        """Write result.json, which Ctrl-C and SIGTERM do not interrupt, and return it."""
        with signals_ignored():
            spec = self.spec if self.search is None else self.search.spec
            result = assemble(spec, self.id, outcome, self._parts(spec, outcome))
            of_tracker = _result_of_job_tracker(self.folder)
            if of_tracker is None:
                write_result(result, self.folder)
            remove_transient_files(self.folder)
            return of_tracker or result

    def _parts(self, spec: RunSpec, outcome: RunOutcome) -> Parts:
        where = self.folder if self.search is None else self.search.where
        records = read_ranks(where, spec.processes)
        ranks = [rank for rank in records if rank is not None]
        reports = nodes.read_reports(spec, where)
        machines = nodes.machines_part(reports, ranks)
        monitor = MonitorPart()
        if self.search is None and (self.monitor is not None or any(reports)):
            reason = None if self.monitor is None else self.monitor.reason
            monitor = monitor_part(spec, self.folder, ranks, machines.machine, reason, reports)
        return Parts(
            ranks=records,
            machines=machines,
            monitor=monitor,
            scheduler=self.scheduler or srun.scheduler_record(spec, self.folder),
            transports=nccl_log.read(where / rank_log_name(rank) for rank in range(spec.processes)),
            merged_traces=_merge_traces(self.folder, ranks),
            max_batch=None if self.search is None else self.search.found,
            log=_log(self.folder, where, outcome),
        )


def _attempt(run_id: str, module: str, spec: RunSpec, folder: Path, on_progress: OnProgress) -> RunOutcome:
    """Launch the ranks once and say how that ended."""
    kills_before = machine.oom_kills()
    try:
        ended = launchers.launch(spec, folder, run_id, on_progress, module)
    except StartError as error:
        return RunOutcome("failed", f"the processes could not be started: {error.strerror or error}")
    ranks = read_ranks(folder, spec.processes)
    if ended.outcome is not None or ended.broken is not None:  # which needs no other explanation
        return classify_exit(ended, ranks, oom_kill=False)
    oom_kill = kills_before is not None and (machine.oom_kills() or 0) > kills_before
    went_well = all(rank is not None and rank.status == "ok" for rank in ranks)
    reports = nodes.wait_for_reports(spec, folder, went_well)
    return classify_exit(ended, ranks, oom_kill or nodes.oom_killed(reports))


def refuse_results(folder: Path) -> None:
    """InputError when the folder already holds a result: no figure is ever overwritten."""
    if (folder / RESULT_FILE).exists():
        raise InputError(f"{folder} already holds a result.json; choose another folder or remove it")


def _write_plugin_log(spec: RunSpec, folder: Path) -> str | None:
    """Keep the traceback of a plugin's fault, and name the file; None where nothing was raised in its code."""
    if not spec.broken_log:
        return None
    (folder / PLUGIN_LOG).write_text(spec.broken_log)
    return PLUGIN_LOG


def _log(folder: Path, where: Path, outcome: RunOutcome) -> str | None:
    """Name the file that has more on a failure: the rank's that failed first, else that of what started the ranks."""
    if outcome.rank is None and outcome.log is not None:
        return outcome.log
    name = None if outcome.rank is None else rank_log_name(outcome.rank)
    if name is None and outcome.status in ("failed", "oom"):
        name = launcher_log_name(where)
    return name if name is None or where == folder else f"{where.name}/{name}"


def _result_of_job_tracker(folder: Path) -> Result | None:
    """Return the result that the job tracker has written, which had assumed that this node was dead."""
    if RESULT_FILE not in os.listdir(folder):  # listing asks a file server, as a look at the file alone may not
        return None
    try:
        return read_result(folder / RESULT_FILE)
    except (OSError, InputError):
        return None


def _merge_traces(folder: Path, ranks: Sequence[RankRecord]) -> list[int]:
    """Merge the ranks' traces. A trace is no figure: where it cannot be written the run has gone well, and the ranks'
    own traces stay."""
    with contextlib.suppress(OSError, ValueError):
        offsets_s = {rank.rank: rank.clock_offset_s for rank in ranks if rank.clock_offset_s is not None}
        return trace_merge.merge(folder, offsets_s)
    return []
