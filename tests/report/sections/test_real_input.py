"""What real input costs in the report: pairs of runs that differ in nothing but real and generated samples. And which
Datasets of users were read slowly."""

import math

import pytest

from scalebench.analysis.throughput import throughput
from scalebench.core.units import format_number
from scalebench.report.document import Paragraph, Table
from scalebench.report.sections import real_input
from tests.builders import sweeps
from tests.report.section_blocks import build_section, get_block, select_blocks


def on_dataset(dataset, step_s, repeat, gpus=2):
    """Make a run on that data set, whose steps take so long."""
    made = sweeps.run("ddp_gloo", gpus, repeat)
    made.run_id, made.fingerprint = f"{dataset}-{gpus}-{repeat}", f"{dataset}-{gpus}"
    made.workload.dataset = made.spec["dataset"]["name"] = dataset
    for rank in made.ranks:
        rank.block_s = [step_s * seconds * len(rank.block_s) / sum(rank.block_s) for seconds in rank.block_s]
    return made


def runs(real_s, real="imagenet_jpeg", generated="imagenet_synthetic", repeats=3):
    return [on_dataset(*each, repeat) for repeat in range(repeats) for each in ((real, real_s), (generated, 0.1))]


def test_the_cost_is_a_ratio_of_throughputs_and_a_longer_step(tmp_path):
    section = build_section(real_input, tmp_path, runs(0.125))
    (answer,) = select_blocks(section, Paragraph)
    end = "has 0.80 times the throughput of imagenet_synthetic under ddp_gloo on 2 devices."
    assert answer.text == f"imagenet_jpeg {end}"
    table = get_block(section, Table, "real-input")
    (row,) = table.rows
    values = {name: cell.value for name, cell in zip(table.columns, row.cells, strict=True)}
    assert values["ratio (95 %)"] == pytest.approx(0.8, rel=0.02)
    longer = values["generated samples/s"] / values["samples/s"]
    assert values["longer step"] > 0 and longer == pytest.approx(1.25, rel=0.02)


@pytest.mark.parametrize(("made", "end"), [
    (runs(0.1), "imagenet_jpeg costs nothing that is resolved under ddp_gloo on 2 devices."),
    (runs(0.125, repeats=1), "; not sure: one repeat, measure.repeats=3 decides."),
])  # fmt: skip
def test_what_is_not_sure_is_reported_as_such(made, end, tmp_path):
    (answer,) = select_blocks(build_section(real_input, tmp_path, made), Paragraph)
    assert answer.text.endswith(end)


def test_other_samples_and_other_devices_are_no_pair(tmp_path):
    unlike = [*runs(0.125, real="cifar10"), *[on_dataset("imagenet_jpeg", 0.2, repeat, 1) for repeat in range(3)]]
    assert build_section(real_input, tmp_path, unlike) is None


def test_a_dataset_that_was_read_slowly_is_named_once_beside_the_fastest_training(tmp_path):
    """One that was read faster, and one whose reading was not measured, are not."""
    made = [on_dataset(*each) for each in (("mine:slow", 0.1, 0), ("mine:slow", 0.05, 0, 4), ("mine:quick", 0.1, 0))]
    for run, rate in zip([*made, other := on_dataset("mine:arrays", 0.1, 0)], (30.0, 30.0, 1e9, None), strict=True):
        run.workload.read_samples_per_s = rate
    (remark,) = select_blocks(build_section(real_input, tmp_path, [*made, other]), Paragraph)
    rate = throughput(made[1])[0]
    assert rate is not None
    assert remark.text == (
        f"One process read mine:slow into the cache at 30.0 samples/s, and ddp_gloo on 4 devices takes "
        f"{format_number(rate)} samples/s from there. A loader that reads during training would need "
        f"{math.ceil(rate / 30):,} such processes to keep up; no figure includes that."
    )
