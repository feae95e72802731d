"""The turns of one run among others that are alive at the same time: its processes are parked and continued."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.core.machine.cpus import CpuTimes
from scalebench.core.process import CpuMeter, cancelled, wait_until
from scalebench.core.run_folder import Turn
from scalebench.core.spec import RunSpec
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.measure.progress import PARKED, READY, RankProgress

if TYPE_CHECKING:
    from scalebench.runner.launchers.supervise import RankGroup

IN_MOVED_TO = 0x80  # of inotify: a file was renamed into the folder
EVENT = struct.Struct("iIII")  # of inotify: watch, mask, cookie, and the length of the name that follows
GATE_INTERVAL_S = 0.002  # between two looks for the end of a slot, where the kernel does not report it
STOP_LIMIT_S = 10.0  # for the processes of a run to stop, and for a shared file system to show that nodes have
AWAKE_INTERVAL_S, PARKED_INTERVAL_S = 0.1, 0.5  # between two looks at processes, awake and parked
# Other programs disturb a slot when they use so much of a core while less than one core is idle. The kernel counts in
# hundredths of a second, which is a tenth of a core in the shortest slots.
MAX_SLOT_OTHER_CORES, MIN_IDLE_CORES = 0.25, 1.0


class Turns:
    """The turns of one run. The thread that supervises its processes and the one that conducts the cohort share it.

    The conductor waits for the gate (`await_gate`), parks the run there (`park`) and grants its turns (`grant`). A run
    that ended, however that came, is `over` for it.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._measuring = [place.rank for place in spec.places if place.rank not in spec.services]
        self._group: RankGroup | None = None
        self.monitor: MonitorProcess | None = None  # of this host, which is parked with the run
        self._turn = Turn(0)
        self._watch: FolderWatch | threading.Event | None = None
        self._granted_at_s = 0.0
        self._changed = threading.Condition()
        self._parked_since_s: float | None = None
        self._parked_s = 0.0  # in earlier pauses
        self._meter: CpuMeter | None = None  # of the processes; None: some are on other hosts
        self._own_s = 0.0  # that they had used when they were last at their gate; parked, they use nothing
        self.disturbed_rounds: list[int] = []  # in which other programs took the cores
        self.over = False
        self.refused: str | None = None  # why it cannot take turns any more

    # For the supervisor.

    def attach(self, group: RankGroup) -> None:
        """Register the processes of the run when they have been started."""
        self._group, self._watch = group, group.watch()

    def awake_s(self) -> float:
        """Return the time of a clock that stands still while the run is parked, in seconds."""
        with self._changed:
            now_s = time.monotonic()
            return now_s - self._parked_s - (0.0 if self._parked_since_s is None else now_s - self._parked_since_s)

    def sleep(self) -> None:
        """Sleep until the next look at the processes; parked ones are looked at less often."""
        with self._changed:
            self._changed.wait(AWAKE_INTERVAL_S if self._parked_since_s is None else PARKED_INTERVAL_S)

    def end(self) -> None:
        """Register that the run has ended."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    # For the conductor.

    def await_ready(self) -> bool:
        """Wait until all ranks that measure are set up and wait with their first step; False when the run is over.
        Raises KeyboardInterrupt when the program is cancelled."""
        while not self.over:
            if cancelled.is_set():
                raise KeyboardInterrupt
            if self._group is not None:
                reports = self._group.progress()
                if all((report := reports[rank]) is not None and report.phase == READY for rank in self._measuring):
                    return True
            self._wait(AWAKE_INTERVAL_S)
        return False

    def warm_up(self) -> None:
        """Let a run that is ready make its first step; if that cannot be written, it fails."""
        assert self._group is not None, "a run without processes is not ready"
        try:
            self._group.warm_up()
        except OSError as error:
            self.refuse(f"it cannot be told to go on: {error.strerror}")

    def await_gate(self) -> list[RankProgress]:
        """Wait until all ranks that measure are at their gate, and return what they report; an empty list when the run
        is over. Raises KeyboardInterrupt when the program is cancelled."""
        while True:
            if self.over:
                return []
            if cancelled.is_set():
                raise KeyboardInterrupt
            slot_left_s = self._granted_at_s + (self._turn.slot_s or 0.0) - time.monotonic()
            if self._group is None or self._watch is None or slot_left_s > 0:
                self._wait(PARKED_INTERVAL_S if self._group is None else min(slot_left_s, PARKED_INTERVAL_S))
                continue
            self._watch.clear()
            latest, at_gate = self._group.progress(), (PARKED, self._turn.number)
            reports = [each for rank in self._measuring if (each := latest[rank]) is not None]
            if [(each.phase, each.turn) for each in reports] == [at_gate] * len(self._measuring):
                return reports
            self._watch.wait(AWAKE_INTERVAL_S)

    def park(self) -> bool:
        """Stop all processes of the run, which wait at the gate. Return False if they have not stopped in time."""
        group = self._group
        assert group is not None, "a run without processes is not at its gate"
        if self._turn.number == 0:
            pids = group.local_pids()
            self._meter = None if pids is None else CpuMeter(pids)
            self._own_s = 0.0 if self._meter is None else self._meter.read_s()
        with self._changed:
            group.pause()
            if self.monitor is not None:
                self.monitor.pause()
            self._parked_since_s = time.monotonic()
        return wait_until(group.is_paused, STOP_LIMIT_S)

    def refuse(self, reason: str) -> None:
        """Have the supervisor end the run, which failed for this reason."""
        with self._changed:
            self.refused = reason
            self._parked_since_s = None
            self._changed.notify_all()

    def await_end(self) -> None:
        """Wait until the run has ended. Raises KeyboardInterrupt when the program is cancelled."""
        while not self.over:
            if cancelled.is_set():
                raise KeyboardInterrupt
            self._wait(PARKED_INTERVAL_S)

    def resident_bytes(self) -> int | None:
        """Return the anonymous memory of the largest worker of the parked run; None where it cannot be read."""
        sizes = () if self._group is None else self._group.resident_bytes()
        return max((size for size in sizes if size is not None), default=None)

    def is_disturbed(self, begin: CpuTimes, now: CpuTimes) -> bool:
        """Return whether other programs took cores that the run, now at its gate again, needed since `begin`, when it
        was still parked."""
        if self._meter is None:
            return False
        seconds, before_s = now.at_s - begin.at_s, self._own_s
        self._own_s = self._meter.read_s()
        others_s = now.busy_s - begin.busy_s - (self._own_s - before_s)
        is_idle = now.idle_s - begin.idle_s >= MIN_IDLE_CORES * seconds
        return others_s > MAX_SLOT_OTHER_CORES * seconds and not is_idle

    def grant(self, slot_s: float | None, round: int = 0) -> None:
        """Continue the parked run for a slot of so many seconds or to its end; if that cannot be written, it fails."""
        self._turn = Turn(self._turn.number + 1, slot_s, round)
        with self._changed:
            if self._parked_since_s is not None:
                self._parked_s += time.monotonic() - self._parked_since_s
                self._parked_since_s = None
            self._granted_at_s = time.monotonic()
            if self.monitor is not None:
                self.monitor.resume()
            try:
                if self._group is not None:
                    self._group.resume(self._turn)
            except OSError as error:
                self.refuse(f"its turn cannot be written: {error.strerror}")

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self.over:
                self._changed.wait(seconds)


class FolderWatch:
    """Waits until a file is renamed into a folder, by Linux' inotify. Files that come from other hosts are not seen;
    without inotify, waits are short."""

    def __init__(self, folder: Path) -> None:
        self._poll, self._descriptor = select.poll(), -1
        if sys.platform.startswith("linux"):
            libc = ctypes.CDLL(None)
            self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor >= 0:
            weakref.finalize(self, os.close, self._descriptor)
            if libc.inotify_add_watch(self._descriptor, os.fsencode(folder), IN_MOVED_TO) < 0:
                self._descriptor = -1
            else:
                self._poll.register(self._descriptor, select.POLLIN)

    def wait(self, limit_s: float) -> None:
        """Wait for a file, since the last `clear`, for at most so long."""
        if self._descriptor < 0:
            time.sleep(min(limit_s, GATE_INTERVAL_S))
        else:
            self._poll.poll(1e3 * limit_s)

    def fileno(self) -> int:
        return self._descriptor

    def clear(self) -> set[str]:
        """Forget the files that have come so far, and return their names."""
        names: set[str] = set()
        content = b""
        if self._descriptor >= 0:
            with contextlib.suppress(BlockingIOError):
                content = os.read(self._descriptor, 1 << 16)
        while content:
            end = EVENT.size + EVENT.unpack_from(content)[3]
            names.add(os.fsdecode(content[EVENT.size : end].rstrip(b"\0")))
            content = content[end:]
        return names
