"""Searches: trials are runs of a sweep, what fails is learnt from, one that was cut short goes on where it ended."""

from __future__ import annotations

import csv
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import scalebench
from scalebench import __main__ as program
from scalebench.runner import parent
from scalebench.sweeps import execute
from scalebench.sweeps.task import SweepSession

BEST_RATE = 0.003
SHORT = [
    *("hardware=cpu", "strategy=simulated", "gpus=1", "dataset.size=1000", "measure=quick", "measure.probes=false"),
    *("measure.monitor=false", "sweep.report=false", "train.stop.steps=2", "strategy.options.step_s=0"),
    f"strategy.options.best_rate={BEST_RATE}",
]
RATE = "train.learning_rate=tag(log,interval(1e-5,1e-1))"
Searched = tuple[int, str, str]
Search = Callable[..., Searched]


@pytest.fixture
def search(capsys: pytest.CaptureFixture[str]) -> Search:
    """A search into the folder `s`: status, output, errors."""

    def searched(*words: str, folder: str = "s", trials: int = 3) -> Searched:
        own = ["--multirun", "hydra/sweeper=search", f"hydra.sweep.dir={folder}", f"hydra.sweeper.n_trials={trials}"]
        status = program.main([*SHORT, *own, *words])
        out, err = capsys.readouterr()
        return status, out, err

    return searched


def trials(folder: str = "s") -> list[dict[str, str]]:
    with Path(folder, "trials.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def values(key: str, folder: str = "s") -> list[str]:
    return [trial[key] for trial in trials(folder)]


def best(folder: str = "s") -> dict[str, Any]:
    tree = OmegaConf.to_container(OmegaConf.load(Path(folder, "best.yaml")))
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def test_each_trial_is_a_row_and_the_best_has_a_command(search: Search) -> None:
    """The second program goes on to four trials, and runs one."""
    status, out, err = search(RATE, "train.optimizer=adam,sgd")
    assert (status, err) == (0, "")
    frame = scalebench.load("s").sort_values("metric")
    assert frame.status.tolist() == ["ok"] * 3
    assert frame.metric.tolist() == sorted(float(value) for value in values("metric"))
    results = best()
    first = frame.iloc[0]
    assert (results["value"], Path(first.path).name) == (first.metric, results["run"])
    assert results["command"] in out and out.index("trials, the best mse first") > out.index("results: s")
    assert f"best: mse {first.metric:.4g} of trial {results['trial']}" in out
    assert "[1/3] simulated gpus=1 ..." in out and "[3/3]" in out

    status, out, err = search(RATE, "train.optimizer=adam,sgd", "resume=true", trials=4)
    assert (status, err) == (0, "")
    assert out.count("done before, kept") == 3 and "trial 3 (4 of 4)" in out
    assert scalebench.load("s").set_index("run_id").started_at.isin(frame.started_at).sum() == 3

    assert program.main([*shlex.split(results["command"])[1:], "hydra.run.dir=again"]) == 0
    assert scalebench.load("again").fingerprint.tolist() == [first.fingerprint]


@pytest.mark.slow
def test_trials_go_to_the_launcher_together_where_jobs_do(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own runs are one after the other here; all three are told once they are over."""
    monkeypatch.setattr(SweepSession, "max_concurrent_runs", lambda self, spec: 3)
    status, out, err = search(RATE, trials=4)
    assert (status, err) == (0, "")
    lines = [line[:7] for line in out.splitlines() if line.startswith(("trial ", "["))]
    assert lines == ["trial 0", "trial 1", "trial 2", "[1/4] s", "[2/4] s", "[3/4] s", "trial 3", "[4/4] s"]
    assert values("run") == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_a_search_records_failures_and_continues(search: Search) -> None:
    """One choice of four works. A failure of another kind says nothing of the setting, and so is not an answer."""
    words = ["strategy.options.fault=none,oom,raise,unsupported", "train.learning_rate=1e-3", "hydra.sweeper.seed=1"]
    status, out, _ = search(*words, trials=14)
    assert status == 1
    message = {trial["strategy.options.fault"]: trial for trial in trials()}
    assert {fault: trial["state"] for fault, trial in message.items()} == {
        "none": "complete", "oom": "pruned", "raise": "fail", "unsupported": "pruned",
    }  # fmt: skip
    assert message["oom"]["status"] == "oom" and "failed as configured" in message["raise"]["reason"]
    assert best()["overrides"] == ["strategy.options.fault=none"]
    assert "out of memory" in out
    assert len(scalebench.load("s")) == 4  # none is run twice
    assert len(trials()) == 14 and len(set(values("run"))) == 4


@pytest.mark.slow
def test_time_to_target_ranks_trials_that_reach_it(search: Search) -> None:
    """Slow updates reach the target later; a rate that is far off never does."""
    words = ["strategy.options.step_s=0.001,0.02", "train.learning_rate=3e-3,1e-5", "strategy.options.learning=0.1"]
    more = ["train.stop.steps=60", "train.stop.target=0.1", "train.evaluate_epochs=0.02", "train.batch_per_device=1"]
    status, out, err = search(*words, *more, "hydra.sweeper.objective=time_to_target_s", trials=14)
    assert (status, err) == (0, "")
    states = {trial["train.learning_rate"]: trial["state"] for trial in trials()}
    assert states == {"3e-3": "complete", "1e-5": "pruned"} or states == {"0.003": "complete", "1e-05": "pruned"}
    assert "step_s=0.001" in best()["overrides"][0]
    assert "the target was not reached" in " ".join(out.split())  # in lines as wide as the terminal


@pytest.mark.slow
def test_a_stopped_search_continues_unchanged(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the midst of its third trial, whose settings come again."""
    words = [RATE, "train.optimizer=adam,sgd", "hydra.sweeper.startup_trials=2"]
    assert search(*words, folder="whole", trials=6)[0] == 0

    real, calls = parent.run_spec, []

    def stopped(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(parent, "run_spec", stopped)
        status, out, err = search(*words, trials=6)
    assert status == 1 and err.startswith("scalebench: cancelled")
    assert "best: mse" in out and len(trials()) == 2

    status, out, err = search(*words, "resume=true", trials=6)
    assert (status, err) == (0, "")
    assert out.count("done before, kept") == 6  # as in the whole search, which lies beside it
    assert Path("s/trials.csv").read_text() == Path("whole/trials.csv").read_text()


@pytest.mark.slow
def test_a_search_reuses_results_of_an_equal_one(search: Search) -> None:
    assert search(RATE, folder="all/a", trials=3)[0] == 0
    status, out, _ = search(RATE, "resume=true", folder="all/b", trials=4)
    assert status == 0 and out.count("done before, kept") == 3
    frames = [scalebench.load(f"all/{name}") for name in "ab"]
    assert [len(frame) for frame in frames] == [3, 4]
    assert set(frames[0].run_id) < set(frames[1].run_id)


@pytest.mark.slow
def test_no_time_left_ends_a_search(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial that there was no time for is the first one when it goes on."""
    with monkeypatch.context() as patched:
        counts = iter([1])
        patched.setattr(execute, "select_affordable", lambda rest, every, cost_s, left: rest[: next(counts, 0)])
        status, out, _ = search(RATE, "sweep.max_minutes=1")
    assert status == 0 and "left out 1 of 2 runs" in out
    assert len(trials()) == 1
    left_out = out.partition("trial 1 (2 of 3): ")[2].split()[0]
    _, out, _ = search(RATE, "resume=true", trials=2)
    assert f"trial 1 (2 of 2): {left_out}" in out


WRONG = [
    (["train.lerning_rate=interval(0.1,1)"], "no key 'train.lerning_rate'; did you mean 'train.learning_rate'?"),
    (["train.optimizer=adam,adan"], "adan"),
    (["gpus=interval(1,2)"], "gpus=1.0"),
    ([RATE, "baseline=auto"], "baseline=auto: the trials of a search are compared with each other"),
    ([RATE, "measure.repeats=3"], "measure.repeats=3: a trial is one run; repeat the best one afterwards"),
    ([RATE, "hydra.sweeper.n_trial=3"], "no key 'hydra.sweeper.n_trial'; scalebench --cfg hydra shows all"),
    ([RATE, "hydra.sweeper.objective=time_to_target_s"], "needs a target: set train.stop.target"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "line"), WRONG, ids=[words[-1] for words, _ in WRONG])
def test_bad_settings_are_refused_in_one_line(search: Search, words: list[str], line: str) -> None:
    status, out, err = search(*words)
    assert (status, out) == (2, "")
    assert line in err and err.count("\n") == 1
    assert not Path("s").exists()


def test_optuna_is_named_where_it_is_missing(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    status, out, err = search(RATE)
    assert (status, out) == (2, "")
    assert err == "scalebench: a search needs optuna: pip install optuna\n"


@pytest.mark.slow
def test_a_dry_run_lists_the_search_space_and_leaves_nothing(search: Search) -> None:
    status, out, err = search(RATE, "train.optimizer=adam,sgd", "dry_run=true", trials=12)
    assert (status, err) == (0, "")
    assert "train.learning_rate: tag(log,interval(1e-5,1e-1))" in out and "train.optimizer: adam,sgd" in out
    assert "trial 0 (1 of 12): learning_rate=" in out and "12 runs, about" in out
    assert not list(Path().iterdir())


@pytest.mark.slow
def test_a_folder_keeps_to_one_search(search: Search) -> None:
    assert search(RATE, trials=1)[0] == 0
    assert "s has a search already; resume=true goes on with it, or choose another folder" in search(RATE)[2]
    status, _, err = search(RATE, "hydra.sweeper.seed=1", "resume=true")
    assert status == 2 and "successful" in err
