"""Tries of several batches in one process: `python -m scalebench.runner.batch_tries FOLDER`, as of runner.worker.

PyTorch reports a full GPU by an error that the process survives, so that a try takes a few steps there instead of a
start. Each builds model and optimizer again, since a step that broke off leaves them half changed. The parent has the
result measured in a process of its own.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

from scalebench.core.result import RankRecord
from scalebench.core.run_folder import rank_record_path, try_folder, write_rank_file
from scalebench.core.spec import Config, RunSpec
from scalebench.measure.progress import ProgressFile
from scalebench.measure.timed_loop import BlockSeries, LoopPhase, TimedLoop, closable_iterator
from scalebench.runner.launchers.rank_environment import find_free_ports
from scalebench.runner.worker import classify_error, exit_without_cleanup, run_rank
from scalebench.strategies import registry
from scalebench.strategies.base import Strategy
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache
from scalebench.workloads.source import Source

MODULE = "scalebench.runner.batch_tries"
RESOLUTION = 16  # the answer is exact up to this batch, and above it to within 1/16 of itself
# The optimizer's state, DDP's buckets and cuDNN's choices are there after two steps; the others are timed.
UNTIMED_STEPS, TIMED_STEPS = 2, 3


def can_try_in_one_process(spec: RunSpec) -> bool:
    """Return whether a process can go on after a batch that did not fit, and has the memory of a new one: PyTorch on a
    GPU, in a single process. Compiled code would be that of another shape."""
    config = spec.config
    torch_on_gpu = (config.strategy.framework, spec.device) == ("torch", "cuda")
    return torch_on_gpu and spec.processes == 1 and config.train.compile == "none" and config.script.path is None


def largest_batch(start: int, maximum: int, minimum: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest batch from `minimum` to `maximum` that fits, to 1/16 of itself; None where not even
    `minimum` does.

    From `start` on the batch is doubled while it fits, or halved while it does not; then the range is bisected. If one
    batch does not fit, no larger one is assumed to fit.
    """
    low, high, batch = 0, maximum + 1, max(minimum, min(start, maximum))  # low fits, high does not
    while True:
        low, high = (batch, high) if fits(batch) else (low, batch)
        if low >= maximum or high <= minimum:
            return low or None
        if high > maximum:
            batch = min(2 * low, maximum)
        elif not low:
            batch = max(high // 2, minimum)
        elif high - low <= max(1, low // RESOLUTION):
            return low
        else:
            batch = (low + high) // 2


def max_samples_per_device(config: Config, gpus: int) -> int:
    """Return the samples of one device in the largest batch that the training samples allow."""
    size = config.dataset.size
    if config.dataset.path is not None:
        folder: Path = datasets.prepare(config)
        size = len(cache.open_arrays(folder)[0])
    return count_samples_per_device(size, config, gpus)


def count_samples_per_device(size: int, config: Config, gpus: int) -> int:
    return datasets.count_train_samples(config.dataset, size) // gpus


def change_batch(spec: RunSpec, batch: int, measure: Mapping[str, Any] = {}, **train: Any) -> RunSpec:
    """Return the run with another batch per device, and with these settings changed."""
    config = dataclasses.replace(
        spec.config,
        train=dataclasses.replace(spec.config.train, batch_per_device=batch, **train),
        measure=dataclasses.replace(spec.config.measure, **measure),
    )
    return dataclasses.replace(spec, config=config, batch_per_device=batch, global_batch=batch * spec.gpus)


def try_batches(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile) -> None:
    """Find the largest batch. Each try leaves its record in its folder; one that fails for another reason than memory
    is the last, and is left to the parent."""
    train, tries = spec.config.train, 0

    def fits(batch: int) -> bool:
        nonlocal tries
        tries += 1
        progress.enter_phase(f"try {tries}: batch {batch} per device")
        tried = _try_batch(change_batch(spec, batch), record.rank, progress)
        strategy.free_memory()  # no sooner: the error, and with it all tensors of its frames, has gone with the call
        if tried.status not in ("ok", "oom"):
            raise RuntimeError(f"batch {batch} per device: {tried.reason}")
        folder = try_folder(progress.folder, batch)
        folder.mkdir(exist_ok=True)
        write_rank_file(rank_record_path(folder, record.rank), tried)
        return tried.status == "ok"

    largest_batch(train.batch_per_device, max_samples_per_device(spec.config, spec.gpus), train.accumulate, fits)


def _try_batch(spec: RunSpec, rank: int, progress: ProgressFile) -> RankRecord:
    """Train a few steps, and return the record with their times and the memory that they took."""
    record = RankRecord(rank, socket.gethostname(), os.getpid(), marks_s={"launch": time.time()})
    os.environ["MASTER_PORT"] = str(find_free_ports(1)[0])  # a library may keep the last group, which listens
    strategy = registry.create_strategy(spec, rank)

    def decide(series: BlockSeries) -> bool:
        progress.keep_alive()
        return len(series.seconds) >= UNTIMED_STEPS + TIMED_STEPS

    phase = LoopPhase("measure", lambda before: 1, decide)
    try:
        has_source = spec.config.dataset.loader is None
        source = datasets.open_sources(spec, *strategy.shard())[0] if has_source else None
        strategy.setup()
        with closing(closable_iterator(strategy.feed(cast("Source", source)))) as batches:
            strategy.train(TimedLoop(strategy, batches, [phase]))
        record.block_steps, record.block_s = 1, phase.series.seconds[UNTIMED_STEPS:]
        record.block_samples = phase.series.samples[UNTIMED_STEPS:]
        record.peak_memory_bytes = strategy.peak_memory_bytes()
        record.reserved_memory_bytes = strategy.reserved_memory_bytes()
    except Exception as error:
        traceback.print_exc()
        classify_error(error, record)
    with suppress(Exception):  # of a group that a step broke off in
        strategy.close()
    return record


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), try_batches))
