"""A sweep among plugins with a fault of each kind: it fails its own runs, in one line, and no others."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.config.resolve import resolve
from scalebench.core.run_folder import PLUGIN_LOG
from scalebench.core.spec import ModelSpec, StopSpec, TrainSpec, write_spec
from scalebench.runner import launchers, parent
from scalebench.sweeps import cluster_runs, estimate, task
from scalebench.sweeps import plan as jobs
from scalebench.sweeps.console import Console
from scalebench.sweeps.execute import RunningSweep
from scalebench.workloads import datasets
from tests.builders.plugins import CODE
from tests.builders.plugins import dists as dists
from tests.builders.runs import simulated_config, simulated_spec

SHORT = [
    *("hardware=cpu", "gpus=1", "dataset.size=1000", "measure=quick", "measure.min_s=0", "measure.max_s=0.1"),
    *("measure.warmup_steps=2", "measure.evaluate=false", "measure.probes=false", "measure.monitor=false"),
    *("measure.repeats=1", "sweep.report=false", "hydra.sweep.dir=out"),
]


@pytest.mark.slow
def test_a_fault_of_its_code_fails_its_own_runs_and_prints_do_no_harm(dists):
    """All that can be wrong is in tests/strategies/test_registry.py."""
    dists.strategy("raises", "raises-dist", code="import nothing_of_the_kind.at_all\n")
    dists.strategy("prints", "prints-dist", code=f"print('hello from a plugin')\n{CODE}")
    command = [sys.executable, "-m", "scalebench", "--multirun", "strategy=simulated,prints,raises", *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr and "hello" not in done.stdout
    results = [(path.parent, json.loads(path.read_text())) for path in Path("out").glob("*/result.json")]
    rows = {row["spec"]["strategy"]["name"]: (folder, row) for folder, row in results}
    assert {name: row["status"] for name, (_, row) in rows.items()} == {
        "simulated": "ok", "prints": "ok", "raises": "failed"
    }  # fmt: skip
    folder, row = rows["raises"]
    reason = "strategy 'raises' of raises-dist cannot be loaded from raises_dist.code:Mine: No module named 'nothing_of"
    assert row["reason"].startswith(reason)
    log = folder.absolute() / row["log"]
    assert "Traceback" in log.read_text() and "import nothing_of_the_kind.at_all" in log.read_text()
    assert f"] raises 1 device  failed: {row['reason']} (log: {log})" in done.stdout


LINE = "strategy 'mine' of my-plugin cannot go"


def broken(log="", **changes):
    return dataclasses.replace(simulated_spec(**changes), plugin_error=LINE, plugin_traceback=log)


@pytest.mark.parametrize("log", ["", "Traceback: here\n"])
def test_its_row_is_made_without_a_process(tmp_path, monkeypatch, log):
    monkeypatch.setattr(launchers, "launch", None)
    spec = dataclasses.replace(broken(log), unsupported="it needs a GPU")
    (tmp_path / "run").mkdir()
    write_spec(spec, tmp_path / "run")
    (tmp_path / "run" / PLUGIN_LOG).write_text("of an earlier one")
    result = parent.run_spec(spec, tmp_path / "run")
    assert (result.status, result.reason, result.ranks) == ("failed", LINE, [])
    assert result.log == (PLUGIN_LOG if log else None)
    assert not log or (tmp_path / "run" / PLUGIN_LOG).read_text() == log


def test_it_is_not_submitted_and_no_data_are_made_for_it(monkeypatch):
    spec = simulated_spec()
    hardware = dataclasses.replace(spec.config.hardware, scheduler="slurm", this_machine=False)
    spec = dataclasses.replace(spec, config=dataclasses.replace(spec.config, hardware=hardware))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert cluster_runs.is_submitted(spec)
    assert not cluster_runs.is_submitted(dataclasses.replace(spec, plugin_error=LINE))
    monkeypatch.setattr(datasets, "prepare", lambda config: pytest.fail("data were made"))
    task.prepare_datasets([broken()], Console())


def test_it_takes_no_time_and_no_part_in_a_curve(tmp_path):
    future, sound = estimate.TimeEstimate(), simulated_spec()
    endless = broken(train=TrainSpec(batch_per_device=10, stop=StopSpec(epochs=3)))
    assert future.expected_s(endless) == 0.0 < future.expected_s(sound) and future.has_basis(endless)
    assert not future.has_basis(dataclasses.replace(endless, plugin_error=None))
    runs = [jobs.SweepRun([], spec) for spec in (simulated_spec(gpus=1), simulated_spec(gpus=2), broken(gpus=4))]
    for left_s, gpus in ((0.0, [4]), (1.0, [1, 4])):  # two are the end of the curve, and of both one device is kept
        kept = estimate.select_affordable(runs, runs, lambda run: float(run.spec.can_start), left_s)
        assert [run.spec.gpus for run in kept] == gpus
    # A sweep does not judge the others by it.
    now_s = [0.0]
    sweep = RunningSweep(tmp_path, [], None, clock=lambda: now_s[0])
    runs = [jobs.SweepRun([], broken()), jobs.SweepRun([], simulated_spec())]

    def do_unit(unit):
        now_s[0] += 7.0
        return unit

    sweep.add(runs)
    sweep.do(runs, runs, iter(()), do_unit)
    assert [(spec.plugin_error, took_s) for spec, took_s in sweep._estimate._took_s] == [(None, 7.0)]


def test_no_baselines_are_added_for_it_and_a_broken_one_is_not_added():
    def plan(faulty):
        def resolve_run(arguments):
            spec = simulated_spec(measure={"repeats": 1}, gpus=(gpus := int(arguments[-1].partition("=")[2])))
            return dataclasses.replace(spec, plugin_error=LINE) if gpus in faulty else spec

        return [job.spec.gpus for job in jobs.plan_sweep([["gpus=2"]], resolve_run)]

    assert [plan([]), plan([2]), plan([1])] == [[1, 2], [2], [2]]


def test_a_model_whose_code_fails_has_a_row_with_its_traceback(dists, tmp_path):
    code = "def f(network, outputs):\n    return 1 / 0\n"
    files = {"a/__init__.py": "", "a/nets.py": code, "a/conf/model/mine.yaml": "name: mine\n"}
    dists.add("a-dist", files, {"models": {"mine": "a.nets:f"}, "configs": {"a": "a.conf"}})
    spec = resolve(simulated_config(model=ModelSpec("mine", input_shape=[200, 3], target_shape=[2], outputs=2)))
    assert spec.plugin_error == "model 'mine' of a-dist fails: ZeroDivisionError: division by zero"
    result = parent.run_spec(spec, tmp_path / "run")
    assert (result.status, result.reason, result.log) == ("failed", spec.plugin_error, PLUGIN_LOG)
    assert "return 1 / 0" in (tmp_path / "run" / PLUGIN_LOG).read_text()
