"""What the monitor costs the run that it watches. Wanted: under 1 % of its throughput.

In one launch the monitor is stopped and goes on in turns: launches differ by more than it could cost.
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

from benchmarks.spread import ratios
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
LOOKS = round(2.0 / PROGRESS_INTERVAL_S)  # of a turn: as long as the rarest sample takes to come round
ADJUSTING_S = 0.1  # left out after each turn's begin
CASES = (("bare_torch", 1), ("ddp_gloo", 2))


class Turns:
    """Stops the monitor and lets it go on, as the launcher looks: on, off, off, on, and so on."""

    def __init__(self, pid: int) -> None:
        self._pid, self._looks = pid, 0
        self.begins: list[tuple[float, bool]] = [(time.time(), True)]  # when, and whether the monitor runs

    def look(self, progress: list[Any]) -> None:
        self._looks += 1
        if self._looks % LOOKS == 0:
            runs = len(self.begins) % 4 in (0, 3)  # neither is always first
            os.kill(self._pid, signal.SIGCONT if runs else signal.SIGSTOP)
            self.begins.append((time.time(), runs))


@contextlib.contextmanager
def in_turns(monitor: MonitorProcess) -> Iterator[Turns]:
    """The monitor of `monitor` runs in turns; to end, it has to run."""
    if monitor.pid is None:
        raise SystemExit(f"no monitor: {monitor.reason}")
    try:
        yield Turns(monitor.pid)
    finally:
        os.kill(monitor.pid, signal.SIGCONT)


def main() -> None:
    for strategy, gpus in CASES:
        found = [measure(strategy, gpus) for _ in range(LAUNCHES)]
        without, watched = (np.concatenate([pairs[n] for pairs in found]) for n in range(2))
        if len(without):
            compared = ratios(without, watched)
            print(f"{strategy} gpus={gpus}: throughput with the monitor / without: {compared}", flush=True)


def measure(strategy: str, gpus: int) -> tuple[list[float], list[float]]:
    """Seconds per update of turns: without the monitor, with it."""
    spec = resolve(compose_config([f"strategy={strategy}", f"gpus={gpus}"]))
    if spec.unsupported is not None:
        print(f"{strategy} gpus={gpus}: {spec.unsupported}")
        return [], []
    datasets.prepare(spec.config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_spec(spec, folder)
        with MonitorProcess(spec, folder) as monitor, in_turns(monitor) as turns:
            ended = launchers.launch(spec, folder, "benchmark", turns.look, module="benchmarks.monitor_worker")
        if set(ended.exit_codes) != {0} or monitor.reason is not None:
            raise SystemExit(monitor.reason or (folder / rank_log_name(0)).read_text())
        blocks = read_json(folder / "blocks.json")
    return paired(turns.begins, blocks["ends_s"], blocks["step_s"])


def paired(
    begins: list[tuple[float, bool]], ends_s: list[float], step_s: list[float]
) -> tuple[list[float], list[float]]:
    """Means of each two turns that belong together: without the monitor, with it."""
    means: list[float | None] = []
    for (begin_s, _), (end_s, _) in itertools.pairwise(begins):
        within = [s for at_s, s in zip(ends_s, step_s, strict=True) if begin_s + ADJUSTING_S < at_s < end_s]
        means.append(float(np.mean(within)) if len(within) > 5 else None)
    pairs = []
    for turn in range(0, len(means) - 1, 2):
        one, two = means[turn : turn + 2]
        if one is not None and two is not None:
            pairs.append((two, one) if begins[turn][1] else (one, two))
    return [a for a, _ in pairs], [b for _, b in pairs]
