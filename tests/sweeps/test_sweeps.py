"""Sweeps: all runs are checked before the first, baselines join, failed ones do not stop the others, resume."""

import math
import os
import platform
import re
import sys
import types
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

import scalebench
from benchmarks.soak import soak
from scalebench import __main__ as program
from scalebench.analysis import ranking
from scalebench.config import compose
from scalebench.core.folder_lock import FolderLock
from scalebench.core.machine.machine import find_cache_folder
from scalebench.core.result import read_result
from scalebench.core.sweep_file import read_sweep
from scalebench.sweeps import execute
from scalebench.sweeps.console import Console
from tests.builders.configs import SHORT_WORDS

SHORT = ["hardware=cpu", *SHORT_WORDS, "sweep.report=false"]


@pytest.fixture
def sweep(capsys):
    """A sweep into the folder `s`: status, output, errors."""

    def swept(*words, folder="s"):
        status = program.main([*SHORT, "--multirun", "measure.repeats=1", f"hydra.sweep.dir={folder}", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return swept


def rows(folder="s"):
    """In the order of their folders, which are numbered."""
    frame = scalebench.load(folder)
    return frame.iloc[frame.path.map(lambda path: int(Path(path).name)).argsort()]


def test_a_sweep_adds_its_baselines_and_continues_after_a_failed_run(sweep):
    """Rank 1 fails, so that the run on two devices does, and those on one do not."""
    words = ["gpus=2,1", "seed=0,1", "strategy.options.fault=raise", "strategy.options.fault_rank=1"]
    status, out, err = sweep(*words)
    assert (status, err) == (1, "")
    frame = rows()
    ends = frame[["gpus", "seed", "status"]].to_records(index=False).tolist()
    assert ends == [(2, 0, "failed"), (2, 1, "failed"), (1, 0, "ok"), (1, 1, "ok")]
    assert frame.reason.iloc[0] == "rank 1: RuntimeError: failed as configured"
    assert "[1-4/4] 4 runs in turns ..." in out
    pattern = r"^\[1-4/4\] 4 runs in turns: (\d) of 4 started(?:; first figures in about \d+ s)?$"
    starts = re.findall(pattern, out, re.MULTILINE)
    assert starts == ["1", "2", "3", "4"]
    end = r"(failed: rank 1: .*|[\d,]+ samples/s( ± [\d.]+ %)?  \d+ s in turns)"
    assert len(re.findall(rf"^[✓✗] \[[1-4]/4\] simulated [12] devices? seed=[01]  {end}$", out, re.MULTILINE)) == 4
    cohorts = {read_result(Path(path) / "result.json").cohort for path in frame.path}
    assert frame.path.nunique() == 4 and cohorts != {None}
    files = ["multirun.yaml", "results.csv", "results.parquet", "sweep.json"]
    assert sorted(os.listdir("s")) == ["0", "1", "2", "3", *files]
    assert len(pd.read_csv("s/results.csv")) == len(pd.read_parquet("s/results.parquet")) == 4


def test_resumed_with_other_arguments_a_sweep_keeps_its_runs_under_their_numbers(sweep):
    """The table has them all, those of new arguments after the others, and their plan says so too."""
    words = ["measure.repeats=2", "measure.order=given", "baseline=none"]
    assert sweep("gpus=1", *words)[0] == 0
    first = rows()
    words += ["gpus=2,1", "resume=true"]
    status, out, _ = sweep(*words, "dry_run=true")
    assert status == 0 and re.findall(r"gpus=1 (.*)\n", out) == [f"repeat={k}: done before, kept" for k in (0, 1)]
    status, out, _ = sweep(*words)
    assert status == 0 and out.count("done before, kept") == 2
    assert rows().gpus.tolist() == [1, 1, 2, 2] and rows().run_id.tolist()[:2] == first.run_id.tolist()
    record = read_sweep(Path("s"))
    assert record is not None and [run.number for run in record.runs] == [2, 0, 3, 1] and not record.missing(Path("s"))


class BatchSweeper(Sweeper):
    """A sweeper of somebody else, which lists one run after the other."""

    def __init__(self, **settings):
        pass

    def setup(self, **context):
        self.launcher = Plugins.instance().instantiate_launcher(**context)

    def sweep(self, arguments):
        for number, gpus in enumerate(("gpus=1", "gpus=2")):
            self.launcher.launch([[*arguments, gpus]], number)


def test_a_foreign_sweeper_gets_our_launcher(sweep, monkeypatch):
    compose.register_with_hydra()  # imports hydra_plugins, in which Hydra looks for sweepers
    module = types.ModuleType("hydra_plugins.stand_in")
    module.BatchSweeper = BatchSweeper
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules["hydra_plugins"], "stand_in", module, raising=False)
    target = f"{module.__name__}.BatchSweeper"
    monkeypatch.setitem(Plugins.instance().class_name_to_class, target, BatchSweeper)
    status, out, err = sweep(f"hydra.sweeper._target_={target}", "seed=3", "baseline=none", "dry_run=true")
    assert (status, err) == (0, "") and re.findall(r"^\[1/1\] simulated gpus=(\d)", out, re.MULTILINE) == ["1", "2"]
    assert sweep(f"hydra.sweeper._target_={target}", "seed=x", "dry_run=true")[0] == 2 and os.listdir() == []


def test_several_values_are_a_sweep_in_the_folder_that_was_named():
    words = ["gpus=1", "seed=0,1", "measure.repeats=1", "baseline=none"]
    assert program.main([*SHORT, *words, "hydra.run.dir=here"]) == 0
    assert os.listdir() == ["here"] and {"0", "1"} <= {*os.listdir("here")}


@pytest.mark.parametrize("words", [["measure.repeats=2"], ["--run", "hydra.mode=RUN", "measure.repeats=2"]])
def test_a_dry_run_with_repeats_lists_them_all(capsys, words):
    assert program.main([*SHORT, *words, "gpus=1", "dry_run=true"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"[{k + 1}/2] simulated gpus=1 repeat={k}" for k in (0, 1)]
    assert re.fullmatch(r"2 runs, about \d+ to \d+ s; nothing was started", last)
    assert program.main([*SHORT, *words, "gpus=1", "repeat=1", "hydra.run.dir=r"]) == 2
    assert capsys.readouterr().err.startswith("scalebench: repeat=1 and measure.repeats=2: ")
    assert os.listdir() == []


@pytest.mark.parametrize("words", [
    ["strategy=fsdp,hsdp", "strategy.options.unit_mb=0"],
    ["strategy=choice(fsdp,hsdp)", "++strategy.options.unit_mb=0"],
    ["strategy=fsdp,hsdp", "strategy.options={unit_mb:0}"],
])  # fmt: skip
def test_options_of_swept_strategies_are_those_of_each_and_not_of_the_default(sweep, words):
    """The default, ddp, has no such option."""
    status, out, err = sweep("gpus=2", "baseline=bare", "dry_run=true", *words)
    assert (status, err) == (0, "") and "/3] fsdp gpus=2" in out and "/3] hsdp gpus=2" in out


def test_a_sweep_starts_each_run_three_times_and_probes_the_first(sweep):
    words = ["gpus=1", "measure.repeats=null", "measure.probes=true", "measure.probe_s=0.01", "measure.evaluate=true"]
    status, _, _ = sweep(*words)
    assert status == 0 and rows().repeat.tolist() == [0, 1, 2] and rows().fingerprint.nunique() == 1
    results = [read_result(Path(path) / "result.json") for path in rows().path]
    assert [result.ranks[0].probes is not None for result in results] == [True, False, False]
    assert [result.quality.metric is not None for result in results] == [True, False, False]
    assert [result.spec["measure"]["repeats"] for result in results] == [3, 3, 3]
    assert scalebench.pooled("s").repeats.tolist() == [3]
    status, out, _ = sweep(*words, "resume=true", folder="t")
    assert status == 0 and out.count("done before, kept") == 3


def test_a_sweep_goes_on_while_its_limits_are_too_wide(sweep, monkeypatch):
    """As often as was left to it, and for as long as the planned repeats took; resumed, it repeats nothing."""
    widths = iter([0.5, math.inf, 0.09])
    monkeypatch.setattr(ranking, "find_widest_ratio", lambda *surveyed: next(widths))
    monkeypatch.setattr(execute, "FURTHER_TIMES", 100)
    status, out, _ = sweep("gpus=1,2", "measure.repeats=null")
    assert status == 0 and rows().repeat.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert "limits of ± 50 % are too wide for a verdict: repeat 4 of at most 6 (measure.repeats=3 stops after 3)" in out
    assert scalebench.pooled("s").repeats.tolist() == [5, 5] and next(widths, None) is None
    for words, times in ((["measure.repeats=3"], 100), (["measure.repeats=null"], 1), (["measure.max_repeats=3"], 100)):
        monkeypatch.setattr(execute, "FURTHER_TIMES", times)
        status, out, _ = sweep("gpus=1,2", *words, "resume=true")
        assert status == 0 and "too wide" not in out and len(rows()) == 10
    widths = iter([0.5, 0.05])
    monkeypatch.setattr(execute, "FURTHER_TIMES", 1e6)  # runs that are done already take no time
    status, out, _ = sweep("gpus=1,2", "measure.repeats=null", "resume=true", folder="t")
    assert status == 0 and out.count("done before, kept") == 8 and len(rows("t")) == 8


@pytest.mark.parametrize("waits", [False, True])
def test_another_program_that_measures_is_named_or_awaited(capsys, monkeypatch, waits):
    folder = find_cache_folder() / "measuring" / platform.node()
    folder.mkdir(parents=True, exist_ok=True)
    other, released = FolderLock(folder), []

    def print_line(self, text):
        print(text)
        if waits and not released:  # which ends the other one
            other.release()
            released.append(datetime.now(UTC).isoformat(timespec="milliseconds"))

    monkeypatch.setattr(Console, "print_line", print_line)
    assert program.main([*SHORT, "gpus=1", "hydra.run.dir=r", f"wait={str(waits).lower()}"]) == 0
    other.release()
    first = capsys.readouterr().out.splitlines()[0]
    end = "this one begins after its end" if waits else "each disturbs the other; wait=true begins after its end"
    assert first.startswith(f"process {os.getpid()} on ") and first.endswith(f" measures on this machine: {end}")
    assert not waits or released[0] <= read_result(Path("r/result.json")).started_at


@pytest.mark.slow
def test_a_sweep_that_fails_and_is_killed_again_and_again_comes_to_its_end(tmp_path):
    report = soak(tmp_path, 24, 10, hang_s=20.0)
    assert report.problems == []
    assert report.kills >= 1 and report.starts > 24 and report.rows.total() == 24
    assert report.statuses["ok"] == report.rows["ok"] > 0 and report.statuses["failed"] > 0
