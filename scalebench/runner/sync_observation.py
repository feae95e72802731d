"""Observes gradient synchronization in a short launch of the same ranks, before they train and are measured.

Horovod shows what it sends in a timeline, which must not be on while anything is measured, and which it switches on
only when it starts. Ranks usually restart it for that. With a cycle time set, 0.28.1 cannot be restarted in one
process: it then fuses up to 1 MiB, and crashes where a fusion threshold is set too (BayesianParameter::SetValue in
horovod/common/parameter_manager.cc writes to the places of values that have become fixed). Fresh processes have the
options of the run, and so what they show is what it does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

from scalebench.analysis.step_breakdown import SYNC_PHASES
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.result import RankRecord, TimelineRecord
from scalebench.core.run_folder import SPEC_FILE, TIMELINE_FILE, TRY_SPEC_FILE, rank_log_name, sync_folder
from scalebench.core.spec import RunSpec, SyncObservation, write_spec
from scalebench.measure.progress import ProgressFile
from scalebench.measure.session import TIMELINE_STEPS
from scalebench.measure.timed_loop import closable_iterator
from scalebench.runner.collect import RunOutcome, read_ranks
from scalebench.runner.launchers import rank_agent
from scalebench.runner.launchers.supervise import OnProgress
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import BatchReplay, NotMeasured, Strategy, probes_of
from scalebench.workloads import datasets
from scalebench.workloads.source import Source

MODULE = "scalebench.runner.sync_observation"  # run by each rank of the launch
RESTART_CHANGES = "cycle_time_ms"  # the option of Horovod with which it cannot be restarted

Attempt = Callable[[RunSpec, Path, OnProgress], RunOutcome]


def needs_own_launch(spec: RunSpec) -> bool:
    """Return whether the ranks of a run cannot observe their own synchronization."""
    strategy = spec.config.strategy
    default = strategy_option_defaults(strategy.name).get(RESTART_CHANGES)
    return default is not None and strategy.options.get(RESTART_CHANGES, default) != default


def observe(
    spec: RunSpec, folder: Path, run_id: str, attempt: Attempt, on_progress: OnProgress
) -> tuple[RunSpec, RunOutcome]:
    """Launch the ranks in a folder of their own, and return the spec with what was observed, and how that ended."""
    own_folder = sync_folder(folder)
    own_folder.mkdir(exist_ok=True)
    observing = dataclasses.replace(spec, observes_sync=True)
    write_spec(observing, own_folder)
    try:
        outcome = attempt(observing, own_folder, on_progress)
    finally:
        os.replace(own_folder / SPEC_FILE, own_folder / TRY_SPEC_FILE)  # else it would look like an unfinished run
    if outcome.status != "ok":
        log = None if outcome.rank is None else f"{own_folder.name}/{rank_log_name(outcome.rank)}"
        reason = f"while its synchronization was observed: {outcome.reason}"
        return spec, dataclasses.replace(outcome, reason=reason, rank=None, log=log)
    with contextlib.suppress(FileNotFoundError):  # nothing was sent, or it was not requested
        os.replace(own_folder / TIMELINE_FILE, folder / TIMELINE_FILE)
    first = read_ranks(own_folder, spec.processes, run_id)[0]
    assert first is not None  # the outcome is ok
    timeline = first.timeline or TimelineRecord()
    phases_s = {name: value for name in SYNC_PHASES.values() if (value := getattr(timeline, name)) is not None}
    observation = SyncObservation(first.backend_used, first.message_bytes, timeline.steps or 0, phases_s)
    return dataclasses.replace(spec, sync_observation=observation), outcome


def observe_rank(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile) -> None:
    """Train a few steps under the timeline, and record what it shows."""
    probes, keeps = probes_of(strategy), spec.repeat_settings.timeline
    has_loader = spec.config.dataset.loader is not None
    train = None if has_loader else datasets.open_sources(spec, *strategy.shard())[0]
    strategy.setup()
    progress.enter_phase("probes")
    with closing(closable_iterator(strategy.feed(cast("Source", train)))) as batches:
        strategy.train(BatchReplay(next(batches), 1))
    if keeps:
        with contextlib.suppress(NotMeasured):
            phases_s = probes.record_timeline(progress.folder / TIMELINE_FILE, TIMELINE_STEPS)
            record.timeline = TimelineRecord(None, None, TIMELINE_STEPS, **phases_s)
    record.message_bytes, record.backend_used = probes.message_sizes(), strategy.backend_used()
    if not keeps:
        with contextlib.suppress(NotMeasured):
            steps, phases_s = probes.sync_phases()
            record.timeline = TimelineRecord(None, None, steps, **phases_s)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    rank_agent.become_agent(folder)
    return run_rank(folder, observe_rank)


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
