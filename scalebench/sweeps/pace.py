"""The pace of this machine: how long steps of earlier runs took here, from which those of planned runs are estimated.

Each successful run appends a line to one file of this host under the cache folder. SCALEBENCH_PACE names another file;
`off` reads and writes none. No figure and no verdict depends on it.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from scalebench.core.json_files import write_text
from scalebench.core.machine.machine import find_cache_folder
from scalebench.core.result import Phases, RankRecord, Result, Workload
from scalebench.core.spec import RunSpec, TrainSpec
from scalebench.runner.collect import count_training_flops

MAX_ENTRIES = 1000  # about 400 kB; the newest are kept
MAX_BYTES = 2_000_000  # of a file that is read
LOCK_TIMEOUT_S = 10.0
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, ValueError)
MAX_MATCHES = 5  # the newest runs of a kind that an estimate is from
# An estimate's limits are those of the runs that it is from, divided and multiplied by:
SAME_RUN_FACTOR = 1.25  # for an equal run
SAME_MODEL_FACTOR = 2.5  # for another strategy, batch or number of devices
OTHER_MODEL_FACTOR = 2.0  # for a model of as many FLOPs per step; the more they differ the wider, by this power:
WORK_EXPONENT = 0.25
MAX_SCALE = 10.0  # beyond that much more work, a small model's pace is held to the limits of the FLOPs
MAX_OVERHEAD_S = 0.05  # of a step, which a framework and a busy machine may need whatever the model
# Without an earlier run: FLOP/s of training that a core or a GPU reaches, from a slow one to a fast one.
CORE_FLOPS_PER_S = (3e9, 60e9)
GPU_FLOPS_PER_S = (0.5e12, 50e12)


class PaceEntry(msgspec.Struct, frozen=True):
    """The step time of one run."""

    hardware: str
    device: str  # cpu | cuda
    framework: str
    strategy: str
    model: str  # with the digest of its code, where that is a user's: two functions may have one name
    flops_per_sample: float | None
    settings: str  # of training, which change how long the same FLOPs take
    gpus: int
    global_batch: int
    step_s: float
    first_step_s: float  # includes compiling
    start_s: float  # of processes and frameworks, and of their end
    ended_at: str  # ISO 8601, UTC


@dataclass(frozen=True)
class StepEstimate:
    """The estimated seconds of a step, those of the first one on top of the others, and those of starting up."""

    low_s: float
    likely_s: float
    high_s: float
    first_step_s: float = 0.0  # what it takes longer, for compiling
    start_s: float | None = None  # None: no such run has been measured here

    @property
    def is_slow(self) -> bool:
        """True where steps may be so long that their number, not the time limits, decides how long a run takes."""
        return self.high_s >= 1.0

    @property
    def is_guess(self) -> bool:
        """True where no run on this machine has shown its pace."""
        return self.start_s is None


def read_pace() -> list[PaceEntry]:
    """Return the entries of this host, the oldest first; none where they cannot be read."""
    path = _pace_file()
    try:
        return _read_entries(path) if path is not None and path.exists() else []
    except (OSError, *UNREADABLE):
        return []


def record_pace(result: Result) -> None:
    """Remember the step time of a run that was successful. A file that cannot be written is left out."""
    entry = _make_entry(result)
    if entry is not None:
        with contextlib.suppress(OSError):
            _append_entry(entry)


def estimate_step(spec: RunSpec, entries: Sequence[PaceEntry]) -> StepEstimate | None:
    """Estimate the step time of a planned run from the nearest earlier runs, else from its FLOPs.

    Returns None where neither is known: of a user's model before its first run.
    """
    if spec.config.script.path is not None:  # whose batch is not known before it ran
        return None
    config, flops = spec.config, count_training_flops(spec)
    work = spec.global_batch / spec.gpus
    comparable = [
        entry
        for entry in entries
        if (entry.hardware, entry.device, entry.framework, entry.settings)
        == (config.hardware.name, spec.device, config.strategy.framework, _describe_settings(spec.config.train))
    ]
    same_model = [
        entry
        for entry in comparable
        # The FLOPs of a user's model are recorded by its runs, and unknown before.
        if entry.model == _identify_model(config.model.name, config.model.code_digest)
        and flops in (None, entry.flops_per_sample)
    ]
    same_strategy = [entry for entry in same_model if entry.strategy == config.strategy.name]
    same_run = [e for e in same_strategy if (e.gpus, e.global_batch) == (spec.gpus, spec.global_batch)]
    if same_run:
        return _estimate_from(same_run, [1.0] * len(same_run), SAME_RUN_FACTOR)
    if nearest := same_strategy or same_model:
        return _estimate_from(nearest, [work * e.gpus / e.global_batch for e in nearest], SAME_MODEL_FACTOR)
    if flops is None or config.strategy.framework == "none":
        return None
    sized = [entry for entry in comparable if entry.flops_per_sample]
    guess = _guess_from_work(spec, work * flops)
    return _estimate_from_work(sized, work * flops, guess) if sized else guess


def _estimate_from(entries: Sequence[PaceEntry], scales: Sequence[float], factor: float) -> StepEstimate:
    """Return the estimate from runs whose step times, scaled to that of the planned run, are as likely."""
    steps_s = [entry.step_s * scale for entry, scale in zip(entries, scales, strict=True)][-MAX_MATCHES:]
    newest = entries[-MAX_MATCHES:]
    compiling_s = max(0.0, sum(entry.first_step_s - entry.step_s for entry in newest) / len(newest))
    start_s = sum(entry.start_s for entry in newest) / len(newest)
    low_s, high_s = min(steps_s) / factor, max(steps_s) * factor
    return StepEstimate(low_s, math.sqrt(low_s * high_s), high_s, compiling_s, start_s)


def _estimate_from_work(entries: Sequence[PaceEntry], work: float, guess: StepEstimate) -> StepEstimate:
    """Return the estimate from runs of other models, those of the most similar FLOPs per device and step (`work`).

    A step of a small model is mostly overhead, so that its FLOP/s say little of a large one: then limits beyond those
    of `guess` are left out, unless the machine is slower or faster than any that these know. A short step shows no slow
    machine: it may be overhead alone.
    """

    def ratio(entry: PaceEntry) -> float:
        return work * entry.gpus / (entry.global_batch * (entry.flops_per_sample or math.nan))

    nearest_model = min(entries, key=lambda entry: abs(math.log(ratio(entry)))).model
    nearest = [entry for entry in entries if entry.model == nearest_model]
    scales = [ratio(entry) for entry in nearest]
    distance = max(max(scale, 1 / scale) for scale in scales)
    estimate = _estimate_from(nearest, scales, OTHER_MODEL_FACTOR * distance**WORK_EXPONENT)
    low_s, high_s = max(estimate.low_s, guess.low_s), min(estimate.high_s, guess.high_s)
    if estimate.low_s >= guess.high_s and max(entry.step_s for entry in nearest) < MAX_OVERHEAD_S:
        low_s, high_s = guess.low_s, guess.high_s
    if min(scales) < MAX_SCALE or low_s >= high_s:
        return estimate
    return replace(estimate, low_s=low_s, likely_s=math.sqrt(low_s * high_s), high_s=high_s)


def _guess_from_work(spec: RunSpec, work: float) -> StepEstimate:
    slow, fast = GPU_FLOPS_PER_S if spec.device == "cuda" else CORE_FLOPS_PER_S
    cores = 1 if spec.device == "cuda" else spec.config.hardware.cpus_per_device or 1
    low_s, high_s = work / (fast * cores), work / (slow * cores)
    return StepEstimate(low_s, math.sqrt(low_s * high_s), high_s)


def _make_entry(result: Result) -> PaceEntry | None:
    """Return the entry of a result; None for one without a measured step."""
    first = next((rank for rank in result.ranks if rank.block_s and rank.block_steps), None)
    if result.status != "ok" or first is None or result.quality.max_batch is not None:
        return None
    step_s = _mean_step_s(first)
    warmup = first.warmup_block_s[0] / (first.warmup_block_steps or 1) if first.warmup_block_s else step_s
    scale, workload = result.scale, result.workload
    if not step_s > 0 or scale.global_batch is None or result.spec.get("script", {}).get("path") is not None:
        return None
    return PaceEntry(
        hardware=scale.hardware,
        device=scale.device,
        framework=scale.framework,
        strategy=scale.strategy,
        model=_identify_model(workload.model, result.spec.get("model", {}).get("code_digest")),
        flops_per_sample=workload.flops_per_sample,
        settings=_describe_settings(workload),
        gpus=scale.gpus,
        global_batch=scale.global_batch,
        step_s=step_s,
        first_step_s=warmup,
        start_s=_sum_known(result.phases),
        ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _identify_model(name: str, code_digest: str | None) -> str:
    return name if code_digest is None else f"{name} {code_digest}"


def _mean_step_s(rank: RankRecord) -> float:
    return sum(rank.block_s) / (len(rank.block_s) * (rank.block_steps or 1))


def _sum_known(phases: Phases) -> float:
    """Return the seconds of a run outside of its steps, as far as they were measured."""
    return sum(seconds or 0.0 for seconds in (phases.launch_s, phases.setup_s, phases.close_s))


def _describe_settings(train: TrainSpec | Workload) -> str:
    return f"{train.precision} {train.data_format}{' compile' * train.compile}"


def _pace_file() -> Path | None:
    """Return the file of this host; None where it is switched off, or there is no cache folder."""
    chosen = os.environ.get("SCALEBENCH_PACE")
    if chosen is None:
        folder = find_cache_folder()
        return None if folder is None else folder / "pace" / f"{platform.node() or 'unknown'}.jsonl"
    return None if chosen in ("off", "") else Path(chosen).expanduser()


def _append_entry(entry: PaceEntry) -> None:
    """Add an entry, and drop the oldest beyond MAX_ENTRIES. A file that cannot be read stays as it is."""
    path = _pace_file()
    if path is None:
        return
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_S):
        try:
            earlier = _read_entries(path) if path.exists() else []
        except UNREADABLE:
            return
        lines = [msgspec.json.encode(each).decode() for each in [*earlier, entry][-MAX_ENTRIES:]]
        write_text(path, "".join(f"{line}\n" for line in lines))


def _read_entries(path: Path) -> list[PaceEntry]:
    """Raises OSError or one of UNREADABLE."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return msgspec.json.Decoder(PaceEntry).decode_lines(path.read_bytes())
