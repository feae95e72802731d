"""The Hydra entry point: arguments in any order, and one line for each composition error."""

import pytest

from scalebench.cli import hydra_app
from scalebench.config import compose


def test_switches_may_be_anywhere():
    for words, switches, overrides in (
        (["gpus=1", "seed=2"], [], ["gpus=1", "seed=2"]),
        (["gpus=1", "--multirun", "seed=2", "-m"], ["--multirun", "-m"], ["gpus=1", "seed=2"]),
        (["--cfg", "job", "gpus=1", "-p", "train"], ["--cfg", "job", "-p", "train"], ["gpus=1"]),
        (["~gpus", "+a=-1"], [], ["~gpus", "+a=-1"]),
        ([], [], []),
    ):
        options = hydra_app.read_arguments(words)
        assert (options.switches, options.overrides) == (switches, overrides)
        assert (options.multirun, options.cfg) == ("-m" in words, "job" if "job" in words else None)


def break_(*_):
    raise LookupError("broken\nin two lines")


def test_an_unexpected_error_is_one_line_too(monkeypatch, capsys):
    monkeypatch.setattr(compose, "register_with_hydra", break_)
    assert hydra_app.main(["gpus=1"]) == 2
    line = "scalebench: the overrides cannot be composed: LookupError: broken in two lines (SCALEBENCH_TRACEBACK=1 "
    assert capsys.readouterr().err.startswith(line)
    monkeypatch.setenv("SCALEBENCH_TRACEBACK", "1")
    with pytest.raises(LookupError):
        hydra_app.main(["gpus=1"])


@pytest.mark.parametrize("word", ["+hydra.callbacks.x={_target_: y}", "hydra.job.chdir=true", "hydra.sweep.subdir=a"])
def test_what_hydra_would_do_in_a_run_and_we_do_not_is_refused(word, capsys):
    assert hydra_app.main(["strategy=simulated", word, "dry_run=true"]) == 2
    key = word.partition("=")[0].lstrip("+").removesuffix(".x").removesuffix(".A")
    assert capsys.readouterr().err == f"scalebench: {key} has no effect on runs of scalebench; leave it out\n"
