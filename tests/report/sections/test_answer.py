"""The answer section: strategy, certainty, number of devices, loss, and nothing that the figures do not support.

After a wanted change of words, `python -m tests.report.sections.test_answer` writes golden/answers.txt anew.
"""

import dataclasses
import re
import tempfile
from pathlib import Path

import pytest

from scalebench.analysis.attribution.causes import AttributedRun
from scalebench.analysis.attribution.lost_efficiency import Part
from scalebench.analysis.load import survey
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.spec import TrainSpec
from scalebench.core.stats.estimates import Estimate
from scalebench.report.document import Paragraph, Verdict
from scalebench.report.report_data import load_report_data
from scalebench.report.sections import answer, make_charts, make_sections
from tests.builders import sweeps
from tests.report.test_golden_reports import list_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "answers.txt"


def make_runs(strategies, gpus=(1, 2, 4), repeats=3, slower=1.0, flags=None, baseline_flags=(), **changes):
    """Make the runs of a sweep; steps on several devices take `slower` times as long as usual.

    `flags` are those of runs by their devices, `baseline_flags` those of the first run.
    """
    pairs = [("bare_torch", 1), *((strategy, count) for strategy in strategies for count in gpus)]
    runs = [sweeps.run(*pair, repeat, minute=n, **changes) for repeat in range(repeats) for n, pair in enumerate(pairs)]
    for run in runs:
        run.flags += (flags or {}).get(run.scale.gpus, [])
        for rank in run.ranks if run.scale.gpus > 1 else ():
            rank.block_s = [seconds * slower for seconds in rank.block_s]
    runs[0].flags += baseline_flags
    return runs


def make_ties():
    others = [dataclasses.replace(run, run_id=f"o{run.run_id}", fingerprint=f"o{run.fingerprint}")
              for run in make_runs(["ddp_gloo"], noise=0.011) if run.scale.strategy != "bare_torch"]  # fmt: skip
    for run in others:
        run.scale.strategy = "other"
    return [*make_runs(["ddp_gloo"]), *others]


def make_fewer():
    """Four devices are slower than two."""
    runs = make_runs(["ddp_gloo"])
    for rank in (rank for run in runs if run.scale.gpus == 4 for rank in run.ranks):
        rank.block_s = [10 * seconds for seconds in rank.block_s]
    return runs


def make_batches():
    """A single run of another batch, and strong scaling; the curve that was scaled most comes first."""
    single = sweeps.run("bare_torch", 1, run_id="b", train=TrainSpec(20))
    single.scale.batch_per_device = 20
    train = TrainSpec(10, global_batch=40)
    strong = [sweeps.run("horovod_gloo", n, run_id=f"s{n}", scaling="strong", train=train) for n in (1, 2)]
    for run in strong:
        run.scale.global_batch = 40
    return [single, *make_runs(["ddp_gloo"]), *strong]


def make_precisions(precisions):
    """Each precision has its own step on two devices; (name, factor of the step, noise)."""
    runs = []
    for minute, (precision, factor, noise) in enumerate(precisions):
        for repeat in range(3):
            run = sweeps.run("ddp_gloo", 2, repeat, noise, minute=minute, run_id=f"{precision}{repeat}",
                             train=TrainSpec(10, precision=precision))  # fmt: skip
            run.fingerprint, run.workload.precision = precision, precision
            for rank in run.ranks:
                rank.block_s = [seconds * factor for seconds in rank.block_s]
            runs.append(run)
    return runs


FAILED = [sweeps.failed_run("bare_torch", 4, "unsupported"), sweeps.failed_run("simulated", 4),
          sweeps.failed_run("horovod_gloo", 4)]  # fmt: skip
CASES = {
    "taken": make_runs(["ddp_gloo", "horovod_gloo"]),
    "one device is kept": make_runs(["ddp_gloo", "horovod_gloo"], (1, 2), slower=2.5),
    "one repeat": make_runs(["ddp_gloo", "horovod_gloo"], repeats=1),
    "one repeat, slower": make_runs(["ddp_gloo"], (1, 2), 1, slower=2.5),
    "limits around 1": make_runs(["ddp_gloo"], (1, 2), slower=1.65, noise=0.2),
    "limits around 1, slower": make_runs(["ddp_gloo"], (1, 2), slower=1.71, noise=0.2),
    "no single device": [sweeps.run("ddp_gloo", 4, repeat) for repeat in range(3)],
    "one device": make_runs(["ddp_gloo"], (1,)),
    "one run": [sweeps.run("bare_torch", 1)],
    "failed": [sweeps.failed_run()],
    "more threads than cores": make_runs(["ddp_gloo"], flags={4: ["oversubscribed"]}),
    "busy baseline": make_runs(["ddp_gloo"], flags={4: ["oversubscribed"]}, baseline_flags=["busy_machine"]),
    # However much faster it is: float16 beside float32 is another training.
    "another precision": make_runs(["ddp_gloo"], flags={4: ["precision_differs"]}),
    "tie": make_ties(),
    "tie before a slower one": [
        *make_ties(),
        *(run for run in make_runs(["horovod_gloo"]) if run.scale.strategy != "bare_torch"),
    ],
    "fewer devices": make_fewer(),
    "what spoils trust": [*make_runs(["ddp_gloo"], flags={4: ["swapping"]}), *FAILED],
    "batches": make_batches(),
    "another precision is slower": make_precisions([("float32", 1.0, 0.01), ("bfloat16", 1.5, 0.01)]),
    "the fastest precision comes first": make_precisions(
        [("float32", 1.0, 0.01), ("tf32", 0.8, 0.01), ("bfloat16", 0.5, 0.01)]
    ),
    "another precision makes no difference": make_precisions([("float32", 1.0, 0.05), ("bfloat16", 1.0, 0.05)]),
}


def get_blocks(report_data):
    """Return the blocks of the answer and of its evidence."""
    return [*answer.list_verdicts(report_data), *answer.list_evidence(report_data)]


def render_case(name, folder):
    """Return both sections, and the answers that the terminal has."""
    sweeps.write_results(folder, CASES[name])
    report_data, runs = load_report_data([folder]), survey(folder)
    sentences = answer.list_terminal_sentences(make_curves(runs.pooled), runs.configurations.estimate_ratio)
    for verdict in (block for block in get_blocks(report_data) if isinstance(block, Verdict)):
        assert len(verdict.text.split()) <= 12
    sections = [
        dataclasses.replace(each, blocks=[block for block in each.blocks if getattr(block, "language", "") != "python"])
        for each in make_sections(report_data, ["answer", "evidence"])
    ]  # fmt: skip
    lines = [f"# {name}", *list_lines(sections), *(f"In the terminal: {sentence}" for sentence in sentences), ""]
    return "\n".join(lines).replace(str(folder), "FOLDER")


@pytest.mark.parametrize("name", CASES)
def test_an_answer_reads_as_it_did(name, tmp_path):
    every = re.split(r"(?m)^(?=# )", GOLDEN.read_text(encoding="utf-8"))
    (expected,) = [text for text in every if text.startswith(f"# {name}\n")]
    assert render_case(name, tmp_path) == expected


@pytest.mark.parametrize(("share", "named"), [(0.2, True), (0.5, False)])
def test_a_part_above_the_whole_loss_explains_nothing(tmp_path, monkeypatch, share, named):
    part = Part(("contention",), Estimate(0.001), Estimate(share))
    monkeypatch.setattr(AttributedRun, "significant", lambda case, name: part if name == "contention" else None)
    sweeps.write_results(tmp_path, make_runs(["ddp_gloo"]))
    report_data = load_report_data([tmp_path])
    reason = next(answer.list_verdicts(report_data)).reason
    assert reason.startswith("ddp_gloo on 4 devices: 23 % [23, 23] of ideal throughput is lost")
    (chart,) = make_charts(report_data, "attribution")
    assert ["20 % to contention" in text for text in (reason, chart.title)] == [named, named]


@pytest.mark.parametrize(("min_efficiency", "noise", "sentence"), [
    (0.5, 0.01, "up to 4 devices, the most that were measured."),
    (0.99, 0.01, "ddp_gloo keeps an efficiency of 99 % at no number of devices."),
    (0.76, 0.1, "up to 4 devices, the most that were measured (with certainty 2 devices)."),
])  # fmt: skip
def test_how_far_it_goes(tmp_path, min_efficiency, noise, sentence):
    sweeps.write_results(tmp_path, make_runs(["ddp_gloo"], noise=noise))
    blocks = get_blocks(load_report_data([tmp_path], min_efficiency))
    assert sentence in next(block.text for block in blocks if isinstance(block, Paragraph) and block.kind == "plain")


if __name__ == "__main__":
    texts = []
    for each in CASES:
        with tempfile.TemporaryDirectory() as made:
            texts.append(render_case(each, Path(made)))
    GOLDEN.write_text("".join(texts), encoding="utf-8")
