"""`scalebench compare --history`: the saved sessions of a machine over time, and the first that differs."""

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from scalebench.__main__ import main
from scalebench.analysis.comparison.drift import ConfigurationHistory, SessionLevel
from scalebench.core.machine.machine import MachineClass
from scalebench.core.stats.estimates import Estimate
from scalebench.report.comparison.history_text import MachineHistory, make_history_charts
from tests.builders.comparisons import write_folder


@pytest.fixture
def ten_sessions(tmp_path):
    """Save ten sessions of simulated runs: from the seventh on they are 8 % slower on one device, but not on two."""
    random = np.random.default_rng(0)
    for day in range(1, 11):
        for gpus, step in ((1, 0.92), (2, 1.0)):
            level = 0.1 / (step if day >= 7 else 1.0) * np.exp(random.normal(0, 0.01))
            seconds = (level * np.exp(random.normal(0, 0.01, 3))).tolist()
            write_folder(f"day{day}", seconds, "simulated", gpus, side="a", day=day)
        assert main(["compare", f"day{day}", "--save", "weekly"]) == 0


def test_the_seventh_of_ten_sessions_is_marked(ten_sessions, capsys):
    capsys.readouterr()
    assert main(["compare", "--history"]) == 0, "no gate without a threshold"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("baseline 'weekly' on ") and "verdict" not in lines[-1]
    marked = [line.split()[0] for line in lines if line.endswith("<- first that differs")]
    assert marked == ["7"] and sum("samples/s" in line for line in lines) == 20
    assert any(line.startswith("simulated gpus=1: slower since session 7 (2026-01-07 00:00): 0.9") for line in lines)
    assert "simulated gpus=2: no change resolved in 10 sessions" in lines
    assert main(["compare", "--history", "weekly", "--threshold", "3%", "--format", "json", "--figures", "f"]) == 3
    (machine,) = json.loads(capsys.readouterr().out)["machines"]
    changes = [each["change"] for each in machine["configurations"]]
    assert changes[0]["first_session"] == 7 and changes[1] is None
    assert sorted(path.name for path in Path("f").iterdir()) == ["history-1.png", "history-1.svg"]
    assert main(["compare", "--history", "--threshold", "20%"]) == 0


def test_runs_beside_the_name_are_the_newest_session(ten_sessions, capsys):
    write_folder("today", [0.15] * 3, "simulated", 2, side="a", day=20)
    capsys.readouterr()
    assert main(["compare", "today", "--history", "weekly"]) == 0
    out = capsys.readouterr().out
    assert "simulated gpus=2: slower since session 11 (2026-01-20" in out
    assert len(list(Path(".scalebench").rglob("result.json"))) == 60, "nothing was saved"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--history"], "--history NAME: saved baselines in .scalebench/baselines: none"),
        (["--history", "weekly"], "no baseline 'weekly' in .scalebench/baselines; saved names: none"),
        (["--history", "a/b"], "baseline name 'a/b': 1 to 64 letters"),
        (["--history", "--by", "gpus"], "--by and --history do not go together"),
        (["--history", "--format", "junit"], "--history knows --format text and json"),
    ],
)
def test_a_mistake_is_one_line(words, line, capsys):
    assert main(["compare", *words]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1


def test_few_sessions_are_too_little_data_for_a_gate(capsys):
    write_folder("a", [0.1] * 3)
    assert main(["compare", "a", "--save", "weekly"]) == 0
    assert main(["compare", "--history", "--threshold", "3%"]) == 6
    assert "no verdict from 1 session: 4 are needed" in capsys.readouterr().out


def test_charts_of_several_machines_name_theirs():
    session = SessionLevel(datetime(2026, 1, 1), Estimate(100.0), [100.0], "")
    configuration = ConfigurationHistory({"strategy": "ddp"}, [session], None)
    kinds = [MachineClass(name, 8, 64, {}) for name in ("Xeon", "EPYC")]
    histories = [MachineHistory(kind, [configuration]) for kind in kinds]
    titles = [chart.title for chart in make_history_charts("weekly", histories)]
    assert titles == [f"Sessions of baseline weekly on {kind}" for kind in kinds]
    assert [chart.title for chart in make_history_charts("weekly", histories[:1])] == ["Sessions of baseline weekly"]
