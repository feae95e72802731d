"""The answer section: strategy, certainty, number of devices, loss, and nothing that the figures do not support."""

import dataclasses
import re

import pytest

from scalebench.analysis import load as frames
from scalebench.analysis.attribution.lost_efficiency import Part
from scalebench.analysis.columns import FRAME_COLUMNS, make_frame
from scalebench.analysis.load import survey
from scalebench.analysis.repeats import pool_results
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.spec import TrainSpec
from scalebench.core.stats.estimates import Estimate
from scalebench.report.document import Code, Paragraph, Table, Verdict
from scalebench.report.report_data import ReportData, load_report_data
from scalebench.report.sections import answer
from scalebench.report.sections.answer import MAX_ANSWERS
from tests.builders import sweeps


def get_blocks(report_data):
    """Return the blocks of the answer and of its evidence."""
    sections = [answer.section(report_data), answer.evidence_section(report_data)]
    assert [section.id for section in sections if section] == ["answer", "evidence"][: 1 + (sections[1] is not None)]
    return [block for section in sections if section for block in section.blocks]


def answer_runs(folder, *results, min_efficiency=0.8):
    sweeps.write_results(folder, results)
    return get_blocks(load_report_data([folder], min_efficiency))


def get_paragraphs(blocks, kind="answer"):
    return [block.text for block in blocks if isinstance(block, Paragraph) and block.kind == kind]


def tables(blocks):
    return [block for block in blocks if isinstance(block, Table)]


def verdicts(blocks):
    return [block for block in blocks if isinstance(block, Verdict)]


def codes(blocks):
    return [block for block in blocks if isinstance(block, Code)]


def make_runs(strategies, gpus=(1, 2, 4), repeats=3, slower=1.0, **changes):
    """Make the runs of a sweep; steps on several devices take `slower` times as long as usual."""
    pairs = [("bare_torch", 1), *((strategy, count) for strategy in strategies for count in gpus)]
    runs = [sweeps.run(*pair, repeat, minute=n, **changes) for repeat in range(repeats) for n, pair in enumerate(pairs)]
    for rank in (rank for run in runs if run.scale.gpus > 1 for rank in run.ranks):
        rank.block_s = [seconds * slower for seconds in rank.block_s]
    return runs


def get_answer(folder, *results):
    """Return the answer's paragraph, which the terminal shows too."""
    (text,) = get_paragraphs(answer_runs(folder, *results))
    runs = survey(folder)
    sentences = answer.list_terminal_sentences(make_curves(runs.pooled), runs.configurations.estimate_ratio)
    assert sentences == [text]
    return text


def test_what_is_surely_faster_than_one_device_is_taken(tmp_path):
    blocks = answer_runs(tmp_path, *make_runs(["ddp_gloo", "horovod_gloo"]))
    (text,) = get_paragraphs(blocks)
    assert re.fullmatch(
        r"Take ddp_gloo on 4 devices: 3\.\d\d \[3\.\d\d, 3\.\d\d\] times as fast as bare_torch on one device\.", text
    )
    assert [code.language for code in codes(blocks)] == ["sh", "python", "sh"]
    assert codes(blocks)[0].text.endswith("measure.repeats=3") and "gpus=4" in codes(blocks)[0].text


def test_one_device_is_kept_if_no_number_of_devices_is_faster(tmp_path):
    runs = make_runs(["ddp_gloo", "horovod_gloo"], (1, 2), slower=2.5)
    text = get_answer(tmp_path, *runs)
    assert re.fullmatch(
        r"Stay on one device: bare_torch\. Slower than that: ddp_gloo on 2 devices by 3\d % \[3\d, 3\d\] "
        r"and horovod_gloo on 2 devices by 39 % \[\d\d, \d\d\]\.", text
    )  # fmt: skip
    assert codes(answer_runs(tmp_path / "again", *runs)) == [], "no lines of a loser"


ONE_REPEAT = ["one repeat, measure.repeats=3 decides"]
HEADLINES = {
    "take": (
        make_runs(["ddp_gloo"]),
        r"Take ddp_gloo on 4 devices: 3\.0\d times as fast as one\.", [], "ddp_gloo on 4 devices",
    ),
    "stay": (
        make_runs(["ddp_gloo"], (1, 2), slower=2.5),
        "Stay on one device: bare_torch is the fastest.", [], "bare_torch on 1 device",
    ),
    "one repeat": (
        make_runs(["ddp_gloo"], repeats=1),
        "Not sure yet: ddp_gloo on 4 devices looks the fastest.", ONE_REPEAT, "ddp_gloo on 4 devices",
    ),
    "one repeat, slower": (
        make_runs(["ddp_gloo"], (1, 2), 1, slower=2.5),
        "Stay on one device for now: more were not faster.", ONE_REPEAT, "bare_torch on 1 device",
    ),
    "limits around 1": (
        make_runs(["ddp_gloo"], (1, 2), slower=1.65, noise=0.2),
        "Not sure yet: ddp_gloo on 2 devices looks the fastest.",
        ["the limits of the speedup are on both sides of 1, measure.repeats=6 narrows them"], "ddp_gloo on 2 devices",
    ),
    "no single device": (
        [sweeps.run("ddp_gloo", 4, repeat) for repeat in range(3)],
        "Unknown whether more devices pay: one device was not measured.", [], "ddp_gloo on 4 devices",
    ),
    "one device": (
        make_runs(["ddp_gloo"], (1,)),
        "Only one device was measured: bare_torch is the fastest.", [], "bare_torch on 1 device",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("runs", "headline", "doubts", "rate_of"), HEADLINES.values(), ids=HEADLINES)
def test_the_verdict_has_a_dozen_words(tmp_path, runs, headline, doubts, rate_of):
    (verdict,) = verdicts(answer_runs(tmp_path, *runs))
    assert re.fullmatch(headline, verdict.text) and len(verdict.text.split()) <= 12
    assert verdict.doubts == doubts and verdict.group == ""
    assert verdict.tiles[0].note == rate_of


def test_figures_of_the_verdict_are_those_of_the_frame(tmp_path):
    blocks = answer_runs(tmp_path, *make_runs(["ddp_gloo"]))
    pooled = survey(tmp_path).pooled.set_index(["strategy", "gpus"]).loc[("ddp_gloo", 4)]
    rate, speedup, efficiency = verdicts(blocks)[0].tiles
    assert (rate.figure, rate.unit) == (f"{pooled['throughput_samples_per_s']:,.0f}", "samples/s")
    assert speedup.figure == f"{pooled['speedup_bare']:.2f}"
    assert speedup.interval == f"{pooled['speedup_bare_low']:.2f} to {pooled['speedup_bare_high']:.2f}"
    assert efficiency.figure == f"{100 * pooled['efficiency_bare']:.0f}"
    limits = [f"{100 * pooled[f'efficiency_bare_{end}']:.0f}" for end in ("low", "high")]
    assert efficiency.interval == f"{limits[0]} to {limits[1]} %"
    alone = verdicts(answer_runs(tmp_path / "alone", sweeps.run("ddp_gloo", 4)))[0].tiles
    assert [tile.figure for tile in alone[1:]] == ["not measured"] * 2


@pytest.mark.parametrize(("share", "named"), [(0.2, True), (0.5, False)])
def test_a_part_above_the_whole_loss_explains_nothing(tmp_path, monkeypatch, share, named):
    part = Part(("contention",), Estimate(0.001), Estimate(share))
    monkeypatch.setattr(answer, "find_largest_loss", lambda case: part)
    reason = verdicts(answer_runs(tmp_path, *make_runs(["ddp_gloo"])))[0].reason
    assert reason.startswith("ddp_gloo on 4 devices: 23 % [23, 23] of ideal throughput is lost")
    assert ("20 % to contention" in reason) == named


def test_an_interval_with_1_in_it_is_no_verdict(tmp_path):
    text = get_answer(tmp_path, *make_runs(["ddp_gloo"], (1, 2), slower=1.71, noise=0.2))
    assert text.startswith("Stay on one device for now: ddp_gloo on 2 devices is ")
    assert text.endswith(
        "times as fast as bare_torch on one device; more repeats narrow the limits: measure.repeats=6."
    )


def test_one_repeat_is_no_verdict(tmp_path):
    blocks = answer_runs(tmp_path, *make_runs(["ddp_gloo", "horovod_gloo"], repeats=1))
    (text,) = get_paragraphs(blocks)
    assert re.fullmatch(
        r"Not sure that more devices pay: ddp_gloo on 4 devices and horovod_gloo on 4 devices are 3\.\d\d and 2\.\d\d "
        r"times as fast as bare_torch on one device; one repeat, measure\.repeats=3 decides\.", text
    )  # fmt: skip
    (command,) = codes(blocks)
    assert command.text.endswith("measure.repeats=3"), "and no lines of code"


def test_disturbed_rows_carry_no_verdict(tmp_path):
    """Four devices on two cores, and a baseline beside other programs."""
    runs = make_runs(["ddp_gloo"])
    for run in runs:
        run.flags += ["oversubscribed"] * (run.scale.gpus == 4)
    text = get_answer(tmp_path / "four", *runs)
    assert text.startswith("Take ddp_gloo on 2 devices: 1.")
    assert text.endswith("No verdict on ddp_gloo on 4 devices: more threads than cores.")
    runs[0].flags.append("busy_machine")
    text = get_answer(tmp_path / "busy", *runs)
    (verdict,) = verdicts(get_blocks(load_report_data([tmp_path / "busy"])))
    assert "other programs kept the processors busy (bare_torch on 1 device)" in verdict.doubts
    assert text.startswith("Not sure that more devices pay: ") and "other programs kept the processors busy" in text


def test_another_precision_than_requested_carries_no_verdict(tmp_path):
    """However much faster it is: float16 beside float32 is another training."""
    runs = make_runs(["ddp_gloo"])
    for run in runs:
        run.flags += ["precision_differs"] * (run.scale.gpus == 4)
    text = get_answer(tmp_path, *runs)
    assert text.startswith("Take ddp_gloo on 2 devices: 1.")
    assert text.endswith("No verdict on ddp_gloo on 4 devices: it computed in another precision than requested.")


def test_a_tie_is_no_winner(tmp_path):
    runs = make_runs(["ddp_gloo"])
    others = [dataclasses.replace(run, run_id=f"o{run.run_id}", fingerprint=f"o{run.fingerprint}")
              for run in make_runs(["ddp_gloo"], noise=0.011) if run.scale.strategy != "bare_torch"]  # fmt: skip
    for run in others:
        run.scale.strategy = "other"
    blocks = answer_runs(tmp_path, *runs, *others)
    (text,) = get_paragraphs(blocks)
    assert re.match(
        r"(ddp_gloo|other) on 4 devices and (ddp_gloo|other) on 4 devices are equally fast within noise: ", text
    )
    assert "Take" not in text
    assert tables(blocks)[0].rows[-1].cells[5].text == "tied within noise"
    assert "(1.00 [" in tables(blocks)[0].rows[-1].cells[6].text


@pytest.mark.parametrize(
    ("min_efficiency", "noise", "sentence"),
    [
        (0.5, 0.01, "up to 4 devices, the most that were measured."),
        (0.99, 0.01, "ddp_gloo keeps an efficiency of 99 % at no number of devices."),
        (0.76, 0.1, "up to 4 devices, the most that were measured (with certainty 2 devices)."),
    ],
)
def test_how_far_it_goes(tmp_path, min_efficiency, noise, sentence):
    runs = make_runs(["ddp_gloo"], noise=noise)
    assert sentence in get_paragraphs(answer_runs(tmp_path, *runs, min_efficiency=min_efficiency), "plain")[0]


def test_fewer_devices_that_train_faster_are_taken(tmp_path):
    runs = make_runs(["ddp_gloo"])
    for rank in (rank for run in runs if run.scale.gpus == 4 for rank in run.ranks):
        rank.block_s = [10 * seconds for seconds in rank.block_s]
    assert get_answer(tmp_path, *runs).startswith("Take ddp_gloo on 2 devices: 1.7")


def test_what_spoils_trust_stands_beside_it(tmp_path):
    runs = make_runs(["ddp_gloo"])
    runs[-1].flags.append("swapping")
    expected = [sweeps.failed_run("bare_torch", 4, "unsupported"), sweeps.failed_run("simulated", 4)]
    blocks = answer_runs(tmp_path, *runs, sweeps.failed_run("horovod_gloo", 4), *expected)
    assert verdicts(blocks)[0].doubts == ["the machine swapped (ddp_gloo on 4 devices)"]
    assert "Not measured on 4 devices: horovod_gloo (failed)." in get_paragraphs(blocks, "plain")
    (text,) = get_paragraphs(blocks, "warning")
    assert text == "Limits of these figures: the machine swapped (ddp_gloo on 4 devices)."


def test_weak_and_strong_are_answered_apart(tmp_path):
    weak = make_runs(["ddp_gloo"])
    train_spec = TrainSpec(10, global_batch=40)
    strong = [sweeps.run("horovod_gloo", n, run_id=f"s{n}", scaling="strong", train=train_spec) for n in (1, 2)]
    for run in strong:
        run.scale.global_batch = 40
    blocks = answer_runs(tmp_path, *weak, *strong)
    assert [verdict.group.rpartition("batch ")[2] for verdict in verdicts(blocks)] == ["10 per device", "40 in all"]
    answers = get_paragraphs(blocks)
    assert [("weak scaling" in text, "strong scaling, batch 40 in all" in text) for text in answers] == [
        (True, False), (False, True),
    ]  # fmt: skip
    assert "horovod_gloo on 2 devices is 1.60 times as fast as horovod_gloo on one device" in answers[1]
    plain = get_paragraphs(get_blocks(load_report_data([tmp_path])), "plain")
    assert any("of ideal throughput, in which each device is as fast as one alone, is lost" in text for text in plain)


def test_one_row_only_failed_rows_and_none(tmp_path):
    blocks = answer_runs(tmp_path / "one", sweeps.run("ddp_gloo", 4))
    assert get_paragraphs(blocks)[0].startswith(
        "Whether more devices pay is unknown: nothing was measured on one device"
    )
    assert "The loss is unknown: no baseline on one device was measured." in get_paragraphs(blocks, "plain")[0]
    bare = answer_runs(tmp_path / "bare", sweeps.run("bare_torch", 1))
    assert "More than one device was not measured." in get_paragraphs(bare)[0] and codes(bare) == tables(bare) == []
    assert get_paragraphs(answer_runs(tmp_path / "failed", sweeps.failed_run()), "warning") == [
        "No run was successful, so there is no answer: the problems say why."
    ]
    nothing = make_frame([], [*FRAME_COLUMNS, "repeats"])
    assert answer.section(ReportData([tmp_path], nothing, nothing)) is None


def test_a_sweep_of_many_groups_is_short(tmp_path):
    batches = range(1, MAX_ANSWERS + 6)
    runs = [sweeps.run("bare_torch", 1, run_id=f"{n}", train=TrainSpec(n)) for n in batches]
    for number, run in zip(batches, runs, strict=True):
        run.scale.batch_per_device = number
    report_data = ReportData(
        [tmp_path], frames.frame_of_results(runs, [tmp_path] * len(runs)), pool_results(runs, [tmp_path] * len(runs))
    )
    blocks = get_blocks(report_data)
    assert len(get_paragraphs(blocks)) == MAX_ANSWERS
    (rest,) = tables(blocks)
    assert (rest.id, len(rest.rows), rest.columns[0]) == ("answer-others", 5, "of")
    assert all(len(row.cells) == len(rest.columns) for row in rest.rows)


def test_what_was_scaled_comes_first(tmp_path):
    single = sweeps.run("bare_torch", 1, run_id="b", train=TrainSpec(20))
    single.scale.batch_per_device = 20
    answers = get_paragraphs(answer_runs(tmp_path, single, *make_runs(["ddp_gloo"])))
    assert ["10 per device" in text for text in answers] == [True, False]
