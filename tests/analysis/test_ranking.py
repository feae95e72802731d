"""Who is the best: always the fastest, surely only beyond noise, and never against what it may not be compared with."""

import math

import pytest

from scalebench.analysis.columns import FRAME_COLUMNS, make_frame
from scalebench.analysis.ranking import list_advice, rank_curves
from scalebench.analysis.scaling_curves import make_curves
from scalebench.analysis.verdicts import explain_no_verdict
from scalebench.core.stats.log_means import LogMean
from scalebench.report.sections.answer import QUIET, describe_advice, describe_ranking, list_doubts
from tests.builders.sweeps import ratio_of_rows

BASE = {
    "status": "ok", "model": "mlp", "dataset": "random", "hardware": "local", "scaling": "weak", "framework": "torch",
    "batch_per_device": 10, "gpus": 2, "nodes": 1, "feed": "host", "precision": "float32", "repeats": 3,
    "interval_over": "repeats", "flags": None,
}  # fmt: skip


def cells(strategy, rate, width=0.01, **changes):
    """A row whose limits are a factor of 1 + `width` off."""
    limits = {} if width is None else {"throughput_low": rate / (1 + width), "throughput_high": rate * (1 + width)}
    return {**BASE, "strategy": strategy, "throughput_samples_per_s": rate, **limits, **changes}


def ranked(*rows):
    return rank_curves(make_curves(make_frame(list(rows), [*FRAME_COLUMNS, "repeats"])), ratio_of_rows)


def only(*rows):
    (contest,) = ranked(*rows)
    return contest


def test_the_fastest_beyond_noise_is_the_best():
    contest = only(cells("ddp", 31_167.0), cells("mirrored", 40_828.0), cells("horovod_mpi", 20_000.0))
    assert (contest.best, contest.gpus, contest.certainty) == ("mirrored", 2, "best")
    assert [rival.name for rival in contest.rivals] == ["ddp", "horovod_mpi"]
    text = "At 2 devices: mirrored, 40,828 samples/s ± 1.0 %, 1.31 [1.29, 1.33] times as fast as the next (ddp)."
    assert describe_ranking(contest) == text
    assert "within repeats" in contest.test and "Bonferroni over 2 comparisons" in contest.test
    contest = only(cells("ddp", 1000.0), cells("mirrored", 1008.0), cells("parameter_server", 500.0))
    assert (contest.best, contest.certainty) == ("mirrored", "tied")
    assert [rival.name for rival in contest.tied] == ["ddp"]
    assert describe_ranking(contest) == (
        "At 2 devices: mirrored, 1,008 samples/s ± 1.0 %, tied within noise with ddp (1.01 [0.99, 1.02]), "
        "2.02 [1.98, 2.05] times as fast as the first that is slower beyond noise (parameter_server)."
    )
    alone = only(cells("ddp", 12.34, gpus=1))
    assert (alone.certainty, alone.rivals, alone.test) == ("alone", [], "")
    assert describe_ranking(alone) == "At 1 device: ddp, 12.3 samples/s ± 1.0 %; nothing else was measured there."
    assert ranked() == [] and ranked({**cells("ddp", 1.0), "status": "failed"}) == []


@pytest.mark.parametrize(("change", "reason"), [
    ({"repeats": 1, "interval_over": "blocks"}, "one repeat, measure.repeats=3 decides"),
    ({"repeats": 2, "interval_over": None}, "2 repeats without an interval, measure.repeats=3 decides"),
    ({"flags": "hot_at_start busy_machine"}, "other programs kept the processors busy"),
    ({"flags": "oversubscribed"}, "more threads than cores"),
])  # fmt: skip
def test_a_row_that_does_not_hold_when_run_again_gives_no_verdict(change, reason):
    slower = cells("ddp", 1000.0, **change)
    contest = only(slower, cells("mirrored", 3000.0))
    assert (contest.certainty, contest.rivals[0].verdict) == ("not sure", "no verdict")
    text = f"At 2 devices: mirrored, 3,000 samples/s ± 1.0 %, not sure against ddp (3.00): {reason} (ddp)."
    assert describe_ranking(contest) == text
    among_three = only(slower, cells("mirrored", 3000.0), cells("horovod", 2990.0))
    assert among_three.certainty == "not sure" and [rival.name for rival in among_three.undecided] == ["ddp"]
    best = only(cells("ddp", 1000.0), {**cells("mirrored", 3000.0), **change})
    assert best.certainty == "not sure" and describe_ranking(best).endswith(f": {reason} (mirrored).")


def test_the_advice_takes_the_one_device_that_the_ranking_calls_the_best():
    """Within repeats ddp is ahead of horovod, whose throughput is larger by what the machine did in between."""
    rows = [cells("ddp", 1000.0, gpus=1, run_id="d1"), cells("horovod", 1001.0, gpus=1, run_id="h1"),
            cells("ddp", 1900.0, run_id="d2")]  # fmt: skip
    levels = {"d1": 0.02, "h1": 0.0, "d2": 0.7}

    def estimate_ratio(row, base):
        return LogMean(levels[row["run_id"]] - levels[base["run_id"]], 1e-6, 10)

    (advice,) = list_advice(make_curves(make_frame(rows, [*FRAME_COLUMNS, "repeats"])), estimate_ratio)
    assert advice.one_device is not None and advice.one_device[0] == advice.rankings[0].best == "ddp"


@pytest.mark.parametrize(
    ("single", "flags", "kind"),
    [(1000.0, "", "stay"), (1000.0, "busy_machine", "unsure"), (400.0, "busy_machine", "take")],
)
def test_other_programs_leave_it_open_whether_one_device_is_the_fastest(single, flags, kind):
    """They take from the larger group more than from one device, so that only its advantage holds in spite of them."""
    others = {"flags": flags, "cpu_cores_others_mean": 1.26, "other_programs": "chrome python"}
    rows = [cells("ddp", single, gpus=1, in_turns=True, run_id="1"),
            cells("ddp", 700.0, in_turns=True, run_id="2", **others)]  # fmt: skip
    levels = {row["run_id"]: math.log(row["throughput_samples_per_s"]) for row in rows}

    def estimate_ratio(row, base):
        return LogMean(levels[row["run_id"]] - levels[base["run_id"]], 1e-6, 10, in_rounds=True)

    advice = list_advice(make_curves(make_frame(rows, [*FRAME_COLUMNS, "repeats"])), estimate_ratio)
    (sentence,) = describe_advice(advice, estimate_ratio)
    assert advice[0].kind == kind
    assert ("beside other programs that took 1.3 cores: chrome, python" in sentence) == (flags != "")
    assert (QUIET in sentence) == (kind == "unsure") == (QUIET in list_doubts(advice[0]))


@pytest.mark.parametrize("apart", [
    {"model": "resnet50"}, {"dataset": "other"}, {"hardware": "alpha"}, {"batch_per_device": 20}, {"gpus": 4},
    {"scaling": "strong", "global_batch": 20}, {"feed": "device"}, {"precision": "bfloat16"},
], ids=lambda changes: next(iter(changes)))  # fmt: skip
def test_incomparable_curves_are_ranked_separately(apart):
    contest = ranked(cells("ddp", 1000.0), cells("mirrored", 3000.0, **apart))
    assert sorted(one.row["strategy"] for one in contest) == ["ddp", "mirrored"]
    assert all(one.certainty == "alone" for one in contest)


def test_frameworks_and_options_are_rivals_and_controls_only_of_each_other():
    rows = [cells("ddp", 1000.0), cells("ddp", 1500.0, options="bucket_cap_mb=1")]
    assert only(*rows, cells("mirrored", 1200.0, framework="tensorflow")).best == "ddp bucket_cap_mb=1"
    contest = only(cells("independent_torch", 2000.0), cells("simulated", 9000.0), cells("ddp", 1000.0))
    assert (contest.best, contest.certainty) == ("ddp", "alone")
    assert only(cells("simulated", 9000.0)).best == "simulated"
    assert only(cells("of_a_plugin", 9000.0), cells("ddp", 10.0)).best == "of_a_plugin"


def test_rows_that_differ_in_the_hooks_that_they_ran_are_not_compared():
    less, more = ({"flags": flags, "repeats": 3, "interval_over": "repeats"} for flags in ("hooks_left_out", ""))
    assert explain_no_verdict(less, less) == explain_no_verdict(more, more) == ""
    assert explain_no_verdict(less, more).startswith("not the same work: hooks of its LightningModule")
