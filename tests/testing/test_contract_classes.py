"""A contract as one test: each question that fails is named, and fails it."""

import re
import subprocess
import sys

CONTRACTS = """
from tests.strategies.contracts.contract_classes import contract, contract_classes

def why_incomparable(self, group):
    raise AssertionError("asked")

sound = contract("simulated", gpus=1)
faulty = contract("simulated", gpus=1, name="faulty", why_incomparable=why_incomparable)
globals().update(contract_classes([sound, faulty]))
"""
LIMIT_S = 300


def test_questions_that_fail_are_named(tmp_path):
    (tmp_path / "test_two.py").write_text(CONTRACTS)
    switches = ["--disable-plugin-autoload", "-p", "scalebench.testing.pytest_plugin", "-p", "no:cacheprovider", "-q"]
    command = [sys.executable, "-m", "pytest", *switches, "-W", "ignore", "-o", "markers=real", "test_two.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = re.findall(r"^SUBFAILED\[(\w+)\] test_two\.py::(\w+)::test_contract", done.stdout, re.MULTILINE)
    questions = ("evaluation", "losses_equal_the_baselines", "one_optimizer_step_per_batch")
    assert failed == [(question, "TestSimulatedFaulty1") for question in questions], done.stdout
