"""The process that samples: `python -m scalebench.measure.monitor FOLDER [NODE]`. On SIGTERM it writes its series and
ends. While its run is parked, from PAUSE to RESUME, it takes no samples. Where slots are shorter than its intervals it
samples only some of them, from start to end: samples at both ends of every slot would cost more than regular ones.

With the number of a node it is that node's monitor, where the agents of other ranks run beside its parent.

It ends with the process that started it, imports no framework, and has a low priority on the cores.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scalebench.core import exit_with_parent
from scalebench.core.machine import private_network
from scalebench.core.process import describe_error, process_exists
from scalebench.core.run_folder import monitor_path
from scalebench.core.spec import read_spec
from scalebench.measure.monitor.gpu_sampler import GpuSampler
from scalebench.measure.monitor.host_sampler import HostSampler
from scalebench.measure.monitor.monitor_process import BLOCKED_SIGNALS, PAUSE, RESUME
from scalebench.measure.monitor.process_sampler import ProcessSampler
from scalebench.measure.monitor.time_series import MONITOR, RESUMED, SampleRows

GPU_INTERVAL_S, HOST_INTERVAL_S, FOREIGN_INTERVAL_S = 0.1, 0.5, 2.0  # between samples
SLOW_INTERVAL_S = 1.0  # the same, for what NVML takes long to count
MAX_SAMPLING_SHARE = 0.02  # of the time, for the first samples of slots
NICENESS = 10  # of 19: behind the ranks, yet not so far that it would miss entire seconds
ROWS_BEFORE_SLOWING = 1_000_000  # 24 MB, a quarter of an hour of eight GPUs; after each as many, half as often
END_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class Sampler:
    """All samplers, each with an interval of its own."""

    def __init__(self, folder: Path, parent: int, node: int | None = None) -> None:
        self.rows = SampleRows()
        spec = read_spec(folder)
        ranks = [place.rank for place in spec.places if node in (None, place.node)]
        self._gpus = GpuSampler(self.rows)
        self._processes = ProcessSampler(self.rows, folder, parent, ranks, with_agents=node is not None)
        is_private = private_network.is_wanted(spec.config)
        self._host = HostSampler(self.rows, self._processes.first_rank_pid if is_private else None)
        self._is_on_gpus = spec.device == "cuda"
        self._run_pids: set[int] = set()  # of the run, also of processes that have ended
        self._earlier_pids: set[int] | None = None  # on GPUs before the run; None: not counted yet
        self._lists_run = False  # NVML has listed a process of the run
        self._interval_s: dict[Callable[[], None], float] = {self._sample_host: HOST_INTERVAL_S}
        if count := len(self._gpus):
            slow_s = max(GPU_INTERVAL_S, SLOW_INTERVAL_S / count)  # one GPU at a time, so that others need not wait
            self._interval_s |= {
                self._gpus.sample: GPU_INTERVAL_S,
                self._gpus.sample_slow: slow_s,
                self._count_foreign_processes: FOREIGN_INTERVAL_S,
            }
        self._due_s = dict.fromkeys(self._interval_s, 0.0)
        self._next_slot_s = 0.0
        self._slowing_rows = ROWS_BEFORE_SLOWING

    def sample(self) -> None:
        """Sample everything that is due now."""
        now_s = time.monotonic()
        for sample, due_s in self._due_s.items():
            if now_s >= due_s:
                sample()
                # Not only from when it was due: samples missed in a stall are not made up for.
                self._due_s[sample] = max(due_s + self._interval_s[sample], now_s + self._interval_s[sample] / 2)
        if len(self.rows) > self._slowing_rows:
            self._slowing_rows += ROWS_BEFORE_SLOWING
            self._interval_s = {sample: 2 * interval_s for sample, interval_s in self._interval_s.items()}

    def seconds_to_next(self) -> float:
        """Return the seconds until a sample is due."""
        return max(0.0, min(self._due_s.values()) - time.monotonic())

    def resume(self) -> bool:
        """Return whether the slot that begins now is to be sampled, and if so begin with it."""
        begin_s = time.monotonic()
        if begin_s < self._next_slot_s:
            return False
        self.rows.add(time.time(), MONITOR, RESUMED, 1.0)
        self.sample_all()
        cost_s = time.monotonic() - begin_s
        self._next_slot_s = begin_s + max(HOST_INTERVAL_S, cost_s / MAX_SAMPLING_SHARE)
        return True

    def sample_all(self) -> None:
        """Sample everything, due or not, so that counters reach to the end."""
        self._due_s = dict.fromkeys(self._due_s, 0.0)
        self.sample()

    def describe_missing(self) -> str | None:
        """Return what cannot be known of the GPUs of a run, and why; None where nothing is missing."""
        if not self._is_on_gpus:
            return None
        if self._gpus.missing is not None:
            return f"no GPU figures: {self._gpus.missing}"
        if self._gpus and not self._lists_run:
            return "programs that others started on its GPUs: NVML lists no process of the run, as in a container"
        return None

    def _sample_host(self) -> None:
        self._host.sample()
        self._processes.sample()

    def _count_foreign_processes(self) -> None:
        """Count the compute processes on each GPU that do not belong to the run.

        In a container NVML may report the host's process ids, which may belong to other processes here. So ids that
        appear after the start of the run count only once NVML has listed a process of the run by its id here.
        """
        pids_by_gpu = {index: set(pids) for index, pids in self._gpus.compute_processes()}
        self._processes.search()  # afterwards, so that processes of the run that have just started are in it
        self._run_pids |= self._processes.ours
        listed = set().union(*pids_by_gpu.values())
        self._lists_run = self._lists_run or not listed.isdisjoint(self._run_pids)
        if self._earlier_pids is None:
            self._earlier_pids = listed - self._run_pids
        later = {pid for pid in listed - self._run_pids if self._lists_run and process_exists(pid)}
        for index, pids in pids_by_gpu.items():
            foreign = pids & (self._earlier_pids | later)
            self.rows.add(time.time(), f"gpu{index}", "foreign_processes", len(foreign))


def main(argv: list[str]) -> int:
    """Sample until a signal to end, then write the series. Return 1, with the reason as last line on stderr, when it
    could not be written."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    folder, node = Path(argv[0]), int(argv[1]) if len(argv) > 1 else None
    parent = int(os.environ.get(exit_with_parent.PARENT_VARIABLE, os.getppid()))
    exit_with_parent.tie_to_parent(parent, signal.SIGKILL)
    os.nice(NICENESS)
    sampler = Sampler(folder, parent, node)
    number: int | None = None  # of the last signal
    while number not in END_SIGNALS:
        if number == PAUSE:
            number = signal.sigwait({*END_SIGNALS, RESUME})
        elif number == RESUME and not sampler.resume():  # this slot is not sampled
            number = signal.sigwait({*END_SIGNALS, PAUSE})
        else:
            sampler.sample()
            received = signal.sigtimedwait({*END_SIGNALS, PAUSE}, sampler.seconds_to_next())
            number = None if received is None else received.si_signo
            if received is not None:
                sampler.sample_all()  # counters reach to the end of the slot
    try:
        sampler.rows.write(monitor_path(folder, node or 0))
    except Exception as error:
        print(
            f"the series could not be written: {getattr(error, 'strerror', None) or describe_error(error)}",
            file=sys.stderr,
        )
        return 1
    if (missing := sampler.describe_missing()) is not None:
        print(missing, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
