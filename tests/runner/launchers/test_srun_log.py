"""The log of srun: the reason of a failure, the outcome of a step, and the tasks that ended.

golden/logs/srun.txt has logs, and before each its reason, its outcome, and whether memory counts after the step's end.
"""

import re

import pytest

from scalebench.runner.launchers import srun
from tests.conftest import ROOT

LOGS = re.findall(
    r"== (.*)\n== (.*)\n== (.*)\n((?:(?!== ).*\n)+)", (ROOT / "tests/golden/logs/srun.txt").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    ("reason", "outcome", "memory", "text"), [*LOGS, (f"srun: {'x' * 300}", "None", "None", "x" * 999)]
)
def test_the_log_of_a_step_gives_its_reason_and_outcome(reason, outcome, memory, text):
    assert str(srun.find_srun_failure(text)) == reason
    found = srun.step_outcome(text)
    assert (": ".join(found) if found else "None") == outcome
    assert (srun.memory_outcome(text) is not None) == (memory == "memory")
