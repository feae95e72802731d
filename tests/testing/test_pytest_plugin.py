"""What the plugin for pytest gives the tests of an author, in a pytest of its own."""

import subprocess
import sys

from scalebench.testing.fault_contract import list_own_children

AUTHORS = """
import pytest
from scalebench.testing import FaultContract, StrategyContract

class TestMine(StrategyContract):
    strategy = "simulated"

class TestMineFaults(FaultContract):
    strategy = "simulated"

def test_of_my_own():
    pass
"""
LIMIT_S = 300
ALONE = ["--disable-plugin-autoload", "-p", "scalebench.testing.pytest_plugin", "-p", "no:cacheprovider", "-q"]


def run_pytest(folder, *switches):
    """Return the exit status and the output of a pytest with nothing but the plugin."""
    command = [sys.executable, "-m", "pytest", *ALONE, *switches]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout + done.stderr


def collected(folder, *switches):
    status, output = run_pytest(folder, "--strict-markers", "-W", "error", "--collect-only", *switches)
    assert status == 0, output
    return [line.rpartition("::")[2] for line in output.splitlines() if "::" in line]


def test_contracts_need_no_conftest(tmp_path):
    """They are found, and marked, so that whoever has no time can leave them out."""
    (tmp_path / "test_mine.py").write_text(AUTHORS)
    own, fault = "test_of_my_own", "test_a_failing_rank_ends_the_run[kill]"
    strict = {"test_losses_equal_the_baselines", "test_yaml_has_a_description"}
    without_contract = collected(tmp_path, "-m", "not contract")
    assert {own, fault} <= set(without_contract) and not strict & set(without_contract)
    without_faults = collected(tmp_path, "-m", "not faults")
    assert {own, *strict} <= set(without_faults) and fault not in without_faults


def test_it_costs_other_projects_nothing():
    """Every pytest of the environment loads it."""
    code = "import sys, scalebench.testing.pytest_plugin; print(*(m for m in sys.modules if m.partition('.')[0] in "
    code += "('hydra', 'numpy', 'omegaconf', 'pandas', 'psutil') or m.startswith('scalebench')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert sorted(done.stdout.split()) == ["scalebench", "scalebench.testing", "scalebench.testing.pytest_plugin"]


def test_a_process_that_is_left_runs_a_module_of_ours():
    """A clone is called scalebench, and Python's own helpers have its path in their commands."""
    for argument, counts in (("/home/me/scalebench/.venv", False), ("scalebench.runner.worker", True)):
        with subprocess.Popen([sys.executable, "-c", "input()", argument], stdin=subprocess.PIPE) as child:
            assert [process.pid for process in list_own_children()] == [child.pid] * counts
            child.communicate(b"\n", timeout=LIMIT_S)
