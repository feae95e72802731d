"""One rank of the truths of `scalebench check --gpu`: `python -m scalebench.testing.gpu_worker FOLDER`.

Each truth compares a figure of scalebench with the device's own clock, or with itself under another condition, and is
judged by a pure function of both. With one device these are all but the all-reduce, which needs two. They are recorded
in truths<k>.json as they end, so that a truth that ends the process leaves those before it.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scalebench.analysis.collectives import bus_factor
from scalebench.core.errors import describe_exception
from scalebench.core.json_files import write_json
from scalebench.core.machine.gpus import count_gpus
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.core.units import format_binary_bytes, format_bytes
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
PASS, FAIL, NOT_POSSIBLE = "pass", "fail", "not possible here"
# Relative. Both clocks of the timer are exact; a block ends with a synchronization, some 10 us after its last kernel. A
# busy host wakes the sleeping processes of `program` late.
TOLERANCES = {
    "timer": 0.02, "monitor": 0.03, "profiler": 0.05, "program": 0.1, "copy": 0.05, "all_reduce": 0.1, "bare": 0.05,
}  # fmt: skip
MIN_BANDWIDTH_BYTES = 2**20  # below, a single operation is mostly latency
FREED_BYTES = 2**26  # of memory that may be missing after it was full
TITLES = {
    "device": "PyTorch sees the GPUs",
    "program": "a step of known length, through the whole program",
    "timer": "kernels of known length against the timer",
    "copy": "a copy of known bytes",
    "monitor": "steps with the monitor on and off",
    "memory": "recovery from out of memory",
    "profiler": "steps before and after the profiler",
    "all_reduce": "all-reduce against a plain loop",
    "bare": "bare_torch against ddp on one GPU",
    "one_gpu": "two ranks on one GPU over Gloo",
}


@dataclass(frozen=True)
class Truth:
    """One line of the page. Figures are in the unit of `text`; None where there is no figure."""

    name: str
    verdict: str  # PASS, FAIL or NOT_POSSIBLE
    text: str  # the figures, or the reason
    measured: float | None = None
    expected: float | None = None
    tolerance: float | None = None  # relative
    detail: str = ""  # of a failure: the logs

    @property
    def title(self) -> str:
        """The name for people."""
        return TITLES.get(self.name, self.name)

    @property
    def answer(self) -> str:
        """Verdict and figures, or reason, in one line."""
        return f"{self.verdict}: {' '.join(self.text.split())}"


def judge(
    name: str,
    measured: float | None,
    expected: float | None,
    form: Callable[[float], str],
    tolerance: float | None = None,
) -> Truth:
    """Compare a figure with the expected one; `form` writes either. A figure that is missing or not finite fails.
    Without a tolerance it is that of TOLERANCES."""
    tolerance = TOLERANCES[name] if tolerance is None else tolerance
    values = (measured, expected)
    if any(value is None or not math.isfinite(value) or value <= 0 for value in values):
        return Truth(name, FAIL, f"no figure: measured {measured}, expected {expected}", *values, tolerance)
    assert measured is not None and expected is not None
    verdict = PASS if abs(measured / expected - 1) <= tolerance else FAIL
    text = f"{form(measured)}, expected {form(expected)} within {tolerance:.0%}"
    return Truth(name, verdict, text, measured, expected, tolerance)


def judge_device(facts: Any, gpus: int) -> Truth:
    """PyTorch has to see as many GPUs as NVML reports for this process; `facts` are a DeviceFacts, None on a CPU."""
    if facts is None:
        return Truth("device", FAIL, f"PyTorch uses the CPU, and NVML reports {gpus} GPUs")
    text = f"{facts.count} of {gpus}: {facts.name}, compute capability {facts.capability}"
    text += f", PyTorch {facts.torch} for CUDA {facts.cuda}"
    return Truth("device", PASS if facts.count == gpus else FAIL, text, facts.count, gpus, 0.0)


def judge_seconds(name: str, measured_s: float | None, expected_s: float, tolerance: float = 0.0) -> Truth:
    """Compare the seconds of a kernel or a step; `tolerance` is what the machine's own noise moves them by."""
    tolerance = max(TOLERANCES[name], tolerance)
    return judge(name, measured_s, expected_s, lambda seconds: f"{1e3 * seconds:.4g} ms", tolerance)


def judge_rates(name: str, size_bytes: float, *seconds: float | None) -> Truth:
    """Compare the rates of so many bytes in the seconds that were measured and expected."""
    measured, expected = (None if not each_s else size_bytes / each_s for each_s in seconds)
    return judge(name, measured, expected, lambda rate: f"{format_bytes(rate)}/s")


def judge_memory(status: str | None, before_bytes: int | None, after_bytes: int | None) -> Truth:
    """Running out of memory has to be an error called oom, after which steps run and the memory is free again."""
    if status != "oom":
        return Truth("memory", FAIL, f"a full memory gave {status or 'no error'} instead of the status oom")
    if before_bytes is not None and (after_bytes or 0) < before_bytes - FREED_BYTES:
        text = f"{format_binary_bytes(after_bytes or 0)} are free afterwards, and "
        text += f"{format_binary_bytes(before_bytes)} were before"
        return Truth("memory", FAIL, text, after_bytes, before_bytes, FREED_BYTES / before_bytes)
    text = "status oom; steps run afterwards, and the memory is free again"
    return Truth("memory", PASS, text, after_bytes, before_bytes)


def judge_all_reduce(ranks: int, seconds: Mapping[int, tuple[float | None, float]]) -> Truth:
    """Compare the bus bandwidth of all sizes above a mebibyte, which is limited by the link and not by its latency."""
    factor = bus_factor("all_reduce", ranks)
    sizes = {size: judge_rates("all_reduce", factor * size, *pair) for size, pair in seconds.items()}
    judged = {size: line for size, line in sizes.items() if size >= MIN_BANDWIDTH_BYTES}
    if not judged:
        return Truth("all_reduce", FAIL, f"no size from {format_binary_bytes(MIN_BANDWIDTH_BYTES)} on")
    line = next((line for line in judged.values() if line.verdict == FAIL), judged[max(judged)])
    text = "; ".join(f"{format_binary_bytes(size)}: {line.text}" for size, line in sizes.items())
    return dataclasses.replace(line, text=f"bus bandwidth: {text}")


class TruthRank:
    """One rank with its strategy after setup."""

    def __init__(self, folder: Path, spec: RunSpec, strategy: Strategy, batches: Iterator[Any]) -> None:
        self.folder, self.spec, self.strategy, self._batches = folder, spec, strategy, batches
        self.work: Any = importlib.import_module(REFERENCE_WORK).ReferenceWork(strategy)

    def list_truths(self) -> dict[str, Callable[[], Truth]]:
        """Return the truths that this number of devices can show, in an order in which none spoils the next."""
        if self.spec.gpus > 1:
            return {"all_reduce": self.compare_all_reduce}
        return {
            "device": lambda: judge_device(self.work.describe(), count_gpus()),
            "timer": self.time_sleep_kernels,
            "copy": self.copy_pattern,
            "monitor": self.compare_with_monitor,
            "memory": self.exhaust_memory,
            "profiler": self.compare_after_profiler,  # last: what it leaves behind slows down the others
        }

    def time_sleep_kernels(self) -> Truth:
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
        return judge_seconds("timer", measured_s, (before_s + after_s) / 2)

    def copy_pattern(self) -> Truth:
        """Copy from host memory as measure.bandwidth does, and by itself."""
        kind = "host_to_device" if self.spec.device == "cuda" else "memcpy"
        rank = self.strategy.place.rank
        action = self.strategy.transfer(kind, rank, rank, COPY_BYTES)
        time_on_slowest_rank(self.strategy, action, 1, time.perf_counter)
        measured, expected = [], []
        for _ in range(BLOCKS):  # in turns: the bandwidth of a host changes with what else it does
            measured += time_blocks(self.strategy, action, COPIES, 1)
            expected.append(self.work.time_copy_s(COPY_BYTES))
        if not all(arrived for _, arrived in expected):
            return Truth("copy", FAIL, f"the {COPY_BYTES} bytes that arrived are others than those sent")
        expected_s = statistics.median(seconds for seconds, _ in expected)
        return judge_rates("copy", COPY_BYTES, statistics.median(measured) / COPIES, expected_s)

    def compare_with_monitor(self) -> Truth:
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
        return judge_seconds("monitor", on_s / steps, off_s / steps, noise_share(seconds[False]))

    def exhaust_memory(self) -> Truth:
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
        return judge_memory(status, before_bytes, self.work.free_bytes())

    def compare_after_profiler(self) -> Truth:
        """Time steps before and after a profile."""
        steps = self._choose_steps()
        before = self._time_steps(steps, BLOCKS)
        self.strategy.profile(PROFILED_STEPS, None)
        after_s, before_s = (statistics.median(each) / steps for each in (self._time_steps(steps, BLOCKS), before))
        return judge_seconds("profiler", after_s, before_s, noise_share(before))

    def compare_all_reduce(self) -> Truth:
        """Time all-reduces as measure.collectives does, and in a plain loop."""
        sizes = ALL_REDUCE_SIZES[self.spec.device]
        records, reasons = measure_collectives(self.strategy, self.spec.config.measure, sizes=sizes)
        measured = {r.size_bytes: statistics.median(r.block_s) / r.repeats for r in records if r.name == "all_reduce"}
        expected = self.work.time_all_reduce_s(sizes)
        if not measured:
            raise NotMeasured(reasons.get("all_reduce", "no size was measured"))
        return judge_all_reduce(self.spec.gpus, {size: (measured.get(size), expected[size]) for size in sizes})

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
        rank, truths = TruthRank(folder, spec, strategy, batches), list[Truth]()
        for name, observe in rank.list_truths().items():
            progress.enter_phase("probes")
            try:
                truths.append(observe())
            except Exception as error:
                traceback.print_exc()
                truths.append(Truth(name, FAIL, describe_exception(error)))
            write_json(folder / f"truths{record.rank}.json", truths)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    # PyTorch's profiler else leaves hooks behind that slow each launch of a kernel: pytorch issue 144455. Not in runs,
    # where nothing is timed after the profiler: what is torn down can fall into the next session, which sees no kernel.
    os.environ["TEARDOWN_CUPTI"] = "1"
    return run_rank(folder, partial(observe_truths, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
