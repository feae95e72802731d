"""Terminal output while runs go on, and below a sweep."""

import io
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from scalebench.core.probe_record import CollectiveRecord, ProbeRecord, TransferRecord
from scalebench.core.result import Phases, write_result
from scalebench.core.sweep_file import PlannedRun, new_sweep_record
from scalebench.measure.progress import RankProgress
from scalebench.runner.jobs.job import QueueState
from scalebench.sweeps import console as consoles
from scalebench.sweeps.cohort import CohortProgress
from scalebench.sweeps.plan import SweepRun
from tests.builders import sweeps
from tests.builders.runs import rank, record, simulated_spec
from tests.builders.sweeps import training_run


def terminal_console():
    console = consoles.Console()
    console._rich = RichConsole(file=io.StringIO(), force_terminal=True, width=150, highlight=False, color_system=None)
    return console


def read_output(console):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.rich.file.getvalue())


def test_lines_are_neither_broken_nor_markup_and_a_pause_is_one(capsys):
    line = "[bold]" + "a b " * 100 + "[/nothing]"
    consoles.Console().print_line(line)
    consoles.Console().print_error("a\nb   [red]c")
    assert capsys.readouterr() == (line + "\n", "scalebench: a b [red]c\n")
    with consoles.Console().show_line("pause", "pause ..."):
        pass
    assert capsys.readouterr().out == "pause ...\n"
    console = terminal_console()
    with console.show_line("[pause]", "pause ..."):
        console.rich._live_stack[0].refresh()
    assert "[pause]" in read_output(console) and capsys.readouterr().out == ""


def measuring(steps, samples_per_s, elapsed_s, **facts):
    return RankProgress(0, 1, "measure", 0.0, steps, samples_per_s, elapsed_s, 30.0, **facts)


def test_progress_is_described_by_rank_0():
    """14 s after the last report of the ranks."""
    for ranks, line in (
        ([], "starting"),
        ([RankProgress(0, 1, "setup", 0.0)], "setup"),
        ([RankProgress(1, 1, "measure", 0.0), RankProgress(0, 1, "setup", 0.0)], "setup"),
        (
            [measuring(9, 1000.4, 10.0), RankProgress(1, 1, "measure", 0.0, 9, 1.0, 1.0)],
            "measure, 2,001 samples/s, at most 6 s left",
        ),
        ([measuring(9, 10.0, 31.0)], "measure, 10 samples/s"),
        ([RankProgress(0, 1, "warmup", 0.0)], "warmup, first step, 14 s so far"),
        (
            [RankProgress(0, 1, "warmup", 0.0, 2, 2.67, 24.0, 20.0, step_s=12.3)],
            "warmup, 2.7 samples/s, a step takes 12 s",
        ),
        # Of 30 s of measuring 6 have passed at the report and 14 since then.
        ([measuring(3, 1e3, 6.0, step_s=0.1)], "measure, 1,000 samples/s, at most 10 s left"),
        ([measuring(3, 1e3, 16.5, step_s=0.1)], "measure, 1,000 samples/s"),
        ([measuring(9, 10.0, 31.0, epoch=2.24, metric="mse 0.01")], "measure, epoch 2.2, mse 0.01, 10 samples/s"),
    ):
        assert consoles.describe_progress(ranks, now_s=14.0) == line


def test_a_run_that_has_ended_gets_a_line_with_its_figure_or_its_reason(capsys):
    console, folder = consoles.Console(), Path("1")
    folder.mkdir()
    (folder / "rank0.log").touch()
    failed = {"status": "failed", "block_s": None}
    repeated = record(gpus=2, repeat=1, spec={"measure": {"repeats": 3}}, cohort="c", phases=Phases(wall_s=13.7))
    console.print_outcome(record(phases=Phases(wall_s=4.2)), folder, (1, 6))
    console.print_outcome(repeated, folder, (2, 6), ["seed=1"])
    console.print_outcome(training_run(), folder, (3, 6))
    console.print_outcome(record(gpus=2, reason="rank 1: [x] \x1b]0;broke", **failed), folder, (10, 12))
    console.print_outcome(record(reason="elsewhere", log="/etc/passwd", **failed), folder)
    console.print_outcome(record(status="unsupported", block_s=None, reason="no GPU", log=None), folder, (4, 6))
    console.print_outcome(record(gpus=2), folder, (5, 6), note="done before, kept")
    assert capsys.readouterr().out.splitlines() == [
        "✓ [1/6] ddp 1 device  200 samples/s ± 0.6 %  4 s",
        "✓ [2/6] ddp 2 devices seed=1, repeat 2 of 3  400 samples/s ± 0.6 %  14 s in turns",
        "✓ [3/6] ddp_gloo 2 devices  1,708 samples/s ± 0.2 %  mse 0.1  5 s",
        "✗ [10/12] ddp 2 devices  failed: rank 1: [x] \ufffd]0;broke (log: 1/rank0.log)",
        "✗ ddp 1 device  failed: elsewhere",
        "- [4/6] ddp 1 device  unsupported: no GPU",
        "✓ [5/6] ddp 2 devices  400 samples/s ± 0.6 %  done before, kept",
    ]


def test_a_cohort_that_starts_says_how_many_of_its_runs_have(capsys):
    starting = CohortProgress(8, started=3, first_figures_s=20.0, warm=2, label="ddp gpus=1")
    text = "3 of 8 started; first figures in about 20 s"
    assert consoles.describe_cohort(starting).startswith(f"{text}; ddp gpus=1: ")
    with consoles.Console().show_cohort(1, 8, 9) as look:
        first = replace(starting, started=1, first_figures_s=None, warm=0)
        for progress in (first, first, starting, replace(starting, round=12), replace(starting, round=12)):
            look(progress)
    head = "[1-8/9] 8 runs in turns"
    assert capsys.readouterr().out.splitlines() == [
        f"{head} ...", f"{head}: 1 of 8 started", f"{head}: {text}", f"{head}: 12 rounds",
    ]  # fmt: skip
    ending = CohortProgress(8, warm=8, round=12, label="ddp gpus=1")
    assert consoles.describe_cohort(ending).startswith("ddp gpus=1: ")
    assert consoles.describe_cohort(replace(ending, seconds_left=1.0)).startswith("round 12")


@pytest.mark.parametrize(("columns", "width"), [(None, 80), ("100", 100), ("wide", 80), ("0", 80)])
def test_without_a_terminal_a_line_is_as_wide_as_columns_says(columns, width, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert consoles.Console().rich.width == width


@pytest.mark.parametrize(("variable", "is_plain"), [("", False), ("1", True)])
def test_colours_are_for_terminals_that_want_them(variable, is_plain, monkeypatch, capsys):
    sweeps.write_results(Path("all"), [*(sweeps.run("bare_torch", 1, k) for k in range(3)),
                                       *(sweeps.run("ddp_gloo", 2, k) for k in range(3))])  # fmt: skip
    consoles.Console().print_table([Path("all")])
    piped = capsys.readouterr().out
    assert "\x1b" not in piped
    for name, value in (("NO_COLOR", variable), ("TERM", "xterm-256color"), ("FORCE_COLOR", "1"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)
    consoles.Console().print_table([Path("all")])
    shown = capsys.readouterr().out
    (winner,) = [line for line in shown.splitlines() if "ddp_gloo  " in line]
    assert (winner.startswith("\x1b[1m2"), "\x1b[1;32mok" in winner) == (not is_plain,) * 2
    without_colours = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert [line.rstrip() for line in without_colours] == [line.rstrip() for line in piped.splitlines()]


def test_the_plan_lists_each_run_and_the_time_of_all(capsys):
    measure = {"min_s": 10.0, "max_s": 20.0}
    small, large = simulated_spec(measure=measure), simulated_spec(gpus=64, size=2000, measure=measure)
    cannot = simulated_spec()
    cannot.unsupported = "not here"
    consoles.Console().print_plan([SweepRun([], small, added=True), SweepRun([], large), SweepRun([], cannot)])
    first, second, third, last = capsys.readouterr().out.splitlines()
    assert first == "[1/3] simulated gpus=1 (baseline, added): batch 10 per device, 10 global, 10 to 20 s"
    assert second.startswith("[2/3] simulated gpus=64 [oversubscribed]: batch 10 per device, 640 global")
    assert third == "[3/3] simulated gpus=1: unsupported: not here"
    assert last == "3 runs, about 21 to 41 s; nothing was started"
    consoles.Console().print_plan([SweepRun([], cannot)])
    assert capsys.readouterr().out.splitlines()[-1] == "1 run; nothing was started"
    slow = simulated_spec(measure={**measure, "warmup_max_s": 20.0, "evaluate": False})
    slow.config.strategy.framework = "torch"
    consoles.Console().print_plan([SweepRun([], slow)])
    line, last = capsys.readouterr().out.splitlines()
    assert line == "[1/1] simulated gpus=1: batch 10 per device, 10 global, 14 to 44 s"
    assert last == f"1 run, about 14 to 44 s{consoles.IF_SLOW}; nothing was started"
    consoles.Console().print_plan([SweepRun([], simulated_spec(gpus=2, measure={"search": "max_batch"}))])
    line = "[1/1] simulated gpus=2: the largest batch that fits, from 10 per device on"
    assert capsys.readouterr().out.startswith(line)


def test_progress_is_a_line_per_run_or_in_a_terminal_one_that_changes(capsys):
    """With how long the rest of a sweep will take; debugging keeps the terminal free."""
    with consoles.Console().show_progress(simulated_spec(gpus=2), 2, 3, lambda: " (about 5 s left)") as on_look:
        on_look([RankProgress(0, 1, "warmup", 0.0)])
    assert capsys.readouterr().out == "[2/3] simulated gpus=2 ... (about 5 s left)\n"
    console = terminal_console()
    with console.show_progress(simulated_spec(gpus=2), 2, 3, lambda: " (about 5 s left)") as on_look:
        on_look([RankProgress(0, 1, "warmup", time.time())])
        console.rich._live_stack[0].refresh()
    assert "[2/3] simulated gpus=2  warmup (about 5 s left)" in read_output(console)
    console = terminal_console()
    with console.show_progress(simulated_spec(debug=True), 1, 1) as on_look:
        on_look([])
    assert read_output(console) == "[1/1] simulated gpus=1 ...\n"


def test_runs_left_out_for_lack_of_time_are_listed(capsys):
    record = new_sweep_record([], "", "", 1.5)
    record.runs = [
        PlannedRun(number, f"run {number // 2}", f"{number}", 0, left_out=number > 3) for number in range(30)
    ]
    consoles.Console().print_left_out(record)
    assert capsys.readouterr().out == (
        "sweep.max_minutes=1.5 left out 26 of 30 runs: run 2, run 3, run 4, run 5, run 6, run 7, run 8, run 9, run 10, "
        "run 11 and 3 more; the same command with resume=true and more time adds them\n"
    )
    record.runs = [PlannedRun(n, f"run {n // 3} repeat={n % 3}", f"{n // 3}", n % 3, left_out=n > 1) for n in range(6)]
    consoles.Console().print_left_out(record)
    assert "left out 4 of 6 runs: run 0 repeat=2, run 1 (3 repeats); the same" in capsys.readouterr().out
    record.runs = record.runs[:2]
    consoles.Console().print_left_out(record)
    assert capsys.readouterr().out == ""


def test_collectives_and_bandwidths_are_below_the_table(tmp_path, capsys):
    for strategy, times_s in (("ddp_gloo", [1e-3, 1e-3]), ("horovod_mpi", [5e-4, 2e-3])):
        measured = [
            CollectiveRecord("all_reduce", 4**k * 1024, 1, [0.99 * mean_s, 1.01 * mean_s, mean_s])
            for k, mean_s in enumerate(times_s)
        ]
        transfers = [TransferRecord("memcpy", 0, 0, 2**20, 1, [1e-3] * 4)] if strategy == "ddp_gloo" else []
        probes = ProbeRecord(collectives=measured, bandwidth=transfers)
        folder = tmp_path / strategy
        folder.mkdir()
        write_result(record(strategy, 2, ranks=[rank(k, [0.1] * 20, probes=probes) for k in range(2)]), folder)
    consoles.Console().print_table([tmp_path])
    out = capsys.readouterr().out
    assert "all_reduce on 2 devices (torch, cpu)" in out
    assert "is faster" not in out and "measure.repeats=3" in out  # one start of each
    assert "bandwidth" in out and "memcpy" in out


def queue(**parts):
    return QueueState(**{"waiting": 0, "pending": 0, "reason": None, "runs": (), "over": 0, **parts})


def test_queue_counts_omit_what_is_zero():
    for parts, line in (
        ({"waiting": 1}, "0 of 1 run over, 1 not submitted yet"),
        ({"over": 4, "pending": 3, "reason": "Priority"}, "4 of 7 runs over, 3 pending (Priority)"),
        ({"over": 2, "pending": 1}, "2 of 3 runs over, 1 pending"),
        ({"over": 2}, "2 of 2 runs over"),
        ({"pending": 1, "error": "timed out"}, "0 of 1 run over, 1 pending, no answer from SLURM: timed out"),
    ):
        assert consoles.describe_queue(queue(**parts)) == line
