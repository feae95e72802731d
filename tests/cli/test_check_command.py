"""`scalebench check`: its arguments, its tests and its exit status."""

from pathlib import Path

import pytest

from scalebench.__main__ import main
from scalebench.cli.commands import check
from scalebench.cli.commands.check import CheckSubject, list_contracts, read_subject
from scalebench.core.errors import InputError
from tests.builders.plugins import dists as dists
from tests.builders.plugins import strategy_yaml

OWN = ("model.torch=mine:build", "seed=1")


def test_words():
    for words, subject in (
        ("ddp_gloo", CheckSubject("strategy", "ddp_gloo", (), False)),
        ("ddp_gloo gpus=3 --faults", CheckSubject("strategy", "ddp_gloo", ("gpus=3",), True)),
        ("resnet50", CheckSubject("model", "resnet50", (), False)),
        ("materials", CheckSubject("dataset", "materials", (), False)),
        ("model=custom model.torch=mine:build seed=1", CheckSubject("model", "custom", OWN, False)),
        ("strategy=simulated model=mlp", CheckSubject("strategy", "simulated", ("model=mlp",), False)),
    ):
        names = [word for word in words.split() if word != "--faults"]
        assert read_subject(names, "--faults" in words) == subject


def test_the_subject_is_read_from_arguments():
    (case,) = list_contracts(CheckSubject("strategy", "bare_torch", (), False))
    assert case.settings == {"strategy": "bare_torch", "gpus": 1, "overrides": ()}
    case, faults = list_contracts(CheckSubject("strategy", "parameter_server", ("gpus=3", "seed=1"), True))
    assert case.settings == {"strategy": "parameter_server", "gpus": 3, "overrides": ("seed=1",)}
    assert (faults.settings["measuring"], faults.settings["rank"]) == (1, 0)
    (_, faults) = list_contracts(CheckSubject("strategy", "ddp_gloo", (), True))
    assert (faults.settings["measuring"], faults.settings["rank"]) == (2, 1)
    with pytest.raises(InputError, match="gpus=0"):
        list_contracts(CheckSubject("strategy", "simulated", ("gpus=0",), False))


def test_a_strategy_that_holds(capsys, monkeypatch):
    """Whatever pytest is told elsewhere; in a folder whose tests are none of its business."""
    Path("test_other.py").write_text("raise RuntimeError('collected')")
    Path("conftest.py").write_text("raise RuntimeError('read')")
    Path("pytest.ini").write_text("[pytest]\naddopts = --nonsense")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nonsense")
    assert main(["check", "simulated"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == "losses equal the baselines holds".split() for line in lines)
    assert lines[-1] == "simulated: 16 hold, 0 do not hold, 5 skipped"
    assert {path.name for path in Path().iterdir()} == {"test_other.py", "conftest.py", "pytest.ini"}


@pytest.mark.slow
def test_a_plugin_that_cannot_be_loaded(dists, capsys):
    dists.strategy(code="import frobnicate\n", yaml=strategy_yaml("mine"))
    assert main(["check", "mine"]) == 1
    out = capsys.readouterr().out
    assert "No module named 'frobnicate'" in out
    assert "Traceback" not in out and out.splitlines()[-1].startswith("--traceback prints pytest's report")
    assert main(["check", "mine", "--traceback"]) == 1
    out = capsys.readouterr().out
    assert out.count("exit statuses") == 1, "once, though it fails whatever is asked of it"


@pytest.mark.slow
def test_nothing_could_be_run(dists, capsys):
    dists.strategy(yaml=strategy_yaml("mine", requires=["frobnicate"]))
    assert main(["check", "mine"]) == 1
    out = capsys.readouterr().out
    assert "skipped" in out and "frobnicate" in out and " 0 do not hold" in out


def test_pytest_is_named_where_it_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    assert main(["check", "simulated"]) == 2
    assert capsys.readouterr().err == "scalebench: check needs pytest: pip install 'scalebench-train[testing]'\n"
