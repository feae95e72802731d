"""Samples of the machine: cores, memory, swap, network, disks and InfiniBand.

Times and bytes are the counters of the kernel: the amount used between two moments is their difference.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress

import psutil

from scalebench.core.machine import cpus
from scalebench.core.machine.cpus import read_cpu_times, read_throttling, usable_cpus
from scalebench.measure.monitor.time_series import SampleRows

PORT_COUNTERS = {"sent_bytes": "port_xmit_data", "received_bytes": "port_rcv_data"}
LANES = 4  # InfiniBand counts in units of four bytes, one of each lane

LOOPBACK = "lo"


class HostSampler:
    """Samples the machine; of its cores, only those that this process may use.

    Of a run that has a network of its own the loopback is that one: `find_rank` then returns the process id of a rank,
    None while there is none.
    """

    def __init__(self, rows: SampleRows, find_rank: Callable[[], int | None] | None = None) -> None:
        self._rows, self._find_rank = rows, find_rank
        rows.add(time.time(), "cpu", "cores", len(usable_cpus()))
        self._ports = sorted(cpus.SYSTEM_ROOT.glob("sys/class/infiniband/*/ports/*/counters"))

    def sample(self) -> None:
        for sample_part in (self._cpu, self._quota, self._memory, self._network, self._disk, self._infiniband):
            with suppress(Exception):  # what the kernel does not show leaves no row, and must not stop the others
                sample_part()

    def _cpu(self) -> None:
        at_s, times = time.time(), read_cpu_times()
        if times.programs_s:  # some sandboxes show a file of zeros
            self._rows.add(at_s, "cpu", "programs_s", times.programs_s)
            self._rows.add(at_s, "cpu", "busy_s", times.programs_s + times.interrupts_s)
            self._rows.add(at_s, "cpu", "stolen_s", times.stolen_s)

    def _quota(self) -> None:
        if (throttling := read_throttling()) is not None:
            for quantity, count in zip(("quota_periods", "quota_periods_used_up"), throttling, strict=True):
                self._rows.add(time.time(), "cpu", quantity, count)

    def _memory(self) -> None:
        at_s, memory = time.time(), psutil.virtual_memory()
        self._rows.add(at_s, "memory", "used_bytes", memory.used)
        self._rows.add(at_s, "memory", "available_bytes", memory.available)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # psutil warns of counters that it does not find, and returns 0
            swap = psutil.swap_memory()
        self._rows.add(at_s, "swap", "in_bytes", swap.sin)
        self._rows.add(at_s, "swap", "out_bytes", swap.sout)

    def _network(self) -> None:
        at_s = time.time()
        for name, counted in psutil.net_io_counters(pernic=True, nowrap=False).items():
            if name != LOOPBACK or self._find_rank is None:
                self._rows.add(at_s, f"net:{name}", "sent_bytes", counted.bytes_sent)
                self._rows.add(at_s, f"net:{name}", "received_bytes", counted.bytes_recv)
        if self._find_rank is not None and (pid := self._find_rank()) is not None:
            lines = cpus.read_system_file(f"proc/{pid}/net/dev").splitlines()
            counters = next(line.split(":")[1].split() for line in lines if line.strip().startswith(f"{LOOPBACK}:"))
            self._rows.add(at_s, f"net:{LOOPBACK}", "sent_bytes", int(counters[8]))
            self._rows.add(at_s, f"net:{LOOPBACK}", "received_bytes", int(counters[0]))

    def _disk(self) -> None:
        at_s, counted = time.time(), psutil.disk_io_counters(nowrap=False)
        if counted is not None:
            self._rows.add(at_s, "disk", "read_bytes", counted.read_bytes)
            self._rows.add(at_s, "disk", "written_bytes", counted.write_bytes)

    def _infiniband(self) -> None:
        for port in self._ports:
            source = f"infiniband:{port.parts[-4]}/{port.parts[-2]}"
            for quantity, counter in PORT_COUNTERS.items():
                with suppress(OSError, ValueError):
                    self._rows.add(time.time(), source, quantity, LANES * int((port / counter).read_text()))
