"""The end of a search: its table, the best trial as a command, and the files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from scalebench_search import summary
from scalebench_search.study import Outcome, Study, Trial
from searches import RATE, make_study, run_trials

from scalebench.sweeps.console import Console

ARGUMENTS = [
    "sweep=lr_search",
    "strategy=simulated",
    "hydra.sweeper.n_trials=9",
    "resume=true",
    "hydra.sweep.dir=s",
    "+a.b='x y'",
]


def a_search(trials: int = 3) -> Study:
    made = make_study(RATE, "train.optimizer=adam,sgd", n_trials=trials)
    run_trials(made, lambda words: float(words["train.learning_rate"]), limit=trials - 1)
    for trial in made.propose(1):
        made.record(trial.number, Outcome("pruned", status="oom", reason="out of [red]memory[/red]"))
    return made


def test_the_command_is_one_run_of_the_best_settings() -> None:
    trial = Trial(0, ["train.learning_rate=0.1", "train.optimizer=sgd"], Outcome("complete", 1.0))
    typed = [
        *ARGUMENTS,
        "--multirun",
        "hydra/sweeper=search",
        "train.learning_rate=interval(0,1)",
        "sweep.max_minutes=3",
    ]
    assert summary.command(trial, typed) == (
        "scalebench sweep=lr_search strategy=simulated '+a.b='\"'\"'x y'\"'\"'' hydra.mode=RUN "
        "train.learning_rate=0.1 train.optimizer=sgd"
    )
    assert summary.command(trial, ["-m", "gpus=1"]) == ("scalebench gpus=1 train.learning_rate=0.1 train.optimizer=sgd")


def test_files_hold_every_trial_and_the_best(tmp_path: Path) -> None:
    made = a_search()
    summary.write_files(made, tmp_path, ARGUMENTS)
    with (tmp_path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["0", "1", "2"]
    assert [row["state"] for row in rows] == ["complete", "complete", "pruned"]
    assert rows[2]["metric"] == "" and rows[2]["status"] == "oom"
    best = OmegaConf.load(tmp_path / "best.yaml")
    assert best.value == min(float(row["metric"]) for row in rows[:2]) == float(rows[best.trial]["train.learning_rate"])
    assert best.better == "less" and str(next(iter(best.overrides))).startswith("train.learning_rate=")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.yaml", "trials.csv"]


def test_without_a_value_there_is_no_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = a_search(1)
    summary.write_files(made, tmp_path, ARGUMENTS)
    assert [path.name for path in tmp_path.iterdir()] == ["trials.csv"]
    summary.print_summary(make_study(RATE), tmp_path, ARGUMENTS, Console())
    assert capsys.readouterr().out == ""  # there is no trial yet
    summary.print_summary(made, tmp_path, ARGUMENTS, Console())
    assert f"no trial has a mse; {tmp_path / 'trials.csv'} says why" in capsys.readouterr().out


def test_the_table_has_the_best_first_and_the_rest_in_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    made = a_search(35)
    summary.print_summary(made, Path("s"), ARGUMENTS, Console())
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    values = [float(row[1]) for row in rows]
    assert len(values) == summary.MAX_ROWS and values == sorted(values)
    assert "and 5 more in s/trials.csv" in out
    summary.print_summary(a_search(2), Path("s"), ARGUMENTS, Console())
    assert "oom: out of [red]memory[/red]" in capsys.readouterr().out
    assert f"best: mse {values[0]:.4g} of trial {rows[0][0]} (s/best.yaml)" in out


def test_a_heading_shows_the_best_value_so_far() -> None:
    made = make_study(RATE, n_trials=3)
    words = ["train.learning_rate=0.00123456789", "train.optimizer=sgd", "gpus=2"]
    assert (
        summary.describe_trial(made, Trial(0, words)) == "trial 0 (1 of 3): learning_rate=0.001235 optimizer=sgd gpus=2"
    )
    run_trials(made, lambda words: 0.5, limit=1)
    assert summary.describe_trial(made, Trial(1, words)).endswith("gpus=2 (best: mse 0.5 of trial 0)")
