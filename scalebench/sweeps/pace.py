"""The pace of this machine: how long steps of earlier runs took here, from which those of planned runs are estimated.

Each successful run appends a line to one file of this host under the cache folder. SCALEBENCH_PACE names another file;
`off` reads and writes none. No figure and no verdict depends on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scalebench.core.json_files import write_text
from scalebench.core.machine.machine import find_cache_folder
from scalebench.core.result import Result
from scalebench.core.spec import RunSpec

MAX_ENTRIES = 1000  # about 400 kB; the newest are kept
LOCK_TIMEOUT_S = 10.0


class PaceEntry(msgspec.Struct, frozen=True):
    """The step time of one run."""

    work: str  # what determines how long a step takes, besides the following
    strategy: str
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
        return [] if path is None else msgspec.json.Decoder(PaceEntry).decode_lines(path.read_bytes())
    except (OSError, ValueError):  # as msgspec's errors are
        return []


def record_pace(spec: RunSpec, result: Result) -> None:
    """Remember the step time of a run that was successful. A file that cannot be read is replaced."""
    first = next((rank for rank in result.ranks if rank.block_s and rank.block_steps), None)
    is_usual = spec.config.script.path is None and result.quality.max_batch is None
    path = _pace_file()
    if result.status != "ok" or first is None or not is_usual or path is None:
        return
    step_s = sum(first.block_s) / (len(first.block_s) * (first.block_steps or 1))
    first_step_s = first.warmup_block_s[0] / (first.warmup_block_steps or 1) if first.warmup_block_s else step_s
    start_s = sum(seconds or 0.0 for seconds in (result.phases.launch_s, result.phases.setup_s, result.phases.close_s))
    start_s += max(0.0, first_step_s - step_s)
    strategy, work = spec.config.strategy.name, describe_work(spec)
    entry = PaceEntry(work, strategy, spec.gpus, spec.global_batch, step_s, start_s)
    import filelock

    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_S):
            entries = [*read_pace(), entry][-MAX_ENTRIES:]
            write_text(path, "".join(f"{msgspec.json.encode(each).decode()}\n" for each in entries))


def find_pace(spec: RunSpec, entries: Sequence[PaceEntry]) -> Pace | None:
    """Return the pace of a planned run by the newest run of its model here: an equal one, else one of its strategy,
    else of another, in proportion to the samples of each device. None where there is none."""
    if spec.config.script.path is not None:  # whose batch is not known before it ran
        return None
    work, strategy, size = describe_work(spec), spec.config.strategy.name, (spec.gpus, spec.global_batch)
    same_work = [entry for entry in reversed(entries) if entry.work == work]
    if not same_work:
        return None
    nearest = max(same_work, key=lambda entry: (entry.strategy == strategy, (entry.gpus, entry.global_batch) == size))
    return Pace(nearest.start_s, nearest.step_s * spec.global_batch / spec.gpus * nearest.gpus / nearest.global_batch)


def describe_work(spec: RunSpec) -> str:
    """Return the machine, the network and the settings of training by which steps of two runs take as long."""
    model, train = spec.config.model, spec.config.train
    machine = spec.config.hardware.name, spec.device, spec.config.strategy.framework
    network = model.name, model.code_digest, model.input_shape, model.outputs, model.options
    return json.dumps([*machine, *network, train.precision, train.data_format, train.compile], sort_keys=True)


def _pace_file() -> Path | None:
    """Return the file of this host; None where it is switched off, or there is no cache folder."""
    chosen = os.environ.get("SCALEBENCH_PACE")
    if chosen is None:
        folder = find_cache_folder()
        return None if folder is None else folder / "pace" / f"{platform.node() or 'unknown'}.jsonl"
    return None if chosen in ("off", "") else Path(chosen).expanduser()
