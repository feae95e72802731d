"""The parts of a step: fixed probes give the expected figures, and missing ones have a reason."""

import pytest

from scalebench.analysis import step_breakdown as probed
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.result import Sync
from scalebench.core.stats.estimates import Estimate
from scalebench.report import step_breakdown
from scalebench.report.document import Paragraph
from scalebench.report.report_data import load_report_data
from scalebench.report.step_breakdown import STEP_PARTS, step_interval
from tests.builders.sweeps import block_times, make_probed_run, make_probes, run, write_results
from tests.report.section_blocks import cell_texts


def cells_by_part(result):
    """Return the non-empty cells of each row by its name."""
    cells = cell_texts(step_breakdown.make_run_breakdown(result))
    return {name: [text for text in texts if text] for name, *texts in cells}


def run_without(**reasons):
    """Make a run that lacks the figures that have a reason."""
    lists = {"forward": "forward_s", "backward": "backward_s", "optimizer": "optimizer_s", "data": "fixed_batch_s"}
    lists |= {"exposed": "sync_off_s", "isolated": "isolated_sync_s", "imbalance": "local_step_s", "copy": "copy_s"}
    records = [make_probes(**{lists[name]: [] for name in reasons}, reasons=dict(reasons)) for _ in range(2)]
    return make_probed_run(*records)


@pytest.mark.parametrize(("missing", "row", "also"), [
    ("data", "data loading", []), ("forward", "forward", ["backward"]), ("backward", "backward", ["optimizer"]),
    ("optimizer", "optimizer", []), ("exposed", "exposed sync", ["sync per epoch"]), ("imbalance", "imbalance", []),
    ("isolated", "isolated sync", []), ("copy", "host-to-device copy", []),
])  # fmt: skip
def test_what_was_not_measured_is_a_dash_and_its_reason(missing, row, also):
    cells = cells_by_part(run_without(**{missing: "not [b]here[/b]"}))
    dashes = {name: texts for name, texts in cells.items() if "-" in texts}
    assert dashes == {name: ["-", "not [b]here[/b]"] for name in (row, *also)}


def test_parts_of_sync_have_a_row_or_a_reason_where_synchronization_has_parts():
    assert not {"input", "weights out", "output", "gradients in"} & set(cells_by_part(run_without()))
    reasons = {"sync_input": "copied before", "sync_output": "stays"}
    part = make_probes(sync_parts_s={"weights_out": block_times(0.009, 5)}, reasons=reasons)
    cells = cells_by_part(make_probed_run(part, part))
    assert (cells["input"], cells["output"]) == (["-", "copied before"], ["-", "stays"])
    exposed, *parts = (cells[name][0] for name in ("exposed sync", "weights out", "gradients in"))
    assert all(text.partition(" ms")[0] for text in parts)
    assert sum(float(text.split()[0]) for text in parts) == pytest.approx(float(exposed.split()[0]))


def test_the_rest_holds_what_was_not_measured():
    cells = cells_by_part(run_without(forward="no", data="no"))
    assert cells["unattributed"][-1] == "contains data loading, forward, backward, not measured"
    nothing = {"exposed": "no", "data": "no", "forward": "no", "backward": "no", "optimizer": "no"}
    assert cells_by_part(run_without(**nothing))["unattributed"] == ["-", "no part was measured"]
    result = run_without(exposed="one device has no other to synchronize with")
    assert cells_by_part(result)["unattributed"][-1] == "contains exposed sync, not measured"
    result.scale.gpus = 1
    assert "contains" not in cells_by_part(result)["unattributed"][-1]
    # A rest below zero is within noise.
    noisy = make_probes(optimizer_s=block_times(0.0066, 5, 0.002))
    name, cells = "unattributed", cells_by_part(make_probed_run(noisy, noisy))
    assert cells[name] == ["-0.10 ms [-1.89, 1.69]", "-1.0 %", "cannot be distinguished from 0"]
    assert cells["optimizer"][-1] == "cannot be distinguished from 0"
    assert cells_by_part(make_probed_run(make_probes(), make_probes()))[name] == ["1.00 ms [0.93, 1.07]", "10.0 %"]


def test_missing_figures_without_a_recorded_reason_have_a_general_one():
    result = make_probed_run(make_probes(copy_s=[0.1]), make_probes(copy_s=[0.1]), sync=Sync())
    cells = cells_by_part(result)
    assert cells["host-to-device copy"] == ["-", "too few blocks for a figure"]
    assert cells["gradient messages per epoch"] == ["-", "the gradient messages of a step are not known"]
    result.workload.steps_per_epoch = None
    for name in ("sync per epoch", "gradient messages per epoch"):
        assert cells_by_part(result)[name] == ["-", "the steps of an epoch are not known"]


def test_the_interval_of_a_step_is_that_of_throughput():
    result = make_probed_run(None, None)
    step = step_interval(result)
    assert [step.low, step.value, step.high] == pytest.approx([0.009943, 0.01, 0.010057], rel=1e-4)
    result.scale.independent = True
    assert step_interval(result) == Estimate(step.value, step.value, step.value)


def test_every_part_of_the_frame_has_a_row():
    others = (*step_breakdown.SYNC_PARTS.values(), *step_breakdown.OTHER_FIGURES)
    columns = [part.column for part in (*STEP_PARTS.values(), *others)]
    assert sorted(columns) == sorted(probed.BREAKDOWN_FIGURES)


def test_without_probes_there_is_a_sentence(tmp_path):
    result = run("ddp_gloo", 2)
    for rank in result.ranks:
        rank.probes = None
    write_results(tmp_path, [result])
    report_data = load_report_data([tmp_path])
    (sentence,) = step_breakdown.make_blocks(report_data, make_curves(report_data.pooled))
    assert isinstance(sentence, Paragraph) and "measure.probes" in sentence.text
