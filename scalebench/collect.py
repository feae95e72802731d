"""Rank files and exit codes -> one status with one reason, and the record. Layer 3."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench import machine, nccl_log
from scalebench.curve_records import first_reached, merged_curve
from scalebench.launchers.surroundings import log_name
from scalebench.launchers.watch import Ended
from scalebench.measure import clocks
from scalebench.measure.node import attended_by_nodes
from scalebench.records import from_dict, read_json
from scalebench.results import (
    SCHEMA_VERSION,
    Monitor,
    Phases,
    Quality,
    RankRecord,
    Result,
    Scale,
    Sync,
    Workload,
)
from scalebench.spec import RunSpec
from scalebench.worker import rank_path
from scalebench.workloads import datasets, networks, user_code

FP32_BYTES = 4
PHASES = ("launch", "setup", "warmup", "measure", "evaluate", "probes", "close", "end")


@dataclass
class Outcome:
    """How a run ended."""

    status: str
    reason: str | None = None
    rank: int | None = None  # the one that failed first, whose log tells more
    launched_at_s: float | None = None
    wall_s: float | None = None


def read_ranks(folder: Path, processes: int) -> list[RankRecord | None]:
    """Each rank's record; None where it left none, or only half of one."""
    found: list[RankRecord | None] = []
    for rank in range(processes):
        try:
            found.append(from_dict(RankRecord, read_json(rank_path(folder, rank))))
        except (OSError, ValueError):
            found.append(None)
    return found


def judge(ended: Ended, ranks: list[RankRecord | None], oom_kill: bool) -> Outcome:
    """The status of the run, and the reason of the rank that failed first: the others fail after it."""
    timing = {"launched_at_s": ended.started_at_s, "wall_s": ended.wall_s}
    failed = [r for r in ranks if r is not None and r.status != "ok"]
    if ended.timeout_at_s is not None:  # a rank that failed and then hung in closing a broken group said it before
        present = [r for r in ranks if r is not None]
        failed = [r for r in failed if clocks.here_s(r.failed_at_s or 0.0, r, present) < ended.timeout_at_s]
    if ended.timeout is not None and not failed:
        silent = [rank for rank, record in enumerate(ranks) if record is None and rank not in ended.services]
        stuck = (ended.stopped or silent or [0])[0]
        why = f"; rank {stuck} is stopped" if ended.stopped else ""
        return Outcome("timeout", f"{ended.timeout}{why}", stuck, **timing)
    # A rank that died without a word is the cause; those that tell of a lost connection follow it.
    silent = [rank for rank in ended.died_first if ranks[rank] is None]
    if silent:
        return _silent(silent[0], ended, oom_kill, timing)
    if failed:
        return of_first(failed, len(ranks), timing, ended.died_first)
    bad = [
        rank
        for rank, code in enumerate(ended.exit_codes)
        if (code != 0 or ranks[rank] is None) and rank not in ended.services
    ]
    if bad:
        return _silent(bad[0], ended, oom_kill, timing)
    return Outcome("ok", **timing)


def of_first(
    failed: Sequence[RankRecord], processes: int, timing: dict[str, float], died_first: Sequence[int] = ()
) -> Outcome:
    """The outcome of the rank that failed first, by their own word; where their clocks do not compare, of one of those
    that were seen to end first."""
    seen_first = [r for r in failed if r.rank in died_first]
    of = failed if clocks.comparable(failed) else seen_first or failed
    first = min(of, key=lambda r: clocks.on_rank_0_s(r.failed_at_s or 0.0, r))
    where = f"rank {first.rank}: " if processes > 1 and first.status != "unsupported" else ""
    return Outcome(first.status, f"{where}{first.reason}", first.rank, **timing)


def _silent(rank: int, ended: Ended, oom_kill: bool, timing: dict[str, float]) -> Outcome:
    """The outcome of a rank that left no reason of its own."""
    code = ended.exit_codes[rank]
    who = f"rank {rank} ({ended.services[rank]})" if rank in ended.services else f"rank {rank}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        if oom_kill and name == "SIGKILL":
            return Outcome("oom", f"{who} was killed by the kernel, which ran out of memory", rank, **timing)
        return Outcome("failed", f"{who} was killed by {name}", rank, **timing)
    return Outcome("failed", f"{who} ended with exit status {code} and no word of why", rank, **timing)


def transports(folder: Path, processes: int) -> dict[str, str] | None:
    """What NCCL wrote into the ranks' logs of how it connects them; None where it did not."""
    return nccl_log.read(folder / log_name(rank) for rank in range(processes))


def assemble(spec: RunSpec, ranks: list[RankRecord | None], started_at: str, run_id: str, outcome: Outcome) -> Result:
    """The record of a run, with what its ranks left."""
    present = [rank for rank in ranks if rank is not None]
    first = present[0] if present else None
    return Result(
        schema_version=SCHEMA_VERSION,
        run_id=run_id,
        started_at=started_at,
        status=outcome.status,
        reason=outcome.reason,
        log=log_name(outcome.rank) if outcome.rank is not None else None,
        fingerprint=spec.fingerprint,
        spec=dataclasses.asdict(spec.config),
        workload=_workload(spec, first),
        scale=_scale(spec, first),
        phases=_phases(spec, first, outcome),
        ranks=present,
        sync=Sync(message_bytes=first.message_bytes, timeline=first.timeline) if first else Sync(),
        monitor=Monitor(),
        quality=_quality(spec, present),
        machine=machine.detect(),
        flags=[*spec.flags, *_of_training(outcome, first)],
    )


def _of_training(outcome: Outcome, first: RankRecord | None) -> list[str]:
    """A training that was over before the updates that figures are made of has no throughput."""
    early = outcome.status == "ok" and first is not None and first.curve and not first.block_s
    return ["over_in_warmup"] if early else []


def _workload(spec: RunSpec, first: RankRecord | None) -> Workload:
    config = spec.config
    params = first.params if first else None
    used = first.settings_used if first else {}
    return Workload(
        model=config.model.name,
        model_params=params,
        gradient_bytes=None if params is None else params * FP32_BYTES,
        flops_per_sample=_flops(spec),
        dataset=datasets.label(config),
        train_samples=first.train_samples if first else None,
        updates_per_epoch=first.updates_per_epoch if first else None,
        feed=config.dataset.feed,
        prefetch=config.dataset.prefetch,
        input_shape=list(config.model.input_shape),
        precision=config.train.precision,
        data_format=config.train.data_format,
        compile=config.train.compile,
        precision_used=used.get("precision"),
        data_format_used=used.get("data_format"),
        compiler_used=used.get("compiler"),
    )


def _flops(spec: RunSpec) -> float | None:
    """Of training on one sample; None of a user's own network, whose layers nobody counts, and of one that fails."""
    model = spec.config.model
    if spec.broken is not None or user_code.is_user_model(model):
        return None
    return networks.build_network(model).training_flops


def _scale(spec: RunSpec, first: RankRecord | None) -> Scale:
    strategy = spec.config.strategy
    return Scale(
        strategy=strategy.name,
        framework=strategy.framework,
        framework_version=first.versions.get(strategy.framework) if first else None,
        backend_requested=strategy.backend,
        backend_used=first.backend_used if first else None,
        hardware=spec.config.hardware.name,
        device=spec.device,
        gpus=spec.gpus,
        nodes=spec.nodes,
        processes=spec.processes,
        scaling=spec.config.scaling,
        batch_per_device=spec.batch_per_device,
        global_batch=spec.global_batch,
        lockstep=strategy.lockstep,
        repeat=spec.config.repeat,
        seed=spec.config.seed,
        baseline_bare=strategy.baseline,
    )


def _phases(spec: RunSpec, first: RankRecord | None, outcome: Outcome) -> Phases:
    phases = Phases(wall_s=outcome.wall_s)
    if first is None:
        return phases
    marks = [(name, first.marks_s[name]) for name in PHASES if name in first.marks_s]
    one_clock = not attended_by_nodes(spec) or first.hostname == socket.gethostname()
    if outcome.launched_at_s is not None and marks and one_clock:
        phases.launch_s = max(0.0, marks[0][1] - outcome.launched_at_s)
    for (name, start_s), (_, end_s) in itertools.pairwise(marks):
        if name != "launch":
            within = sum(point.evaluate_s for point in first.curve if start_s <= point.at_s < end_s)
            setattr(phases, f"{name}_s", end_s - start_s - within)
    if first.curve:  # evaluated in the midst of the others
        phases.evaluate_s = sum(point.evaluate_s for point in first.curve)
    return phases


def _quality(spec: RunSpec, ranks: list[RankRecord]) -> Quality:
    """The last block's loss over all ranks, and the validation metrics, which every rank has alike."""
    quality = Quality()
    last = [(r.block_losses[-1], r.block_samples[-1]) for r in ranks if r.block_losses]
    parts = [(loss, samples) for loss, samples in last if loss is not None and samples]
    if parts:
        quality.final_loss = sum(loss * n for loss, n in parts) / sum(n for _, n in parts)
    if ranks and ranks[0].curve:
        _fill_training(quality, spec, ranks)
    if ranks and ranks[0].metrics:
        quality.metrics = dict(ranks[0].metrics)
        quality.metric_name = spec.config.model.metric
        quality.metric = quality.metrics.get(spec.config.model.metric)
    return quality


def _fill_training(quality: Quality, spec: RunSpec, ranks: list[RankRecord]) -> None:
    first, target, metric = ranks[0], spec.config.train.stop.target, spec.config.model.metric
    quality.curve = merged_curve([rank.curve for rank in ranks])
    quality.stopped_by, quality.learning_rate = first.stopped_by, spec.learning_rate
    if quality.final_loss is None and quality.curve:
        quality.final_loss = quality.curve[-1].loss
    quality.first_update_s = max((r.first_update_s for r in ranks if r.first_update_s is not None), default=None)
    found = None if target is None else first_reached(quality.curve, metric, target)
    quality.time_to_target_s = None if found is None else found.train_s
