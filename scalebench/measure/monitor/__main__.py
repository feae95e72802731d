"""The process that samples: `python -m scalebench.measure.monitor FOLDER`. SIGTERM has it write its series and end.

With the number of a node it is that node's monitor, where the agents of other ranks run beside its parent.

It ends with the process that started it, imports no framework, and takes what the others leave of the cores.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scalebench.core import exit_with_parent
from scalebench.core.run_folder import monitor_path
from scalebench.core.spec import read_spec
from scalebench.measure.monitor.gpu_sampler import Gpus
from scalebench.measure.monitor.host_sampler import Host
from scalebench.measure.monitor.process_sampler import Processes
from scalebench.measure.monitor.time_series import Rows

GPU_S, HOST_S, FOREIGN_S = 0.1, 0.5, 2.0  # between samples
SLOW_S = 1.0  # the same, of what a GPU takes its time to tell
NICENESS = 10  # of 19: behind whatever measures, yet not so far that it would miss whole seconds
MANY_ROWS = 1_000_000  # 24 MB, a quarter of an hour of eight GPUs; from there on less and less often
ENDING = {signal.SIGTERM, signal.SIGINT}


class Monitor:
    """Everything that is sampled, each at its own pace."""

    def __init__(self, folder: Path, parent: int, node: int | None = None) -> None:
        self.rows = Rows()
        spec = read_spec(folder)
        ranks = [place.rank for place in spec.places if node in (None, place.node)]
        self._gpus, self._host = Gpus(self.rows), Host(self.rows)
        self._processes = Processes(self.rows, folder, parent, ranks, with_agents=node is not None)
        self.missing = self._gpus.missing if spec.device == "cuda" else None
        self._interval_s: dict[Callable[[], None], float] = {self._host_and_processes: HOST_S}
        if count := len(self._gpus):
            slow_s = max(GPU_S, SLOW_S / count)  # one GPU at a time, so that the others are not kept waiting
            gpu = {self._gpus.sample: GPU_S, self._gpus.sample_slow: slow_s, self._foreign: FOREIGN_S}
            self._interval_s.update(gpu)
        self._due_s = dict.fromkeys(self._interval_s, 0.0)
        self._first_look = True
        self._many = MANY_ROWS

    def sample(self) -> None:
        """Whatever is due now."""
        now_s = time.monotonic()
        for part, due_s in self._due_s.items():
            if now_s >= due_s:
                part()
                # From now, not from when it was due: after a stall nothing is made up for.
                self._due_s[part] = max(due_s + self._interval_s[part], now_s + self._interval_s[part] / 2)
        if len(self.rows) > self._many:
            self._many += MANY_ROWS
            self._interval_s = {part: 2 * interval_s for part, interval_s in self._interval_s.items()}

    def rest_s(self) -> float:
        """Until something is due."""
        return max(0.0, min(self._due_s.values()) - time.monotonic())

    def last(self) -> None:
        """Counters up to the end."""
        self._due_s = dict.fromkeys(self._due_s, 0.0)
        self.sample()

    def _host_and_processes(self) -> None:
        self._host.sample()
        self._processes.sample()

    def _foreign(self) -> None:
        """Compute processes that are not ours, by GPU.

        In a container NVML may tell the numbers that processes have outside: one that is not here is not counted,
        except at the first look, before any of ours can be on a GPU.
        """
        found = list(self._gpus.processes())
        self._processes.search()  # afterwards: what has started in between is ours
        for index, pids in found:
            others = [pid for pid in pids if pid not in self._processes.ours]
            known = [pid for pid in others if self._first_look or Path(f"/proc/{pid}").exists()]
            self.rows.add(time.time(), f"gpu{index}", "foreign_processes", len(known))
        self._first_look = False


def main(argv: list[str]) -> int:
    """Sample until told to end, then write the series. 1 when it could not be written, with the reason as last line."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    folder, node = Path(argv[0]), int(argv[1]) if len(argv) > 1 else None
    parent = int(os.environ.get("SCALEBENCH_PARENT_PID", os.getppid()))
    exit_with_parent.exit_with(parent, signal.SIGKILL)
    os.nice(NICENESS)
    monitor = Monitor(folder, parent, node)
    while True:
        monitor.sample()
        if signal.sigtimedwait(ENDING, monitor.rest_s()) is not None:
            break
    monitor.last()
    try:
        monitor.rows.write(monitor_path(folder, node or 0))
    except Exception as error:
        print(f"the series could not be written: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 1
    if monitor.missing is not None:
        print(f"no GPU figures: {monitor.missing}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
