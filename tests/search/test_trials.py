"""Trials: proposed alike whether or not a program ends between them, and kept."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from scalebench.results import Quality
from scalebench.search.trials import Verdict, mend, verdict_of
from scalebench.spec import InputError
from tests.helpers import record
from tests.search.searching import RATE, follow, search

JOURNAL = Path("search.journal")


def bowl(words: dict[str, str]) -> float:
    """Lowest at a learning rate of 0.003 with sgd."""
    off = math.log10(float(words["train.learning_rate"]) / 0.003)
    return off**2 + (0.5 if words["train.optimizer"] == "adam" else 0.0)


def best_values(sampler: str) -> list[float]:
    found = []
    for seed in range(8):
        made = search(RATE, "train.optimizer=adam,sgd", n_trials=40, sampler=sampler, seed=seed)
        follow(made, bowl)
        assert made.best is not None and made.best.value is not None
        found.append(made.best.value)
    return found


def test_tpe_learns_from_what_it_is_told() -> None:
    """Over 8 seeds. Nearer to the best than what chance finds in as many trials."""
    learnt, chance = statistics.median(best_values("tpe")), statistics.median(best_values("random"))
    assert learnt < chance / 4


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_in_pieces_proposes_what_a_whole_one_does(sampler: str) -> None:
    words = (RATE, "train.optimizer=adam,sgd")
    conf = {"n_trials": 9, "startup_trials": 3, "sampler": sampler}
    whole = follow(search(*words, **conf), bowl)
    pieces = []
    for _ in range(9):
        pieces += follow(search(*words, journal=JOURNAL, **conf), bowl, most=1)
    assert len(whole) == 9 and pieces == whole
    assert len({tuple(words) for words in whole}) == 9
    other = follow(search(*words, **conf, seed=1), bowl)
    assert not set(map(tuple, other)) & set(map(tuple, whole))


def test_a_trial_that_nothing_was_told_of_comes_again() -> None:
    first = search(RATE, journal=JOURNAL)
    (lost,) = first.batch(1)
    first.tell(lost.number, Verdict("open"))
    (next_one,) = first.batch(1)
    assert (lost.number, next_one.number) == (0, 1)
    first.tell(next_one.number, Verdict("complete", 1.0))
    again = search(RATE, journal=JOURNAL)
    assert again.batch(2) == [lost]  # trial 2 is not in a row with it
    assert [trial.number for trial in again.batch(2)] == [2, 3]


def test_equal_settings_are_tried_once() -> None:
    made = search("a=x,y,z", n_trials=15)
    seen = follow(made, lambda words: {"x": 3.0, "y": 1.0, "z": 2.0}[words["a"]])
    assert sorted(seen) == [["a=x"], ["a=y"], ["a=z"]]
    found = made.trials()
    assert len(found) == 15
    assert {(trial.words[0], trial.value) for trial in found} == {("a=x", 3.0), ("a=y", 1.0), ("a=z", 2.0)}
    assert len({trial.run for trial in found}) == 3
    assert made.best is not None and made.best.number == made.best.run


def test_equal_settings_share_a_bad_end_too() -> None:
    made = search("b=x,x", n_trials=2)
    (trial,) = made.batch(1)
    made.tell(trial.number, Verdict("pruned", status="oom", reason="out of memory"))
    assert made.batch(1) == [] and made.best is None
    assert {(t.state, t.status, t.reason) for t in made.trials()} == {("pruned", "oom", "out of memory")}


def test_more_is_better_for_some() -> None:
    for more, value in ((True, 3.0), (False, 1.0)):
        made = search("a=1,2,3", more_is_better=more, n_trials=20)
        follow(made, lambda words: float(words["a"]))
        assert made.best is not None and made.best.value == value
        values = [trial.value or 0.0 for trial in made.trials()]
        assert values == sorted(values, reverse=more)


def test_trials_are_put_back_in_their_order() -> None:
    made = search(RATE)
    first, *others = made.batch(3)
    made.put_back(others)
    assert made.batch(2) == others
    assert [first.number, *(trial.number for trial in made.batch(1))] == [0, 3]


@pytest.mark.parametrize("torn", [b'{"op_code":8,"wor', b"{", b""])
def test_a_torn_journal_is_mended(torn: bytes) -> None:
    follow(search(RATE, journal=JOURNAL, n_trials=2), lambda words: 1.0)
    JOURNAL.write_bytes(JOURNAL.read_bytes() + torn)
    JOURNAL.with_name("search.journal.lock").symlink_to(JOURNAL.absolute())
    made = search(RATE, journal=JOURNAL, n_trials=4)
    follow(made, lambda words: 2.0)
    assert [trial.value for trial in search(RATE, journal=JOURNAL, n_trials=4).trials()] == [1.0, 1.0, 2.0, 2.0]


def test_a_trial_that_was_half_proposed_is_given_up() -> None:
    """The program was killed between two of its values."""
    made = search(RATE, "b=x,y", journal=JOURNAL)
    follow(made, lambda words: 1.0, most=1)
    made.study.ask({"train.learning_rate": made.space.searched["train.learning_rate"]})
    again = search(RATE, "b=x,y", journal=JOURNAL)
    assert [trial.number for trial in again.batch(1)] == [2]
    assert [(trial.number, trial.state, trial.words) for trial in again.trials()][1] == (1, "fail", [])


def test_another_search_is_refused() -> None:
    search(RATE, journal=JOURNAL)
    with pytest.raises(InputError, match=r"was another one: its space was train.learning_rate=.* is a=1,2 now; choose"):
        search("a=1,2", journal=JOURNAL)


def test_a_lock_that_was_left_is_taken_away() -> None:
    """Optuna would wait for half a minute before it took it over."""
    lock = JOURNAL.with_name("search.journal.lock")
    JOURNAL.write_text("{}\n")
    lock.symlink_to(JOURNAL.absolute())
    mend(JOURNAL)
    assert not lock.is_symlink() and JOURNAL.read_text() == "{}\n"


def test_no_journal_needs_no_mending() -> None:
    mend(JOURNAL)
    assert not JOURNAL.exists()


@pytest.mark.parametrize(
    ("status", "reason", "state"),
    [
        ("oom", "rank 0: out of memory", "pruned"),
        ("timeout", "over 60 s", "pruned"),
        ("unsupported", "needs GPUs", "pruned"),
        ("failed", "rank 0: Diverged: the loss is nan after update 3", "pruned"),
        ("failed", "rank 0: RuntimeError: something else", "fail"),
        ("cancelled", "cancelled while it ran", "open"),
    ],
)
def test_what_a_bad_end_says_of_a_setting(status: str, reason: str, state: str) -> None:
    verdict = verdict_of(record(status=status, reason=reason, block_s=None), Path(), "metric")
    assert (verdict.state, verdict.value) == (state, None)


def test_what_a_good_end_says() -> None:
    result = record(quality=Quality(metric_name="mse", metric=0.25))
    assert verdict_of(result, Path(), "metric") == Verdict("complete", 0.25)
    assert verdict_of(result, Path(), "time_to_target_s") == Verdict("pruned", reason="the target was not reached")
    assert verdict_of(result, Path(), "best_metric") == Verdict("pruned", reason="no best_metric")
    assert verdict_of(result, Path(), "throughput_samples_per_s").value == pytest.approx(200, rel=0.02)
