"""What the plugin for pytest gives an author's tests, in a pytest of its own."""

import subprocess
import sys

import pytest

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
LIMIT_S = 120


def collected(folder, *switches):
    """Names of the tests that a pytest finds there, with nothing but the plugin."""
    plugin = ["--disable-plugin-autoload", "-p", "scalebench.testing.pytest_plugin", "-p", "no:cacheprovider", "-q"]
    strict = ["--strict-markers", "-W", "error", "--collect-only"]
    command = [sys.executable, "-m", "pytest", *plugin, *strict, *switches]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_contracts_need_no_conftest(tmp_path):
    """They are found, and marked, so that whoever has no time can leave them out."""
    (tmp_path / "test_mine.py").write_text(AUTHORS)
    assert collected(tmp_path, "-m", "not contract and not faults") == ["test_of_my_own"]
    strict = collected(tmp_path, "-m", "contract")
    assert {"test_losses_equal_the_baselines", "test_yaml_has_a_description"} <= set(strict)
    assert "test_a_failing_rank_ends_the_run[kill]" in collected(tmp_path, "-m", "faults")


def test_it_costs_other_projects_nothing():
    """Every pytest of the environment loads it."""
    code = "import sys, scalebench.testing.pytest_plugin; print(*(m for m in sys.modules if m.partition('.')[0] in "
    code += "('hydra', 'numpy', 'omegaconf', 'pandas', 'psutil') or m.startswith('scalebench')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert sorted(done.stdout.split()) == ["scalebench", "scalebench.testing", "scalebench.testing.pytest_plugin"]


@pytest.mark.parametrize(
    ("argument", "counts"), [("/home/me/scalebench/.venv", False), ("scalebench.runner.worker", True)]
)
def test_a_process_that_is_left_runs_a_module_of_ours(argument, counts):
    """A clone is called scalebench, and Python's own helpers have its path in their commands."""
    with subprocess.Popen([sys.executable, "-c", "input()", argument], stdin=subprocess.PIPE) as child:
        assert [process.pid for process in list_own_children()] == [child.pid] * counts
        child.communicate(b"\n", timeout=LIMIT_S)
