"""The pace of this machine: how long steps of earlier runs took here, from which those of planned runs are estimated.

Each successful run appends a line to one file of this host under the cache folder. SCALEBENCH_PACE names another file;
`off` reads and writes none. No figure and no verdict depends on it.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scalebench.core.json_files import write_text
from scalebench.core.machine.machine import find_cache_folder
from scalebench.core.result import Result, Workload
from scalebench.core.spec import RunSpec, TrainSpec
from scalebench.runner.collect import count_training_flops

MAX_ENTRIES = 1000  # about 400 kB; the newest are kept
MAX_BYTES = 2_000_000  # of a file that is read
LOCK_TIMEOUT_S = 10.0
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, ValueError)


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
    start_s: float  # of processes and frameworks, of compiling in the first step, and of their end


class Pace(msgspec.Struct, frozen=True):
    """How long a run starts, and how long one of its steps takes."""

    start_s: float
    step_s: float


def read_pace() -> list[PaceEntry]:
    """Return the entries of this host, the oldest first; none where they cannot be read."""
    path = _pace_file()
    try:
        return _read_entries(path) if path is not None and path.exists() else []
    except (OSError, *UNREADABLE):
        return []


def record_pace(result: Result) -> None:
    """Remember the step time of a run that was successful. A file that cannot be read or written stays as it is."""
    entry, path = _make_entry(result), _pace_file()
    if entry is None or path is None:
        return
    import filelock

    with contextlib.suppress(OSError, *UNREADABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_S):
            entries = [*(_read_entries(path) if path.exists() else []), entry]
            write_text(path, "".join(f"{msgspec.json.encode(each).decode()}\n" for each in entries[-MAX_ENTRIES:]))


def find_pace(spec: RunSpec, entries: Sequence[PaceEntry]) -> Pace | None:
    """Return the pace of a planned run by the newest run of its model here: an equal one, else one of its strategy,
    else of another, in proportion to the samples of each device. None where there is none."""
    config = spec.config
    if config.script.path is not None:  # whose batch is not known before it ran
        return None
    flops, settings = count_training_flops(spec), _describe_settings(config.train)
    model = _identify_model(config.model.name, config.model.code_digest)
    same_model = [
        entry
        for entry in reversed(entries)
        if (entry.hardware, entry.device, entry.framework)
        == (config.hardware.name, spec.device, config.strategy.framework)
        and (entry.model, entry.settings) == (model, settings)
        and flops in (None, entry.flops_per_sample)  # those of a user's model are unknown before it runs
    ]
    if not same_model:
        return None
    work = (spec.gpus, spec.global_batch)
    nearest = max(same_model, key=lambda e: (e.strategy == config.strategy.name, (e.gpus, e.global_batch) == work))
    return Pace(nearest.start_s, nearest.step_s * spec.global_batch / spec.gpus * nearest.gpus / nearest.global_batch)


def _make_entry(result: Result) -> PaceEntry | None:
    """Return the entry of a result; None for one without a measured step."""
    first = next((rank for rank in result.ranks if rank.block_s and rank.block_steps), None)
    scale, workload, phases = result.scale, result.workload, result.phases
    is_script = result.spec.get("script", {}).get("path") is not None
    if result.status != "ok" or first is None or result.quality.max_batch is not None or is_script:
        return None
    step_s = sum(first.block_s) / (len(first.block_s) * (first.block_steps or 1))
    if not step_s > 0 or scale.global_batch is None:
        return None
    first_step_s = first.warmup_block_s[0] / (first.warmup_block_steps or 1) if first.warmup_block_s else step_s
    start_s = sum(seconds or 0.0 for seconds in (phases.launch_s, phases.setup_s, phases.close_s))
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
        start_s=start_s + max(0.0, first_step_s - step_s),
    )


def _identify_model(name: str, code_digest: str | None) -> str:
    return name if code_digest is None else f"{name} {code_digest}"


def _describe_settings(train: TrainSpec | Workload) -> str:
    compiled = "" if train.compile in ("none", False) else f" {train.compile}"
    return f"{train.precision} {train.data_format}{compiled}"


def _pace_file() -> Path | None:
    """Return the file of this host; None where it is switched off, or there is no cache folder."""
    chosen = os.environ.get("SCALEBENCH_PACE")
    if chosen is None:
        folder = find_cache_folder()
        return None if folder is None else folder / "pace" / f"{platform.node() or 'unknown'}.jsonl"
    return None if chosen in ("off", "") else Path(chosen).expanduser()


def _read_entries(path: Path) -> list[PaceEntry]:
    """Raises OSError or one of UNREADABLE."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return msgspec.json.Decoder(PaceEntry).decode_lines(path.read_bytes())
