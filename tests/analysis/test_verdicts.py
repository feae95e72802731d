"""One rule for a verdict on two rows: `show`, rankings and advice have it by decide_ratio, `compare` by its pairs."""

import math

import pytest

from scalebench.analysis.comparison import compare, compare_by
from scalebench.analysis.comparison.rows import load_compared_runs
from scalebench.analysis.load import load_configurations
from scalebench.analysis.ranking import list_advice
from scalebench.analysis.scaling_curves import make_curves, plain_rows
from scalebench.analysis.verdicts import decide_ratio, explain_no_verdict
from tests.builders.runs import rank, record
from tests.builders.sweeps import write_results

ROUNDS = {1: 1.0, 2: 1.5, 3: 0.7, 4: 1.3}  # seconds of the machine, by round


def run(strategy, repeat, factor, cohort="c", flags="", blocks=(1,)):
    """A run whose blocks take `factor` times the seconds of the machine; `blocks` in each round, in turns."""
    counts = {number: blocks[k % len(blocks)] for k, number in enumerate(ROUNDS)}
    rounds = [number for number, count in counts.items() for _ in range(count)]
    seconds = [0.1 * factor * ROUNDS[number] for number in rounds]
    turns = {"block_rounds": rounds, "block_started_at_s": [float(number) for number in rounds]} if cohort else {}
    minute = 2 * repeat + (strategy != "bare_torch")
    return record(
        strategy, 1, ranks=[rank(0, seconds, **turns)], repeat=repeat, run_id=f"{strategy}-{repeat}",
        started_at=f"2026-01-01T00:{minute:02}:00+00:00", cohort=f"{cohort}{repeat}" if cohort else None,
        flags=flags.split(),
    )  # fmt: skip


def write_sweep(folder, results):
    """Return the ratio of ddp over bare_torch as `show` has it, and the pair that `compare` makes of both."""
    write_results(folder, results)
    configurations = load_configurations(folder)
    rows = {row["strategy"]: row for row in plain_rows(configurations.make_frame())}
    shown = decide_ratio(rows["ddp"], rows["bare_torch"], configurations.estimate_ratio)
    (pair,) = compare_by(load_compared_runs([folder]), "strategy", "bare_torch").pairs
    return configurations, shown, pair


@pytest.mark.parametrize("cohort", ["c", None])
@pytest.mark.parametrize(("repeats", "flag", "in_turns", "apart"), [
    (1, "", False, False), (2, "", True, True), (3, "", True, True),
    (3, "busy_machine", True, False), (3, "foreign_process", True, False),
    (3, "oversubscribed", False, False), (3, "shared_gpu", False, False), (3, "quota_used_up", False, False),
    (3, "drifts", True, True),
])  # fmt: skip
def test_show_and_compare_judge_by_one_rule(tmp_path, repeats, flag, in_turns, apart, cohort):
    """One of the repeats has the flag. `in_turns`, `apart`: whether such runs carry a verdict in turns and without."""
    noise = [1.0, 1.01, 0.995]
    results = [
        one for k in range(repeats) for one in
        (run("bare_torch", k, 1.0, cohort), run("ddp", k, 1.2 * noise[k], cohort, flags=flag if k == 0 else ""))
    ]  # fmt: skip
    _, shown, pair = write_sweep(tmp_path, results)
    assert shown.has_limits is (in_turns if cohort else apart)
    assert pair.verdict == ("slower" if shown.has_limits and pair.p < 0.05 else pair.verdict)
    assert (pair.verdict == "no verdict") is not shown.has_limits
    assert pair.ratio == pytest.approx(shown.value)
    if shown.has_limits:
        assert pair.interval.limits == pytest.approx(shown.limits)
    two_sides = compare(
        load_compared_runs([str(tmp_path / str(k)) for k in range(0, 2 * repeats, 2)]),
        load_compared_runs([str(tmp_path / str(k)) for k in range(1, 2 * repeats, 2)]), ["strategy"],
    ).pairs[0]  # fmt: skip
    assert (two_sides.verdict, two_sides.ratio) == (pair.verdict, pytest.approx(pair.ratio))


def test_compare_forms_ratios_within_rounds(tmp_path):
    """b is 3 % slower in each round, and had its long slots while the machine was fast."""
    results = [
        one for k in range(3) for one in
        (run("bare_torch", k, 1.0, blocks=(1, 3, 1, 3)), run("ddp", k, 1.03 + 0.001 * k, blocks=(3, 1, 3, 1)))
    ]  # fmt: skip
    _, shown, pair = write_sweep(tmp_path, results)
    assert pair.a.rate < pair.b.rate, "the quotient of both throughputs is above 1"
    assert pair.ratio == pytest.approx(shown.value) == pytest.approx(1 / 1.031, rel=1e-3)
    assert (pair.verdict, pair.test) == ("slower", "paired t, 3 repeats in turns")


def test_what_other_programs_do_within_rounds_is_a_label(tmp_path):
    results = [
        one for k in range(3) for one in
        (run("bare_torch", k, 1.0), run("ddp", k, 0.8 + 0.001 * k, flags="busy_machine"))
    ]  # fmt: skip
    configurations, *_ = write_sweep(tmp_path, results)
    rows = plain_rows(configurations.make_frame())
    assert [row["in_turns"] for row in rows] == [True, True] and explain_no_verdict(*rows) == ""
    assert explain_no_verdict(*rows, in_rounds=False) == "other programs kept the processors busy"
    (advice,) = list_advice(make_curves(configurations.make_frame()), configurations.estimate_ratio)
    assert advice.rankings[0].certainty == "best"
    notes = compare_by(load_compared_runs([tmp_path]), "strategy", "bare_torch").notes
    assert notes == ["strategy ddp: other programs kept the processors busy in 3 of 3 runs"]


def test_ratios_between_cohorts_are_quotients_to_the_baseline_of_each(tmp_path):
    """The machine is half as fast for the second cohort, which holds horovod and another start of the baseline."""
    results = []
    for k in range(3):
        results += [run("bare_torch", k, 1.0 + 0.01 * k, "x"), run("ddp", k, 0.5 + 0.006 * k, "x")]
        late = [run("bare_torch", k, 2.0 + 0.02 * k, "y"), run("horovod", k, 1.25 + 0.01 * k, "y")]
        for each in late:
            each.run_id, each.started_at = f"late-{each.run_id}", each.started_at.replace("T00", "T01")
        results += late
    write_results(tmp_path, results)
    configurations = load_configurations(tmp_path)
    rows = {row["strategy"]: row for row in plain_rows(configurations.make_frame())}
    ratio = configurations.estimate_ratio(rows["ddp"], rows["horovod"])
    own = [configurations.estimate_ratio(rows[name], rows["bare_torch"]) for name in ("ddp", "horovod")]
    assert math.exp(ratio.mean) == pytest.approx(1.25, rel=0.02) and ratio.in_rounds
    assert ratio.variance == pytest.approx(own[0].variance + own[1].variance)
    assert all(each.in_rounds for each in own)
