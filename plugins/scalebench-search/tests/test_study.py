"""Trials: proposed alike after the same results."""

from __future__ import annotations

import math

import pytest
from scalebench_search.study import Outcome, classify_outcome
from searches import RATE, make_study, run_trials


def bowl(words: dict[str, str]) -> float:
    """Lowest at a learning rate of 0.003 with sgd."""
    off = math.log10(float(words["train.learning_rate"]) / 0.003)
    return off**2 + (0.5 if words["train.optimizer"] == "adam" else 0.0)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_that_begins_anew_proposes_the_same_trials(sampler: str) -> None:
    words = (RATE, "train.optimizer=adam,sgd")
    conf = {"n_trials": 9, "startup_trials": 3, "sampler": sampler}
    made = make_study(*words, **conf)
    complete = run_trials(made, bowl)
    assert type(made.study.sampler).__name__ == {"tpe": "TPESampler", "random": "RandomSampler"}[sampler]
    assert len(complete) == 9 and run_trials(make_study(*words, **conf), bowl) == complete
    assert len({tuple(words) for words in complete}) == 9
    other = run_trials(make_study(*words, **conf, seed=1), bowl)
    assert not set(map(tuple, other)) & set(map(tuple, complete))


def test_a_refused_trial_ends_its_batch() -> None:
    made = make_study(RATE, n_trials=4)
    made.refuse = lambda trial: Outcome("pruned", status="refused") if trial.number == 1 else None
    assert [[trial.number for trial in made.propose(3)] for _ in range(3)] == [[0], [2, 3], []]


def test_equal_settings_are_tried_once() -> None:
    made = make_study("a=x,y,z", n_trials=15)
    seen = run_trials(made, lambda words: {"x": 3.0, "y": 1.0, "z": 2.0}[words["a"]])
    assert sorted(seen) == [["a=x"], ["a=y"], ["a=z"]]
    results = made.rank_trials()
    assert len(results) == 15
    assert {(trial.overrides[0], trial.outcome.value) for trial in results} == {
        ("a=x", 3.0),
        ("a=y", 1.0),
        ("a=z", 2.0),
    }
    assert len({trial.run for trial in results}) == 3
    assert made.best is not None and made.best.number == made.best.run


def test_equal_settings_share_a_bad_end_too() -> None:
    made = make_study("b=x,x", n_trials=2)
    (trial,) = made.propose(1)
    made.record(trial.number, Outcome("pruned", status="oom", reason="out of memory"))
    assert made.propose(1) == [] and made.best is None
    assert {(t.outcome.state, t.outcome.status, t.outcome.reason) for t in made.rank_trials()} == {
        ("pruned", "oom", "out of memory")
    }


def test_more_is_better_for_some() -> None:
    for more, value in ((True, 3.0), (False, 1.0)):
        made = make_study("a=1,2,3", more_is_better=more, n_trials=20)
        run_trials(made, lambda words: float(words["a"]))
        assert made.best is not None and made.best.outcome.value == value
        values = [trial.outcome.value or 0.0 for trial in made.rank_trials()]
        assert values == sorted(values, reverse=more)


@pytest.mark.parametrize(
    ("status", "reason", "state"),
    [
        ("oom", "rank 0: out of memory", "pruned"),
        ("timeout", "over 60 s", "pruned"),
        ("unsupported", "needs GPUs", "pruned"),
        ("failed", "rank 0: Diverged: the loss is nan after update 3", "pruned"),
        ("failed", "rank 0: RuntimeError: something else", "fail"),
        ("cancelled", "cancelled while it ran", "running"),
    ],
)
def test_outcomes_of_failed_runs(status: str, reason: str, state: str) -> None:
    outcome = classify_outcome({"status": status, "reason": reason, "metric": None}, "metric")
    assert (outcome.state, outcome.value) == (state, None)


def test_outcomes_of_successful_runs() -> None:
    row = {"status": "ok", "reason": None, "metric": 0.25, "time_to_target_s": math.nan, "best_metric": None}
    assert classify_outcome(row, "metric") == Outcome("complete", 0.25)
    assert classify_outcome(row, "time_to_target_s") == Outcome("pruned", reason="the target was not reached")
    assert classify_outcome(row, "best_metric") == Outcome("pruned", reason="no best_metric")
