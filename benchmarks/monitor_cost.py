"""The cost of the monitor for the throughput of a run. Target: under 1 %.

Within one launch the monitor is stopped and continued in turns: launches differ by more than its cost.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.spread import format_ratios
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import read_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.runner import launchers
from scalebench.runner.launchers.supervise import PROGRESS_INTERVAL_S
from scalebench.workloads import datasets

LAUNCHES = int(os.environ.get("BENCHMARK_LAUNCHES", "3"))
CALLS_PER_TURN = round(2.0 / PROGRESS_INTERVAL_S)  # a turn is as long as the interval of the rarest sample
ADJUSTING_S = 0.1  # left out at the beginning of each turn
CASES = (("bare_torch", 1), ("ddp_gloo", 2))


class Turns:
    """Stops and continues the monitor, as the launcher reports progress: on, off, off, on, and so on."""

    def __init__(self, pid: int) -> None:
        self._pid, self._calls = pid, 0
        self.begins: list[tuple[float, bool]] = [(time.time(), True)]  # (time, whether the monitor runs)

    def on_progress(self, progress: list[Any]) -> None:
        self._calls += 1
        if self._calls % CALLS_PER_TURN == 0:
            runs = len(self.begins) % 4 in (0, 3)  # alternate which is first
            os.kill(self._pid, signal.SIGCONT if runs else signal.SIGSTOP)
            self.begins.append((time.time(), runs))


@contextlib.contextmanager
def in_turns(monitor: MonitorProcess) -> Iterator[Turns]:
    """Run the process of `monitor` in turns; to end, it has to run."""
    if monitor.pid is None:
        raise SystemExit(f"no monitor: {monitor.reason}")
    try:
        yield Turns(monitor.pid)
    finally:
        os.kill(monitor.pid, signal.SIGCONT)


def main() -> None:
    for strategy, gpus in CASES:
        launches = [measure(strategy, gpus) for _ in range(LAUNCHES)]
        without, watched = (np.concatenate([pairs[n] for pairs in launches]) for n in range(2))
        if len(without):
            compared = format_ratios(without, watched)
            print(f"{strategy} gpus={gpus}: throughput with the monitor / without: {compared}", flush=True)


def measure(strategy: str, gpus: int) -> tuple[list[float], list[float]]:
    """Return the seconds per step of turns: without the monitor, with it."""
    spec = resolve(compose_config([f"strategy={strategy}", f"gpus={gpus}"]))
    if spec.unsupported is not None:
        print(f"{strategy} gpus={gpus}: {spec.unsupported}")
        return [], []
    datasets.prepare(spec.config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_spec(spec, folder)
        with MonitorProcess(spec, folder) as monitor, in_turns(monitor) as turns:
            ended = launchers.launch(spec, folder, "benchmark", turns.on_progress, module="benchmarks.monitor_worker")
        if set(ended.exit_codes) != {0} or monitor.reason is not None:
            raise SystemExit(monitor.reason or (folder / rank_log_name(0)).read_text())
        blocks = read_json(folder / "blocks.json")
    return pair_turns(turns.begins, blocks["ends_s"], blocks["step_s"])


def pair_turns(
    begins: list[tuple[float, bool]], ends_s: list[float], step_s: list[float]
) -> tuple[list[float], list[float]]:
    """Return the means of each pair of turns: without the monitor, with it."""
    means: list[float | None] = []
    for (begin_s, _), (end_s, _) in itertools.pairwise(begins):
        within = [s for at_s, s in zip(ends_s, step_s, strict=True) if begin_s + ADJUSTING_S < at_s < end_s]
        means.append(float(np.mean(within)) if len(within) > 5 else None)
    pairs = []
    for turn in range(0, len(means) - 1, 2):
        first, second = means[turn : turn + 2]
        if first is not None and second is not None:
            pairs.append((second, first) if begins[turn][1] else (first, second))
    return [a for a, _ in pairs], [b for _, b in pairs]
