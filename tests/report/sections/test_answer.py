"""The answer section: strategy, certainty, number of devices, loss, and nothing that the figures do not support."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalebench.analysis import load as frames
from scalebench.analysis.columns import FRAME_COLUMNS, make_frame
from scalebench.analysis.repeats import pool_results
from scalebench.core.result import Result
from scalebench.core.spec import TrainSpec
from scalebench.report.document import Block, Code, Paragraph, Table
from scalebench.report.report_data import ReportData, load_report_data
from scalebench.report.sections import answer
from scalebench.report.sections.answer import DOUBTS, MAX_ANSWERS
from tests.builders import sweeps


def get_blocks(report_data: ReportData) -> Sequence[Block]:
    section = answer.section(report_data)
    assert section.id == "answer"
    return section.blocks


def answer_runs(folder: Path, *results: Result, min_efficiency: float = 0.8) -> Sequence[Block]:
    sweeps.write_results(folder, results)
    return get_blocks(load_report_data([folder], min_efficiency))


def get_paragraphs(blocks: Sequence[Block], kind: str = "answer") -> list[str]:
    return [block.text for block in blocks if isinstance(block, Paragraph) and block.kind == kind]


def tables(blocks: Sequence[Block]) -> list[Table]:
    return [block for block in blocks if isinstance(block, Table)]


def codes(blocks: Sequence[Block]) -> list[Code]:
    return [block for block in blocks if isinstance(block, Code)]


def make_runs(strategies: Sequence[str], gpus: Sequence[int] = (1, 2, 4), **changes: Any) -> list[Result]:
    return [sweeps.run("bare_torch", 1, **changes), *(sweeps.run(s, n, **changes) for s in strategies for n in gpus)]


def test_a_tie_is_no_winner(tmp_path: Path) -> None:
    runs = make_runs(["ddp_gloo"]) + [
        dataclasses.replace(sweeps.run("ddp_gloo", n, noise=0.011), run_id=f"o{n}", fingerprint=f"o{n}")
        for n in (1, 2, 4)
    ]
    for run in runs[4:]:
        run.scale.strategy = "other"
    blocks = answer_runs(tmp_path, *runs)
    (text,) = get_paragraphs(blocks)
    assert "are equally fast within noise." in text and "tied within noise with" in text and "Take" not in text
    assert tables(blocks)[0].rows[-1].cells[5].text == "tied within noise"
    assert "(1.00 [" in tables(blocks)[0].rows[-1].cells[6].text


def test_without_intervals_it_is_not_sure(tmp_path: Path) -> None:
    blocks = answer_runs(tmp_path, *make_runs(["ddp_gloo", "horovod_gloo"], blocks=3))
    assert "ddp_gloo was the fastest, which is not sure." in get_paragraphs(blocks)[0]
    assert (
        "with certainty at none" in get_paragraphs(blocks)[0]
        and DOUBTS["no_interval"] in get_paragraphs(blocks, "warning")[0]
    )


@pytest.mark.parametrize(
    ("min_efficiency", "noise", "sentence"),
    [
        (0.5, 0.01, "up to 4 devices, the most that were measured."),
        (0.99, 0.01, "ddp_gloo keeps an efficiency of 99 % at no number of devices."),
        (0.765, 0.1, "up to 4 devices, the most that were measured (with certainty 2 devices)."),
    ],
)
def test_how_far_it_goes(tmp_path: Path, min_efficiency: float, noise: float, sentence: str) -> None:
    runs = make_runs(["ddp_gloo"], noise=noise)
    assert sentence in get_paragraphs(answer_runs(tmp_path, *runs, min_efficiency=min_efficiency))[0]


def test_more_devices_that_train_slower_do_not_pay(tmp_path: Path) -> None:
    slow = dataclasses.replace(sweeps.run("ddp_gloo", 4), ranks=[])
    for number in range(4):
        rank = sweeps.run("ddp_gloo", 4).ranks[number]
        slow.ranks.append(dataclasses.replace(rank, block_s=[10 * s for s in rank.block_s]))
    (text,) = get_paragraphs(answer_runs(tmp_path, *make_runs(["ddp_gloo"], (1, 2)), slow))
    assert re.search(
        r"So many devices do not pay: they are 0\.1\d \[0\.1\d, 0\.\d\d\] times as fast as ddp_gloo on 2 devices", text
    )


def test_more_devices_that_may_be_no_faster_are_not_praised(tmp_path: Path) -> None:
    """Four devices of 5 % scatter that train about as fast as two."""
    even = dataclasses.replace(sweeps.run("ddp_gloo", 4), ranks=[])
    for rank in sweeps.run("ddp_gloo", 4, noise=0.2).ranks:
        even.ranks.append(dataclasses.replace(rank, block_s=[1.8 * s for s in rank.block_s]))
    (text,) = get_paragraphs(answer_runs(tmp_path, *make_runs(["ddp_gloo"], (1, 2)), even))
    assert "That so many devices pay is not sure: they are " in text and text.endswith(
        "as fast as ddp_gloo on 2 devices."
    )


def test_what_spoils_trust_stands_beside_it(tmp_path: Path) -> None:
    runs = make_runs(["ddp_gloo"])
    runs[-1].flags.append("oversubscribed")
    expected = [sweeps.failed_run("bare_torch", 4, "unsupported"), sweeps.failed_run("simulated", 4)]
    (text,) = get_paragraphs(answer_runs(tmp_path, *runs, sweeps.failed_run("horovod_gloo", 4), *expected), "warning")
    line = (
        "Limits of these figures: ddp_gloo: more threads than cores; not measured on 4 devices: horovod_gloo (failed)."
    )
    assert text == line


def test_weak_and_strong_are_answered_apart(tmp_path: Path) -> None:
    weak = make_runs(["ddp_gloo"])
    train_spec = TrainSpec(10, global_batch=40)
    strong = [sweeps.run("horovod_gloo", n, run_id=f"s{n}", scaling="strong", train=train_spec) for n in (1, 2)]
    for run in strong:
        run.scale.global_batch = 40
    answers = get_paragraphs(answer_runs(tmp_path, *weak, *strong))
    assert [("weak scaling" in text, "strong scaling, batch 40 in all" in text) for text in answers] == [
        (True, False), (False, True),
    ]  # fmt: skip
    assert "40 in all. Only horovod_gloo was measured on 2 devices." in answers[1]
    assert "as many devices, each as fast as one alone, would do is lost" in answers[1]


def test_one_row_only_failed_rows_and_none(tmp_path: Path) -> None:
    blocks = answer_runs(tmp_path / "one", sweeps.run("ddp_gloo", 4))
    assert "The loss is unknown: no baseline on one device was measured." in get_paragraphs(blocks)[0]
    bare = answer_runs(tmp_path / "bare", sweeps.run("bare_torch", 1))
    assert "More than one device was not measured." in get_paragraphs(bare)[0] and codes(bare) == tables(bare) == []
    assert get_paragraphs(answer_runs(tmp_path / "failed", sweeps.failed_run()), "warning") == [
        "No run was successful, so there is no answer: the problems say why."
    ]
    nothing = make_frame([], [*FRAME_COLUMNS, "repeats"])
    assert answer.section(ReportData([tmp_path], nothing, nothing)) is None


def test_a_sweep_of_many_groups_is_short(tmp_path: Path) -> None:
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


def test_what_was_scaled_comes_first(tmp_path: Path) -> None:
    single = sweeps.run("bare_torch", 1, run_id="b", train=TrainSpec(20))
    single.scale.batch_per_device = 20
    answers = get_paragraphs(answer_runs(tmp_path, single, *make_runs(["ddp_gloo"])))
    assert ["10 per device" in text for text in answers] == [True, False]
