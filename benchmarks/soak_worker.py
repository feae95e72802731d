"""The strategy of the soak: simulated, and a third of its runs fail, each in a way that follows from its run_id."""

from __future__ import annotations

import os
import random

from scalebench.core.spec import RunSpec
from scalebench.strategies.simulated import Simulated

FAULT_SHARE = 1 / 3
STATUS_BY_FAULT = {"none": "ok", "raise": "failed", "exit": "failed", "kill": "failed", "stop": "timeout"}
# A stopped rank takes measure.hang_s, and so is rare.
FAULTS = ["raise"] * 5 + ["exit"] * 4 + ["kill"] * 4 + ["stop"]
PHASES = ("setup", "step", "close")


def draw_fault(run_id: str) -> tuple[str, str]:
    """Return the fault of a run and its phase, as options of Simulated name them."""
    generator = random.Random(run_id)
    if generator.random() >= FAULT_SHARE:
        return "none", "step"
    return generator.choice(FAULTS), generator.choice(PHASES)


def expect_status(fault: str, phase: str) -> str:
    """Return the status that this fault gives. All figures are on disk before `close`: what fails then loses none."""
    return "ok" if phase == "close" else STATUS_BY_FAULT[fault]


class Unreliable(Simulated):
    """Fails or not; the next start of the same run may end differently, as it does with real faults."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        fault, phase = draw_fault(os.environ["SCALEBENCH_RUN_ID"])
        self.options.fault, self.options.fault_phase = fault, phase
