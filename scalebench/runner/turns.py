"""The turns of one run among others that are alive at the same time: its processes are parked and continued."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core.json_files import rewrite_json, write_json
from scalebench.core.machine.cpus import CpuTimes, read_cpu_times
from scalebench.core.process import POLL_INTERVAL_S, CpuMeter, cancelled
from scalebench.core.run_folder import Turn, turn_path
from scalebench.core.spec import RunSpec
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.measure.progress import PARKED, RankProgress, read_progress

if TYPE_CHECKING:
    from scalebench.runner.launchers.supervise import RankGroup

GATE_INTERVAL_S = 0.002  # between two looks for the end of a slot, from shortly before its expected end on
EARLY_SHARE = 0.05  # of the last slot's length, how long before its expected end
STOP_LIMIT_S = 10.0  # for the processes of a run to stop, and for a shared file system to show that nodes have
AWAKE_INTERVAL_S, PARKED_INTERVAL_S = 0.1, 0.2  # between two looks at processes, awake and parked
# Other programs disturb a slot when they use so much of a core while less than one core is idle. The kernel counts in
# hundredths of a second, which is a tenth of a core in the shortest slots.
MAX_SLOT_OTHER_CORES, MIN_IDLE_CORES = 0.25, 1.0


class Turns:
    """The turns of one run. The thread that supervises its processes and the one that conducts the cohort share it.

    The conductor waits for the gate (`await_gate`), parks the run there (`park`) and grants its turns (`grant`). A run
    that ended, however that came, is `over` for it.
    """

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self._folder = folder
        self._measuring = [place.rank for place in spec.places if place.rank not in spec.services]
        self._group: RankGroup[Any] | None = None
        self._run_id: str | None = None
        self.monitor: MonitorProcess | None = None  # of this host, which is parked with the run
        self._turn = Turn(0)
        self._granted_at_s = self._last_slot_s = 0.0
        self._changed = threading.Condition()
        self._parked_since_s: float | None = None
        self._parked_s = 0.0  # in earlier pauses
        self._meter: CpuMeter | None = None  # of the processes; None: some are on other hosts
        self._use_at_grant: tuple[float, CpuTimes, float] | None = None
        self.disturbed_rounds: list[int] = []  # in which other programs took the cores
        self.over = False
        self.refused: str | None = None  # why it cannot take turns any more

    # For the supervisor.

    def attach(self, group: RankGroup[Any], run_id: str) -> None:
        """Register the processes of the run when they have been started."""
        self._group, self._run_id = group, run_id

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

    def await_gate(self) -> list[RankProgress]:
        """Wait until all ranks that measure are at their gate, and return what they report; an empty list when the run
        is over. Raises KeyboardInterrupt when the program is cancelled."""
        while not self.over:
            if cancelled.is_set():
                raise KeyboardInterrupt
            reports = self._read_reports()
            if reports:
                self._last_slot_s = time.monotonic() - self._granted_at_s if self._turn.slot_s else 0.0
                return reports
            self._wait(self._look_interval_s())
        return []

    def park(self) -> bool:
        """Stop all processes of the run, which wait at the gate. Return False if they have not stopped in time."""
        group = self._group
        assert group is not None, "a run without processes is not at its gate"
        if self._turn.number == 0:
            pids = group.local_pids()
            self._meter = None if pids is None else CpuMeter(pids)
        self._turn.over = True
        if self._meter is None:  # agents on nodes read it
            write_json(turn_path(self._folder), self._turn)
        with self._changed:
            group.pause()
            if self.monitor is not None:
                self.monitor.pause()
            self._parked_since_s = time.monotonic()
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while not group.is_paused():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(GATE_INTERVAL_S)
        return True

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

    def is_disturbed(self) -> bool:
        """Return whether other programs took cores that the run, which is at its gate, needed in the slot."""
        if self._meter is None or self._use_at_grant is None:
            return False
        begin_s, begin, own_s = self._use_at_grant
        seconds, now = time.monotonic() - begin_s, read_cpu_times()
        others_s = now.busy_s - begin.busy_s - (self._meter.read_s() - own_s)
        is_idle = now.idle_s - begin.idle_s >= MIN_IDLE_CORES * seconds
        return others_s > MAX_SLOT_OTHER_CORES * seconds and not is_idle

    def grant(self, slot_s: float | None, round: int = 0) -> None:
        """Continue the parked run for a slot of so many seconds or to its end; if that cannot be written, it fails."""
        self._turn = Turn(self._turn.number + 1, slot_s, round)
        try:
            rewrite_json(turn_path(self._folder), self._turn)
        except OSError as error:
            self.refuse(f"its turn cannot be written: {error.strerror}")
        with self._changed:
            if self._parked_since_s is not None:
                self._parked_s += time.monotonic() - self._parked_since_s
                self._parked_since_s = None
            self._granted_at_s = time.monotonic()
            if self.monitor is not None:
                self.monitor.resume()
            if self._meter is not None:
                self._use_at_grant = time.monotonic(), read_cpu_times(), self._meter.read_s()
            if self._group is not None:
                self._group.resume()
            self._changed.notify_all()

    def _look_interval_s(self) -> float:
        """Return the seconds until the next look for the gate: short ones only when a slot should be over, which lasts
        longer than planned where steps are slow."""
        if self._turn.slot_s is None:
            return POLL_INTERVAL_S
        expected_s = max(self._turn.slot_s, (1 - EARLY_SHARE) * self._last_slot_s)
        slot_left_s = self._granted_at_s + expected_s - time.monotonic()
        return max(GATE_INTERVAL_S, min(slot_left_s, PARKED_INTERVAL_S))

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self.over:
                self._changed.wait(seconds)

    def _read_reports(self) -> list[RankProgress]:
        reports = []
        for rank in self._measuring:
            report = read_progress(self._folder, rank, self._run_id)
            if report is None or report.phase != PARKED or report.turn != self._turn.number:
                return []
            reports.append(report)
        return reports
