"""The command line and its exit statuses, in this process and as a program."""

import os
import sys
import types
from pathlib import Path

import pytest

import scalebench
from scalebench import __main__ as program
from tests.builders.configs import SHORT_WORDS

SHORT = ["hardware=cpu", *SHORT_WORDS]


@pytest.fixture
def call(capsys):
    """The program with these words: its status, and the lines of its output and of its errors."""

    def called(*words):
        status = program.main(list(words))
        out, err = capsys.readouterr()
        return status, out.splitlines(), err.splitlines()

    return called


def test_help_names_every_command_and_the_way_in(call):
    for words in (["--help"], ["-h"], ["gpus=2", "--help"]):
        status, out, err = call(*words)
        assert (status, err) == (0, [])
        assert set(program.COMMANDS) <= {line.split()[0] for line in out if line.strip()}
        assert "with several values (gpus=1,2) a sweep" in "\n".join(out)
    status, out, err = call()
    assert (status, err) == (0, []) and len(out) <= 12 and "scalebench script=train.py gpus=1,2" in "\n".join(out)
    assert call("--version") == (0, [f"scalebench {scalebench.__version__}"], [])
    assert "gpus: 3" in call("--cfg", "job", "gpus=3")[1]


@pytest.mark.parametrize("command", program.COMMANDS)
def test_each_command_has_a_help_of_its_own(call, command):
    status, out, err = call(command, "--help")
    assert (status, err) == (0, [])
    assert out[0].startswith(f"usage: scalebench {command} [-h]") and "-h, --help" in "\n".join(out)


@pytest.mark.parametrize(("words", "runs"), [
    (["gpus=1"], 1),
    (["gpus=1,2"], 2),
    (["gpus=1,2", "--multirun", "seed=0,1"], 4),
    (["sweep=gpus"], 2),
    (["sweep=gpus", "hardware.gpus_per_node=6", "hardware.cpus_per_node=6"], 4),
    (["--multirun", "gpus=1,all"], 2),
    (["gpus=all"], 1),
    (["sweep=gpus", "baseline=none", "gpus=2,4"], 2),
    (["hardware=dgx1_p100", "gpus=8"], 1),
])  # fmt: skip
def test_a_dry_run_lists_the_runs_and_leaves_nothing(call, words, runs):
    status, out, err = call("hardware=cpu", "strategy=simulated", "measure.repeats=1", *words, "dry_run=true")
    assert (status, err) == (int("unsupported: " in out[0]), [])
    assert len(out) == runs + 1 and out[-1].endswith("nothing was started")
    assert os.listdir() == []


@pytest.mark.parametrize(("arguments", "in_terminal", "announced"), [
    (["gpus=1"], True, True),
    (["--multirun", "gpus=1,2"], True, True),
    (["gpus=1"], False, False),
    (["--cfg", "job"], True, False),
])  # fmt: skip
def test_a_terminal_has_a_line_before_anything_is_imported(
    arguments, in_terminal, announced,
    monkeypatch, capsys
):  # fmt: skip
    printed = []
    stand_in = types.ModuleType("hydra_app")
    stand_in.main = lambda words: printed.append(capsys.readouterr().out) or 0
    monkeypatch.setattr("scalebench.cli.hydra_app", stand_in, raising=False)  # not imported where this test is alone
    monkeypatch.setattr(sys.stdout, "isatty", lambda: in_terminal)
    assert program.main(arguments) == 0
    assert [line.endswith(": preparing the runs\n") for line in printed] == [announced]


def test_the_last_word_decides_whether_it_is_dry(call):
    for dry in ("++dry_run=yes", "dry_run='true'", "dry_run=1"):
        assert call("gpus=1", dry)[1][-1].endswith("nothing was started")
    assert os.listdir() == []
    assert call(*SHORT, "gpus=1", "dry_run=true", "dry_run=false", "hydra.run.dir=here")[0] == 0
    assert Path("here/result.json").exists()
    assert call(*SHORT, "dry_run=false", "dry_run=true")[1][-1].endswith("nothing was started")


def test_a_run_leaves_its_files_and_a_second_one_is_refused(call, tmp_path):
    folder = tmp_path / "with space"
    words = [*SHORT, "gpus=2", f"hydra.run.dir='{folder}'"]
    status, out, err = call(*words)
    assert (status, err) == (0, [])
    assert "simulated" in "\n".join(out) and f"results: {folder}" in out
    names = ".hydra rank0.json rank0.log rank1.json rank1.log result.json spec.json".split()
    assert sorted(path.name for path in folder.iterdir()) == names
    assert scalebench.load(folder).status.tolist() == ["ok"]
    before = (folder / "result.json").read_bytes()

    status, out, err = call(*words)
    line = f"scalebench: {folder} already holds a result.json; choose another folder or remove it"
    assert (status, out, err) == (2, [], [line])
    assert (folder / "result.json").read_bytes() == before
    _, out, _ = call(*words, "resume=true", "dry_run=true")
    assert out == ["[1/1] simulated gpus=2: done before, kept", "1 run; nothing was started"]
    assert call(*words, "resume=true")[0] == 0
    assert (folder / "result.json").read_bytes() == before


@pytest.mark.parametrize(("strict", "expected"), [("false", 0), ("true", 1)])
def test_an_unsupported_run_of_a_sweep_is_a_row_unless_strict(call, strict, expected):
    sweep = ("--multirun", "strategy=simulated,ddp_nccl", "baseline=none", "measure.repeats=1", f"strict={strict}")
    status, out, _ = call(*SHORT, *sweep, "sweep.report=false", "gpus=2")
    assert status == expected
    assert any("ddp_nccl 2 devices  unsupported: " in line for line in out)


@pytest.mark.parametrize(
    "key", ["hydra.run.dir=/proc/x", "hydra.run.dir=/dev/null/x", "--multirun gpus=1,2 hydra.sweep.dir=/proc/x"]
)
def test_a_folder_that_cannot_be_made(call, key):
    status, _, err = call(*SHORT, *key.split())
    assert (status, len(err)) == (2, 1)
    assert err[0].startswith(f"scalebench: {key.rpartition('=')[2]}")
    assert "; choose another " in err[0]
