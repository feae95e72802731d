"""Samples of the machine: cores, memory, swap, network, disks and InfiniBand. Layer 2.

Times and bytes are counters, as the kernel keeps them: what was used between two moments is their difference.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scalebench.measure.monitor.time_series import Rows

COUNTERS = {"sent_bytes": "port_xmit_data", "received_bytes": "port_rcv_data"}
LANES = 4  # InfiniBand counts in units of four bytes, a byte of each lane

_ROOT = Path("/")  # tests put a folder of their own here


class Host:
    """The machine, of whose cores those that this process may use are told apart."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        rows.add(time.time(), "cpu", "cores", len(self._allowed))
        self._ports = sorted(_ROOT.glob("sys/class/infiniband/*/ports/*/counters"))

    def sample(self) -> None:
        for part in (self._cpu, self._memory, self._network, self._disk, self._infiniband):
            _quietly(part)

    def _cpu(self) -> None:
        at_s, programs, interrupts, stolen = time.time(), 0, 0, 0
        for line in _ROOT.joinpath("proc/stat").read_text().splitlines():
            name, _, rest = line.partition(" ")
            if name in self._allowed:
                user, nice, system, _, _, irq, softirq, steal = map(int, rest.split()[:8])
                programs += user + nice + system
                interrupts += irq + softirq
                stolen += steal
        if programs:  # some sandboxes show a file of zeros
            self._rows.add(at_s, "cpu", "programs_s", programs * self._tick_s)
            self._rows.add(at_s, "cpu", "busy_s", (programs + interrupts) * self._tick_s)
            self._rows.add(at_s, "cpu", "stolen_s", stolen * self._tick_s)  # by other virtual machines

    def _memory(self) -> None:
        import psutil

        at_s, memory = time.time(), psutil.virtual_memory()
        self._rows.add(at_s, "memory", "used_bytes", memory.used)
        self._rows.add(at_s, "memory", "available_bytes", memory.available)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # psutil's word for counters that it does not find, and gives as 0
            swap = psutil.swap_memory()
        self._rows.add(at_s, "swap", "in_bytes", swap.sin)
        self._rows.add(at_s, "swap", "out_bytes", swap.sout)

    def _network(self) -> None:
        import psutil

        at_s = time.time()
        for name, counted in psutil.net_io_counters(pernic=True, nowrap=False).items():
            self._rows.add(at_s, f"net:{name}", "sent_bytes", counted.bytes_sent)
            self._rows.add(at_s, f"net:{name}", "received_bytes", counted.bytes_recv)

    def _disk(self) -> None:
        import psutil

        at_s, counted = time.time(), psutil.disk_io_counters(nowrap=False)
        if counted is not None:
            self._rows.add(at_s, "disk", "read_bytes", counted.read_bytes)
            self._rows.add(at_s, "disk", "written_bytes", counted.write_bytes)

    def _infiniband(self) -> None:
        for port in self._ports:
            source = f"infiniband:{port.parts[-4]}/{port.parts[-2]}"
            for quantity, counter in COUNTERS.items():
                with suppress(OSError, ValueError):
                    self._rows.add(time.time(), source, quantity, LANES * int((port / counter).read_text()))


def _quietly(part: Callable[[], None]) -> None:
    """What the kernel does not show leaves no row, and keeps nothing else from being sampled."""
    with suppress(Exception):
        part()
