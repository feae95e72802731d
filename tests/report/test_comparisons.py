"""A comparison in words and tables."""

from __future__ import annotations

import pytest

from scalebench.comparison import Comparison, compare, compare_by
from scalebench.report.comparison_text import (
    MAX_LINES,
    clean_line,
    describe_verdict,
    format_comparison,
    format_label,
    format_p,
    format_speed_ratio,
    list_sentences,
)
from scalebench.stats import Interval
from tests.launches import failed, machine, made, train

STEADY = [0.1, 0.1005, 0.0995, 0.1002, 0.0998]
SLOW = [each * 1.05 for each in STEADY]


def regression() -> Comparison:
    a = [*made("a", STEADY), *made("a", STEADY, gpus=2)]
    return compare(a, [*made("b", SLOW, **machine(driver_version="2")), *made("b", STEADY, gpus=2)], threshold=0.03)


def test_the_table_has_figures_interval_test_and_verdict() -> None:
    lines = format_comparison(regression()).splitlines()
    assert lines[0] == "B over A"
    head, first, second = lines[2], lines[4], lines[5]
    for word in ("strategy", "gpus", "A samples/s", "B samples/s", "B / A (95 %)", "p (Holm)", "test", "verdict"):
        assert word in head
    (pair, other) = regression().pairs
    assert f"{pair.ratio:.3f} [{pair.interval.low:.3f}, {pair.interval.high:.3f}]" in first
    assert "Welch's t, 5 and 5 launches" in first and first.endswith("REGRESSION")
    assert f"{other.ratio:.3f} [" in second and second.endswith("no difference resolved")


def test_sentences_end_with_the_verdict() -> None:
    lines = list_sentences(regression())
    assert lines[0].startswith("B over A: median of 2 pairs ")
    assert "also differs, B over A: machine.driver_version: none, 2 (1 of 2 pairs)" in lines
    assert lines[-1] == "regression: 1 of 2 pairs slower by more than 3 %, most ddp gpus=1"


@pytest.mark.parametrize(
    ("b_s", "threshold", "words"),
    [
        (SLOW, None, "1 slower, at 5 % after Holm over 1 pair"),
        (SLOW, 0.2, "no regression beyond 20 %: 1 slower, at 5 % after Holm over 1 pair"),
        (STEADY, 0.03, "no regression beyond 3 %: 1 no difference resolved, at 5 % after Holm over 1 pair"),
        (STEADY[:2], None, "1 no difference resolved, at 5 % after Holm over 1 pair"),
    ],
)
def test_verdicts_in_words(b_s: list[float], threshold: float | None, words: str) -> None:
    assert describe_verdict(compare(made("a", STEADY), made("b", b_s), threshold=threshold)) == words


def test_of_the_same_runs() -> None:
    runs = made("a", STEADY)
    assert describe_verdict(compare(runs, runs, threshold=0.03)) == "no difference: 1 pair, both sides the same runs"


def test_what_cannot_be_compared_says_why() -> None:
    found = compare(made("a", STEADY), made("b", STEADY, **train(batch_per_device=20)))
    assert describe_verdict(found).startswith(
        "not comparable: nothing in A pairs with B: closest rows differ in train.batch"
    )
    assert format_comparison(found).splitlines()[-1] == describe_verdict(found)


def test_a_failed_run_is_named() -> None:
    found = compare(
        [*made("a", STEADY), *made("a", STEADY, gpus=2)], [*made("b", SLOW), failed("b", gpus=2)], threshold=0.0
    )
    assert describe_verdict(found) == "failed run: 1 run failed, such as ddp gpus=2: failed: told to fail"
    assert "B ddp gpus=2: failed: told to fail" in list_sentences(found)


def test_what_an_interval_misses_is_told_once() -> None:
    def blocks_told(a: list[float], b: list[float]) -> list[str]:
        return [line for line in list_sentences(compare(made("a", a), made("b", b))) if "repeat" in line]

    assert len(blocks_told([0.1], [0.1])) == 1 and "misses what differs between repeats" in blocks_told([0.1], [0.1])[0]
    assert blocks_told(STEADY, STEADY) == []
    assert blocks_told([0.1] * 2, [0.1]) == [
        "note: no interval, no verdict: three repeats on one side give one (measure.repeats=3)"
    ]


def test_the_median_has_range_and_interval() -> None:
    found = [one for gpus in range(1, 7) for n, p in enumerate(("float32", "tf32"))
             for one in made("ab"[n], [0.1 / (1 + n * 0.25 * gpus)], gpus=gpus, **train(precision=p))]  # fmt: skip
    told = list_sentences(compare_by(found, "train.precision", "float32"))[0]
    assert told.startswith(
        "tf32 over float32: median of 6 pairs 1.875 [1.250, 2.500] (95 % of the median of such pairs"
    )
    assert told.endswith(", sign test), from 1.250 to 2.500")


def test_left_out_keys_are_told() -> None:
    found = compare(made("a", STEADY), made("b", STEADY, seed=1), ignore=["seed"])
    assert "note: left out of the pairing: seed" in list_sentences(found)


def test_long_lists_are_cut() -> None:
    many = [one for gpus in range(2, 40) for one in made("a", [0.1], gpus=gpus)]
    lines = list_sentences(compare([*many, *made("a", [0.1])], made("b", [0.1])))
    assert f"and {38 - MAX_LINES} more rows (--format json has all)" in lines


def test_nothing_of_a_record_moves_the_cursor_or_is_markup() -> None:
    evil = "\x1b[31m[red]\nx\ud800\x00"
    found = compare([*made("a", STEADY)], [*made("b", STEADY), failed("b", gpus=2, reason=evil)], threshold=0.0)
    told = format_comparison(found)
    assert "?[31m[red] x??" in told
    assert "\x1b" not in told and told.encode("utf-8")
    assert clean_line("a\x07b\u202ec") == "a?b?c"


def test_values_of_a_key_are_no_markup_either() -> None:
    a, b = (made(side, [0.1], **train(optimizer=name)) for side, name in (("a", "adam"), ("b", "[red]x\x1b")))
    found = compare_by([*a, *b], "train.optimizer", "adam")
    lines = format_comparison(found).splitlines()
    assert lines[0] == "[red]x? over adam" and "[red]x? samples/s" in lines[2]


@pytest.mark.parametrize(
    ("value", "interval", "words"),
    [
        (0.9524, Interval(0.9524, 0.94, 0.961), "0.952 [0.940, 0.961]"),
        (12.34, None, "12.3"),
        (1.0, Interval(1.0, 0.0, float("inf")), "1.000 [0.000, inf]"),
        (12345.6, None, "12,346"),
    ],
)
def test_ratios(value: float, interval: Interval | None, words: str) -> None:
    assert format_speed_ratio(value, interval) == words


def test_small_words() -> None:
    assert [format_p(p) for p in (None, 0.0001, 0.0123, 1.0)] == ["", "< 0.001", "0.012", "1.000"]
    assert format_label({"model": "mlp", "strategy": "ddp", "gpus": "2"}) == "mlp ddp gpus=2"
