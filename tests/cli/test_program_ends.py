"""How the program ends when something outside its runs fails: signals, a full disk, a lost output, scarce memory."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf.errors import InterpolationResolutionError

from scalebench import __main__ as program
from scalebench.cli import hydra_app
from scalebench.core.process import MAX_ERROR_CHARACTERS
from scalebench.core.result import read_result
from scalebench.core.sweep_file import read_sweep
from scalebench.runner import parent
from scalebench.sweeps.console import Console
from tests.builders import sweeps
from tests.builders.runs import find_run_processes, wait_until

WORDS = "strategy=simulated hardware=cpu gpus=2 dataset.size=1000 measure=quick measure.probes=false".split()
WORDS += (
    "measure.monitor=false measure.min_s=0 measure.target=0.5 measure.warmup_max_s=0.1 measure.block_s=0.004".split()
)
LONG = [*WORDS, "measure.min_s=3", "measure.max_s=3"]
PROGRAM = [sys.executable, "-m", "scalebench"]


def test_a_closed_terminal_ends_a_sweep_with_its_tables_and_nohup_does_not(tmp_path):
    words = [*WORDS, "measure.order=given", "measure.repeats=2", "sweep.report=false"]
    hanging = [*PROGRAM, "--multirun", *words, "strategy.options.fault=hang", f"hydra.sweep.dir={tmp_path}/s"]
    with subprocess.Popen(hanging, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(find_run_processes(tmp_path / "s/0")) >= 1, 120.0)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # of the kernel and of the shell
        assert process.wait(timeout=120) == 1
    sweep = read_sweep(tmp_path / "s")
    assert sweep.stopped and not sweep.ended
    assert "cancelled" in (tmp_path / "s/results.csv").read_text()
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "", *PROGRAM, *LONG, f"hydra.run.dir={tmp_path}/run"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: find_run_processes(tmp_path / "run"), 120.0)
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("output", ["full", "pipe", "none"])
def test_an_output_that_cannot_be_written_ends_no_run(tmp_path, output):
    command, reader = [*PROGRAM, *WORDS, "gpus=1", f"hydra.run.dir={tmp_path}/run"], subprocess.DEVNULL
    if output == "none":
        command = ["sh", "-c", 'exec "$@" >&-', "", *command]
    elif output == "full":
        reader = os.open("/dev/full", os.O_WRONLY)
    else:
        end, reader = os.pipe()
        os.close(end)
    ended = subprocess.run(command, stdout=reader, stderr=subprocess.PIPE, text=True, timeout=120)
    if output != "none":
        os.close(reader)
        assert ended.stderr.startswith("scalebench: standard output cannot be written: ")
    assert (ended.returncode, ended.stderr.count("\n")) == (0, int(output != "none"))
    assert read_result(tmp_path / "run/result.json").status == "ok"


@pytest.mark.parametrize("words", [["show", "results"], ["list", "strategies", "ddp"]])
def test_a_command_whose_reader_has_read_enough_is_silent(words, tmp_path):
    sweeps.sweep(tmp_path / "results", ("bare_torch", "ddp_gloo"), (1, 2))
    end, closed = os.pipe()
    os.close(end)
    ended = subprocess.run([*PROGRAM, *words], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(closed)
    assert ended.stderr == ""


def test_a_command_whose_output_cannot_be_written_is_one_line():
    with open("/dev/full", "wb") as full:
        words = [*PROGRAM, "list", "strategies"]
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (1, "scalebench: standard output: No space left on device\n")


def test_an_output_without_our_signs_replaces_them(tmp_path):
    """As batch systems, old images and cron set it: no line of a table may end a sweep."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    sweep = ["--multirun", *WORDS, "gpus=1", "measure.repeats=1", "sweep.report=false"]
    sweep.append(f"hydra.sweep.dir={tmp_path}/s")
    for words in (sweep, ["show", f"{tmp_path}/s"]):
        ended = subprocess.run([*PROGRAM, *words], env=environment, capture_output=True, timeout=240)
        assert (ended.returncode, ended.stderr) == (0, b""), ended.stderr[-2000:]
        assert ended.stdout.isascii() and b"?" in ended.stdout
    assert "simulated" in (tmp_path / "s/results.csv").read_text(encoding="utf-8")


def test_a_result_that_cannot_be_written_is_printed(monkeypatch, capsys):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parent, "write_result", refuse)
    assert hydra_app.main([*WORDS, "hydra.run.dir=run"]) == 1
    out, err = capsys.readouterr()
    assert "/run cannot be written: No space left on device; here is the record of its run" in err
    Path("saved").mkdir()
    Path("saved/result.json").write_text(next(line for line in out.splitlines() if line.startswith("{")))
    assert read_result(Path("saved/result.json")).ranks[0].block_s


@pytest.mark.parametrize(
    "error", [InterpolationResolutionError("${seed}"), OSError(28, "full"), KeyError("defect")], ids=type
)
def test_an_error_after_a_run_is_not_the_status_of_a_refusal(error, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(Console, "print_table", fail)
    if isinstance(error, KeyError):
        with pytest.raises(KeyError):  # with its traceback, and so with 1
            hydra_app.main([*WORDS, "hydra.run.dir=run"])
    else:
        assert hydra_app.main([*WORDS, "hydra.run.dir=run"]) == 1
        err = capsys.readouterr().err
        assert err.splitlines()[-1].startswith("scalebench: ") and "Traceback" not in err
    assert read_result(Path("run/result.json")).status == "ok"


def test_a_limit_of_memory_is_named(tmp_path):
    """The ranks need less than the table does."""
    limit = 310_000 << 10
    ended = subprocess.run(
        [*PROGRAM, *WORDS, "measure.monitor=true", f"hydra.run.dir={tmp_path}/run"], capture_output=True, text=True,
        timeout=120, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "no table: " in ended.stderr and "; ulimit -v is 310,000 KiB; " in ended.stderr
    result = read_result(tmp_path / "run/result.json")
    assert result.status == "ok" and "ulimit -v is 310,000 KiB" in (result.monitor.reason or "")


def test_a_rerun_from_a_pickle_is_refused(capsys):
    Path("config.pickle").write_bytes(b"cos\nmkdir\n(S'made'\ntR.")
    assert program.main([*WORDS, "--experimental-rerun", "config.pickle"]) == 2
    assert not Path("made").exists()
    assert capsys.readouterr().err.startswith("scalebench: --experimental-rerun is refused: ")


def test_a_very_long_message_loses_its_middle(capsys):
    for arguments in ([f"{'x' * 100_000}=1"], ["x" * 100_000]):
        assert program.main(arguments) == 2
        err = capsys.readouterr().err
        assert len(err) < MAX_ERROR_CHARACTERS + 100 and "x [...] " in err and err.count("\n") == 1
