"""One rank of the truths of `scalebench check --gpu`: `python -m scalebench.testing.gpu_worker FOLDER`.

Each truth compares a figure of scalebench with the device's own clock, or with itself under another condition. With one
device these are all but the all-reduce, which needs two. They are recorded in truths<k>.json as they end, so that a
truth that ends the process leaves those before it.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from scalebench.core.errors import describe_exception
from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure.collectives import measure_collectives
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.measure.progress import ProgressFile
from scalebench.measure.timed_loop import TimedLoop, closable_iterator, fixed_length_phase
from scalebench.measure.timing import repeats_within, time_blocks, time_on_slowest_rank, time_warm_call
from scalebench.runner.worker import classify_error, exit_without_cleanup, run_rank
from scalebench.strategies.base import NotMeasured, Strategy
from scalebench.workloads import datasets

REFERENCE_WORK = "scalebench.strategies.torch.reference_work"  # imported by name: only a rank has the framework
SLEEP_S, SLEEPS, SLEEP_BLOCKS = 0.01, 20, 5  # of a kernel; kernels in a block; blocks
COPY_BYTES = 2**28
COPIES = 20
BLOCK_S, BLOCKS = 0.5, 8  # of steps, timed before and after something
MAX_STEPS = 20_000  # in a block
PROFILED_STEPS = 3
MONITOR_START_S = 3.0  # for its imports and its first samples
ALL_REDUCE_SIZES = {"cuda": (2**14, 2**20, 2**24, 2**28), "cpu": (2**14, 2**20)}


@dataclass
class Truths:
    """The observations of one rank, by the names of testing.gpu_truths; an error is the reason of one without any."""

    device: dict[str, Any] | None = None
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


class TruthRank:
    """One rank with its strategy after setup."""

    def __init__(self, folder: Path, spec: RunSpec, strategy: Strategy, batches: Iterator[Any]) -> None:
        self.folder, self.spec, self.strategy, self._batches = folder, spec, strategy, batches
        self.work: Any = importlib.import_module(REFERENCE_WORK).ReferenceWork(strategy)

    def list_truths(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return the truths that this number of devices can show, in an order in which none spoils the next."""
        if self.spec.gpus > 1:
            return {"all_reduce": self.compare_all_reduce}
        return {
            "timer": self.time_sleep_kernels,
            "copy": self.copy_pattern,
            "monitor": self.compare_with_monitor,
            "memory": self.exhaust_memory,
            "profiler": self.compare_after_profiler,  # last: what it leaves behind slows down the others
        }

    def time_sleep_kernels(self) -> dict[str, Any]:
        """Time kernels of known length as if they were steps of a training."""
        sleep = self.work.make_sleep(SLEEP_S)
        before_s = self.work.time_s(sleep, SLEEPS) / SLEEPS
        phase = fixed_length_phase("kernels", SLEEP_BLOCKS, SLEEPS)
        loop = TimedLoop(self.strategy, itertools.repeat(None), [fixed_length_phase("first", 1, SLEEPS), phase])
        for _ in loop:
            sleep()
            loop.done(None)
        after_s = self.work.time_s(sleep, SLEEPS) / SLEEPS
        measured_s = statistics.median(phase.series.seconds) / SLEEPS
        return {"measured_s": measured_s, "expected_s": (before_s + after_s) / 2}

    def copy_pattern(self) -> dict[str, Any]:
        """Copy from host memory as measure.bandwidth does, and by itself."""
        kind = "host_to_device" if self.spec.device == "cuda" else "memcpy"
        rank = self.strategy.place.rank
        action = self.strategy.transfer(kind, rank, rank, COPY_BYTES)
        time_on_slowest_rank(self.strategy, action, 1, time.perf_counter)
        measured, expected = [], []
        for _ in range(BLOCKS):  # in turns: the bandwidth of a host changes with what else it does
            measured += time_blocks(self.strategy, action, COPIES, 1)
            expected.append(self.work.time_copy_s(COPY_BYTES))
        return {
            "measured_s": statistics.median(measured) / COPIES,
            "expected_s": statistics.median(seconds for seconds, _ in expected),
            "arrived": all(arrived for _, arrived in expected),
            "size_bytes": COPY_BYTES,
        }

    def compare_with_monitor(self) -> dict[str, Any]:
        """Time steps while the monitor samples and while it is paused, in turns."""
        steps, seconds = self._choose_steps(), {True: list[float](), False: list[float]()}
        with MonitorProcess(self.spec, self.folder) as monitor:
            time.sleep(MONITOR_START_S)
            for number in range(2 * BLOCKS):
                is_on = number % 4 in (0, 3)  # on, off, off, on: against drifts
                (monitor.resume if is_on else monitor.pause)()
                seconds[is_on] += self._time_steps(steps, 1)
        if monitor.reason is not None:
            raise NotMeasured(f"the monitor did not run: {monitor.reason}")
        on_s, off_s = statistics.median(seconds[True]), statistics.median(seconds[False])
        return {"measured_s": on_s / steps, "expected_s": off_s / steps, "noise_share": noise_share(seconds[False])}

    def exhaust_memory(self) -> dict[str, Any]:
        """Run out of memory, and train on."""
        self._time_steps(1, 1)
        before_bytes = self.work.free_bytes()
        error = self.work.exhaust_memory()
        status = None
        if error is not None:
            record = RankRecord(self.strategy.place.rank, "", 0)
            classify_error(error, record)
            status = record.status
        self._time_steps(1, 1)
        after_bytes = self.work.free_bytes()
        return {"status": status, "before_bytes": before_bytes, "after_bytes": after_bytes}

    def compare_after_profiler(self) -> dict[str, Any]:
        """Time steps before and after a profile."""
        steps = self._choose_steps()
        before = self._time_steps(steps, BLOCKS)
        self.strategy.profile(PROFILED_STEPS, None)
        after_s, before_s = (
            statistics.median(self._time_steps(steps, BLOCKS)) / steps,
            statistics.median(before) / steps,
        )
        return {"measured_s": after_s, "expected_s": before_s, "noise_share": noise_share(before)}

    def compare_all_reduce(self) -> dict[str, Any]:
        """Time all-reduces as measure.collectives does, and in a plain loop."""
        sizes = ALL_REDUCE_SIZES[self.spec.device]
        records, reasons = measure_collectives(self.strategy, self.spec.config.measure, sizes=sizes)
        measured = {r.size_bytes: statistics.median(r.block_s) / r.repeats for r in records if r.name == "all_reduce"}
        expected = self.work.time_all_reduce_s(sizes)
        if not measured:
            raise NotMeasured(reasons.get("all_reduce", "no size was measured"))
        return {"sizes": [[size, measured.get(size), expected[size]] for size in sizes], "ranks": self.spec.gpus}

    def _choose_steps(self) -> int:
        batch = next(self._batches)
        once_s = time_warm_call(self.strategy, partial(self._train_step, batch))
        return repeats_within(BLOCK_S, once_s, 1, MAX_STEPS)

    def _time_steps(self, steps: int, blocks: int) -> list[float]:
        return time_blocks(self.strategy, partial(self._train_step, next(self._batches)), steps, blocks)

    def _train_step(self, batch: Any) -> None:
        self.strategy.step(batch)


def noise_share(seconds: list[float]) -> float:
    """Return half the range of blocks of the same work, relative to their median: where steps wait for a busy host, two
    medians differ by some of that for no other reason."""
    return (max(seconds) - min(seconds)) / (2 * statistics.median(seconds))


def observe_truths(folder: Path, spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile) -> None:
    """Observe all truths of one rank."""
    train, _ = datasets.open_sources(spec, *strategy.shard())
    strategy.setup()
    with closing(closable_iterator(strategy.feed(train))) as batches:
        rank = TruthRank(folder, spec, strategy, batches)
        facts = rank.work.describe()
        truths = Truths(None if facts is None else dataclasses.asdict(facts))
        for name, observe in rank.list_truths().items():
            progress.enter_phase("probes")
            try:
                truths.measured[name] = observe()
            except Exception as error:
                traceback.print_exc()
                truths.errors[name] = describe_exception(error)
            write_json(folder / f"truths{record.rank}.json", truths)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    # PyTorch's profiler else leaves hooks behind that slow each launch of a kernel: pytorch issue 144455. Not in runs,
    # where nothing is timed after the profiler: what is torn down can fall into the next session, which sees no kernel.
    os.environ["TEARDOWN_CUPTI"] = "1"
    return run_rank(folder, partial(observe_truths, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
