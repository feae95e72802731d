"""Taking turns with other runs: where a rank waits between two slots, and the measured phase in slots.

The runs of a cohort are alive at once, and all but one are parked. A rank of a parked run waits at its gate until the
parent continues it. The parent stops all ranks of a run, with their helper processes, once every one of them waits
there: none can then be in the middle of a message to another.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

from scalebench.core.json_files import read_record
from scalebench.core.run_folder import Turn
from scalebench.core.spec import MeasureSpec
from scalebench.measure.progress import ProgressFile
from scalebench.measure.stopping_rule import Report, choose_steps_per_block
from scalebench.measure.timed_loop import BlockSeries, LoopPhase
from scalebench.measure.timing import Clock
from scalebench.strategies.base import Strategy

MIN_SLOT_STEPS = 10  # kept ones; fewer where they take longer than MAX_SLOTS slots
MAX_SLOTS = 10
DISCARDED_BLOCKS = 1  # after waking: caches, clocks


@functools.cache
def open_wakeups() -> int:
    """Return a descriptor from which each signal that this process gets can be read. Call it in the main thread."""
    wakeups, writer = os.pipe()
    os.set_blocking(writer, False)
    # The wake-up descriptor is written whichever thread gets the signal; a mere handler would wait for this one.
    signal.signal(signal.SIGCONT, lambda number, frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # helpers of a rank are continued with it
    return wakeups


class Gate:
    """A rank waits here until the next turn of its run. Create it in the main thread, or after `open_wakeups` there."""

    def __init__(self, path: Path, progress: ProgressFile) -> None:
        """`path` is that of the turn, which is written before the process is continued."""
        self._path, self._progress = path, progress
        self._wakeups = open_wakeups()
        self.turn = Turn(0)

    def wait(self, steps: int = 0, seconds: float = 0.0) -> Turn:
        """Report the steps and seconds of the slot that is over, wait, and return the turn that has been granted."""
        while True:  # the report is written again after a wake-up without a turn: it fails where the folder is gone
            self._progress.park(self.turn.number, steps, seconds)
            while signal.SIGCONT not in os.read(self._wakeups, 4096):  # other signals are written there, too
                pass
            turn = read_record(self._path, Turn) if self._path.exists() else self.turn
            if turn.number > self.turn.number:  # else somebody else continued this process
                self.turn = turn
                self._progress.enter_phase("measure", turn.slot_s)
                return turn


class SlotPhase:
    """The measured phase of a run that takes turns: slots of steps, each in one round of the cohort.

    Rank 0 ends a slot by its own clock and broadcasts that, so that all ranks park at the same step; replicas without
    any synchronization each end theirs. The parent ends the phase.
    """

    def __init__(
        self, strategy: Strategy, settings: MeasureSpec, synchronous: bool, gate: Gate, report: Report, clock: Clock
    ) -> None:
        self._strategy, self._settings, self._synchronous = strategy, settings, synchronous
        self._gate, self._report, self._clock = gate, report, clock
        self._slot_start_s = 0.0
        self._first_block = 0  # of this slot
        self.phase = LoopPhase("measure", self._start, self._decide, settings.max_s)

    def _start(self, warmup: BlockSeries | None) -> int:
        steps = choose_steps_per_block(warmup, self._settings.block_s, self._strategy.spec.device)
        steps = int(self._strategy.broadcast(float(steps)))
        self._begin_slot(self._gate.wait(), 0)
        return steps

    def _begin_slot(self, turn: Turn, blocks: int) -> None:
        self.phase.round, self.phase.discarded_blocks = turn.round, DISCARDED_BLOCKS if turn.slot_s else 0
        self._slot_start_s, self._first_block = self._clock(), blocks

    def _decide(self, series: BlockSeries) -> bool:
        turn = self._gate.turn
        if turn.slot_s is None:  # granted before the first slot: other runs have used up the time
            return True
        self._report(series)
        is_over = self._is_slot_over(series, turn.slot_s)
        if self._synchronous:
            is_over = self._strategy.broadcast(float(is_over)) > 0
        if not is_over:
            return False
        slot_s = series.seconds[self._first_block :]
        turn = self._gate.wait(series.steps * len(slot_s), sum(slot_s))
        self._begin_slot(turn, len(series.seconds))
        return turn.slot_s is None

    def _is_slot_over(self, series: BlockSeries, slot_s: float) -> bool:
        elapsed_s = self._clock() - self._slot_start_s
        steps = series.steps * (len(series.seconds) - self._first_block)
        return elapsed_s >= slot_s and (steps >= MIN_SLOT_STEPS or elapsed_s >= MAX_SLOTS * slot_s)
