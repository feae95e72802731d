"""The parent's part of one run: RunSpec -> launcher -> rank files -> result.json. Layer 3.

A run always leaves a result.json, also when it failed; nothing here raises for a run that went wrong.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalebench import launchers, machine, max_batch, merged_trace
from scalebench.collect import Outcome, assemble, judge, read_ranks, transports
from scalebench.launchers import allocation
from scalebench.measure import attended
from scalebench.measure.monitor import record
from scalebench.measure.monitor.keeper import Keeper
from scalebench.measure.node import attended_by_nodes
from scalebench.measure.progress import Progress
from scalebench.process import StartError
from scalebench.results import Result, SchedulerRecord, read_result, write_result
from scalebench.run_folder import (
    MERGED_TRACE_FILE,
    PLUGIN_LOG,
    RESULT_FILE,
    launcher_log_name,
    remove_leftovers,
    remove_transient_files,
)
from scalebench.spec import InputError, RunSpec, write_spec


def run(
    spec: RunSpec,
    folder: Path,
    on_look: Callable[[list[Progress]], None] = lambda progress: None,
    module: str = "scalebench.worker",
) -> Result:
    """Run `spec` in `folder` and leave its result.json there.

    Raises InputError when the folder already holds a result, OSError when it cannot be written, and
    KeyboardInterrupt, after the row is written, when it was cancelled.
    """
    refuse_results(folder)
    folder.mkdir(parents=True, exist_ok=True)
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    run_id = uuid.uuid4().hex[:12]
    write_spec(spec, folder)
    if spec.broken is not None:
        return leave(spec, folder, started_at, run_id, Outcome("failed", spec.broken), log=_plugin_log(spec, folder))
    impossible = spec.unsupported or max_batch.obstacle(spec)
    if impossible is not None:
        outcome = Outcome("unsupported", impossible)
        return leave(spec, folder, started_at, run_id, outcome)
    remove_leftovers(folder)
    search = max_batch.Search(spec, folder) if spec.config.measure.search == max_batch.SEARCH else None
    keeper = Keeper(spec, folder, here=not attended_by_nodes(spec)) if search is None else None
    try:
        if search is None:
            outcome = _attempt(spec, folder, run_id, on_look, module, keeper)
        else:
            outcome = search.run(lambda *of_try: _attempt_try(run_id, module, *of_try), on_look)
    except KeyboardInterrupt:
        leave(spec, folder, started_at, run_id, Outcome("cancelled", "cancelled while it ran"), keeper, search=search)
        raise
    except Exception as error:
        reason = f"the parent failed: {type(error).__name__}: {' '.join(str(error).split())}"
        leave(spec, folder, started_at, run_id, Outcome("failed", reason), keeper, search=search)
        raise
    return leave(spec, folder, started_at, run_id, outcome, keeper, search=search)


def _attempt(
    spec: RunSpec,
    folder: Path,
    run_id: str,
    on_look: Callable[[list[Progress]], None],
    module: str,
    keeper: Keeper | None = None,
) -> Outcome:
    kills_before = machine.oom_kills()
    try:
        with keeper or contextlib.nullcontext():
            ended = launchers.launch(spec, folder, run_id, on_look, module)
    except StartError as error:
        return Outcome("failed", f"the processes could not be started: {error.strerror or error}")
    ranks = read_ranks(folder, spec.processes)
    if ended.verdict is not None:
        return Outcome(*ended.verdict, launched_at_s=ended.started_at_s, wall_s=ended.wall_s)
    if ended.broken is not None:  # what its ranks say of lost connections follows from it
        return Outcome("failed", ended.broken, launched_at_s=ended.started_at_s, wall_s=ended.wall_s)
    oom_kill = kills_before is not None and (machine.oom_kills() or 0) > kills_before
    told = attended.wait(spec, folder, all(rank is not None and rank.status == "ok" for rank in ranks))
    return judge(ended, ranks, oom_kill or attended.oom_killed(told))


def _plugin_log(spec: RunSpec, folder: Path) -> str | None:
    """Where the traceback of a plugin's fault is kept; None where nothing was raised in its code."""
    if not spec.broken_log:
        return None
    (folder / PLUGIN_LOG).write_text(spec.broken_log)
    return PLUGIN_LOG


def _attempt_try(run_id: str, module: str, spec: RunSpec, folder: Path, on_look: max_batch.OnLook) -> Outcome:
    return _attempt(spec, folder, run_id, on_look, module)


def refuse_results(folder: Path) -> None:
    """InputError when the folder already holds a result: no figure is ever overwritten."""
    if (folder / RESULT_FILE).exists():
        raise InputError(f"{folder} already holds a result.json; choose another folder or remove it")


def leave(
    spec: RunSpec,
    folder: Path,
    started_at: str,
    run_id: str,
    outcome: Outcome,
    keeper: Keeper | None = None,
    log: str | None = None,
    scheduler: SchedulerRecord | None = None,
    search: max_batch.Search | None = None,
) -> Result:
    """Write the row. Ctrl-C and SIGTERM have to wait for that long. `log` tells more where no rank's log does."""
    spec, measured = (spec, folder) if search is None else (search.spec, search.where)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _handle(dict.fromkeys(before, signal.SIG_IGN))
    try:
        result = assemble(spec, read_ranks(measured, spec.processes), started_at, run_id, outcome)
        result.sync.transports = transports(measured, spec.processes)
        result.log = result.log or log
        if result.status in ("failed", "oom") and result.log is None:
            result.log = launcher_log_name(measured)
        result.scheduler = scheduler or allocation.record(spec, folder)
        told = attended.read_nodes(spec, measured)
        attended.tell(result, told)
        _merge_traces(result, folder)
        if search is not None:
            search.tell(result)
        elif keeper is not None or any(told):
            record.fill(result, spec, folder, None if keeper is None else keeper.reason, told)
        there = _row_of_others(folder)
        if there is None:
            write_result(result, folder)
        remove_transient_files(folder)
        return there or result
    finally:
        _handle(before)


def _row_of_others(folder: Path) -> Result | None:
    """What whoever waits for a job wrote in its place: its node was given up for dead, and came back."""
    if RESULT_FILE not in os.listdir(folder):  # which asks a file server, as a look at the file alone may not
        return None
    try:
        return read_result(folder / RESULT_FILE)
    except (OSError, InputError):
        return None


def _merge_traces(result: Result, folder: Path) -> None:
    """A trace is no figure: where it cannot be written the run has gone well, and the ranks' own traces stay."""
    with contextlib.suppress(OSError, ValueError):
        offsets_s = {rank.rank: rank.clock_offset_s for rank in result.ranks if rank.clock_offset_s is not None}
        merged = merged_trace.merge(folder, offsets_s)
        result.trace = MERGED_TRACE_FILE if merged else None
        for rank in result.ranks:
            if rank.rank in merged and rank.probes is not None:
                rank.probes.trace = None


def _handle(handlers: Mapping[signal.Signals, Any]) -> None:
    with contextlib.suppress(ValueError):  # not in the main thread, where no signal arrives either
        for number, handler in handlers.items():
            signal.signal(number, handler)
