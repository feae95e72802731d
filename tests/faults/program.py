"""The program and its ranks with a fault: `python -m tests.faults.program` is scalebench whose ranks run this module.

The environment variable FAULT_VARIABLE says what a rank does to itself, or where it waits for a fault from outside.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from scalebench.measure.progress import ProgressFile
from scalebench.measure.session import Session
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.simulated import raise_fault

MODULE = "tests.faults.program"
FAULT_VARIABLE = "SCALEBENCH_TEST_FAULT"
UPDATES_BEFORE_FAULT = 3  # blocks of the phase that are done before the fault
PHASE_NAMES = {
    "setup": "setup", "warm-up": "warmup", "measuring": "measure", "awake": "measure", "evaluating": "evaluate",
    "probes": "probes", "end": "close",
}  # fmt: skip
HOLD_LIMIT_S = 300.0


@dataclass(frozen=True)
class RankFault:
    """What goes wrong in one rank of one run."""

    name: str | None  # None: it comes from outside, and the rank waits for it
    phase: str  # by the rank's own name
    rank: int
    run: str  # name of the run's folder
    scratch: str  # a folder by which the rank and the harness communicate, which no fault concerns

    def to_variable(self):
        return json.dumps(asdict(self))

    @property
    def reached(self):
        """The file that exists once the rank is where the fault happens."""
        return Path(self.scratch) / "reached"

    @property
    def released(self):
        """The file that exists once a waiting rank may go on."""
        return Path(self.scratch) / "released"


class FaultInjector:
    """Counts what a rank reports of its phases, and fails or waits at the right one."""

    def __init__(self, fault):
        self._fault, self._phase, self._count = fault, "", 0

    def on_phase(self, name):
        self._count = self._count + 1 if name == self._phase else 1
        self._phase = name
        # The first report of setup comes before the strategy exists, and the second before it joins its group.
        if name == self._fault.phase and name not in ("warmup", "measure") and self._count == 1 + (name == "setup"):
            self._act()

    def on_update(self):
        self._count += 1
        # A turn, too, begins with a report of its phase, so that no update need be the one with this very number.
        is_late = self._count > UPDATES_BEFORE_FAULT and not self._fault.reached.exists()
        if is_late and self._phase == self._fault.phase in ("warmup", "measure"):
            self._act()

    def _act(self):
        self._fault.reached.touch()
        if self._fault.name is None:
            deadline_s = time.monotonic() + HOLD_LIMIT_S
            while not self._fault.released.exists() and time.monotonic() < deadline_s:
                time.sleep(0.02)
        elif self._fault.name == "print":
            line = b"x" * ((1 << 20) - 1) + b"\n"
            for _ in range(1024):
                sys.stdout.buffer.write(line)
        elif self._fault.name == "descriptors":
            used = len(os.listdir("/proc/self/fd")) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (used, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        elif self._fault.name == "port":
            self._listener = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        else:
            raise_fault(self._fault.name)


def install_injector(fault):
    """Have every report of progress of this process pass through an injector."""
    injector, enter, update = FaultInjector(fault), ProgressFile.enter_phase, ProgressFile.update

    def enter_phase(self, name, limit_s=None):
        enter(self, name, limit_s)
        injector.on_phase(name)

    def update_with_fault(self, *values, **named):
        update(self, *values, **named)
        injector.on_update()

    ProgressFile.enter_phase, ProgressFile.update = enter_phase, update_with_fault


def avoid_broken_sleep():
    """Sleep by select: with libfaketime 0.9.10 an absolute clock_nanosleep fails, which is what Python's sleep uses."""
    if "FAKETIME_TIMESTAMP_FILE" in os.environ:
        time.sleep = lambda seconds: select.select([], [], [], seconds) and None


def run_worker(folder):
    """Run one rank, as scalebench.runner.worker does, with the fault where it is that of this rank."""
    fault = RankFault(**json.loads(os.environ[FAULT_VARIABLE]))
    if (int(os.environ["RANK"]), folder.name) == (fault.rank, fault.run):
        install_injector(fault)
    return run_rank(folder, lambda *parts: Session(*parts).run())


def run_program(arguments):
    """Run scalebench with this module as that of its ranks."""
    from scalebench import __main__ as scalebench
    from scalebench.runner import parent
    from scalebench.sweeps import cohort

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and a background job of a shell SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parent.run_spec = partial(parent.run_spec, module=MODULE)
    cohort.Cohort = partial(cohort.Cohort, module=MODULE)
    return scalebench.main(arguments)


if __name__ == "__main__":
    avoid_broken_sleep()
    if "RANK" in os.environ:
        exit_without_cleanup(run_worker(Path(sys.argv[1])))
    sys.exit(run_program(sys.argv[1:]))
