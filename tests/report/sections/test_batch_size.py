"""The section batch_size, and its sentences."""

import dataclasses

import pytest

from scalebench.analysis.scaling_curves import Curve, make_curves
from scalebench.core.spec import HardwareSpec
from scalebench.report.document import Chart
from scalebench.report.sections import batch_size
from scalebench.report.sections.batch_size import MAX_SENTENCES, describe_curve, list_terminal_sentences
from scalebench.sweeps.console import Console
from tests.builders import sweeps
from tests.builders.runs import simulated_config
from tests.builders.sweeps import ratio_of_rows
from tests.report.section_blocks import build_section, select_blocks


def make_run(batch, gpus=1, strategy="ddp_gloo", bucket=25.0, **changes):
    """A run of `batch` samples a device whose steps take as long as one of ten: batch times the throughput."""
    train = dataclasses.replace(simulated_config().train, batch_per_device=batch)
    result = sweeps.run(strategy, gpus, train=train, **changes)
    result.run_id = "-".join([strategy, str(gpus), str(batch), f"{bucket:g}", *changes])
    for rank in result.ranks:
        rank.block_samples = [2 * batch] * len(rank.block_s)
    result.spec["strategy"]["options"] = {"bucket_cap_mb": bucket}
    result.fingerprint = result.run_id
    return result


def make_saturating_runs(batch, gpus=1):
    """Runs of 10 to 10,000 samples a device; throughput rises with the batch up to this one, and then no more."""
    runs = [make_run(size, gpus) for size in (10, 100, 1000, 10000)]
    for run in runs:
        slower = max(1.0, run.scale.batch_per_device / batch)
        for rank in run.ranks:
            rank.block_s = [slower * seconds for seconds in rank.block_s]
    return runs


def test_one_batch_is_no_curve(tmp_path):
    assert build_section(batch_size, tmp_path / "usual") is None
    assert build_section(batch_size, tmp_path / "failed", [sweeps.failed_run()]) is None
    # Strong scaling gives each number of devices a batch of its own, and another strategy is another configuration.
    runs = [sweeps.run("ddp_gloo", n, **sweeps.strong_scaling(40, n)) for n in (1, 2, 4)]
    assert build_section(batch_size, tmp_path / "strong", [*runs, make_run(50, strategy="horovod_gloo")]) is None


def test_options_and_hardware_are_never_mixed(tmp_path):
    """Alone in its chart over devices, each of the two buckets would be named `ddp_gloo`."""
    assert build_section(batch_size, tmp_path / "x", [make_run(10), make_run(100, bucket=1.0)]) is None
    runs = [make_run(batch, bucket=bucket) for batch in (10, 100) for bucket in (25.0, 1.0)]
    other = [make_run(batch, hardware=HardwareSpec("other")) for batch in (100, 1000)]
    charts = select_blocks(build_section(batch_size, tmp_path / "y", [*runs, *other]), Chart, "batch-size-thr")
    assert [(series.name, list(series.x)) for chart in charts for series in chart.series] == [
        ("ddp_gloo, 1 device", [10, 100]),
        ("ddp_gloo bucket_cap_mb=1.0, 1 device", [10, 100]),
        ("ddp_gloo, 1 device", [100, 1000]),
    ]


def make_curve(rates, width=0.01, gpus=1, start_s=None):
    """Limits lie off by the share `width`; without `start_s` its steps are not known."""
    rows = [
        {"batch_per_device": batch, "throughput_samples_per_s": rate, "gpus": gpus, "flags": None,
         "interval_over": "blocks" if width is None else "repeats", "repeats": 1 if width is None else 3,
         "throughput_low": None if width is None else rate * (1 - width),
         "throughput_high": None if width is None else rate * (1 + width),
         "step_s": None if start_s is None else batch * gpus / rate}
        for batch, rate in rates.items()
    ]  # fmt: skip
    return Curve(f"ddp, {gpus} devices", {}, {"model": "mlp"}, rows)


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        (
            {75: 50, 150: 80, 350: 93, 700: 100},
            "saturating batch: 350 per device (ddp, 1 devices): 93 % of the highest throughput, that of 700, "
            "and no neighbour could be it by its interval",
        ),
        (
            {75: 50, 150: 89.5, 350: 95, 700: 100, 1000: 99},
            "saturating batch: 350 per device (ddp, 1 devices): 95 % of the highest throughput, that of 700; "
            "by their intervals 150 could be it",
        ),
        (
            {75: 100, 150: 99},
            "saturating batch: 75 per device or less (ddp, 1 devices): no measured batch has a higher "
            "throughput, and no neighbour could be it by its interval",
        ),
        (
            {75: 50, 5000: 100},
            "no saturating batch up to 5,000 per device (ddp, 1 devices): 75 has less than 90 % of its "
            "throughput, which may rise further, and no neighbour could be it by its interval",
        ),
    ],
)
def test_the_sentence_about_the_saturating_batch(rates, sentence):
    assert describe_curve(make_curve(rates), ratio_of_rows) == sentence
    assert str(describe_curve(make_curve(rates, width=None), ratio_of_rows)).endswith(
        ", which is not sure: one repeat, measure.repeats=3 decides"
    )
    assert str(describe_curve(make_curve(rates), ratio_of_rows, "mlp")).count("(mlp with ddp, 1 devices)") == 1


def test_the_step_time_fit_follows_the_saturating_batch():
    rates = {b: b / (0.01 + 1e-5 * b) for b in (100, 1000, 3000, 4000)}  # n_1/2 1,000, and 100,000 samples/s at most
    sentence = str(describe_curve(make_curve(rates, start_s=0.01), ratio_of_rows))
    assert "; n_1/2 1,000" in sentence and sentence.endswith(
        "; the highest is 80 % of the limit that the line of its steps approaches"
    )
    assert describe_curve(make_curve({75: 50}), ratio_of_rows) is None
    assert "n_1/2" not in str(describe_curve(make_curve({10: 10.0, 20: 18.0, 40: 30.0, 80: 40.0}), ratio_of_rows))


def list_sentences(*results):
    configurations = sweeps.pool(results)
    return list_terminal_sentences(make_curves(configurations.make_frame()), configurations.estimate_ratio)


def test_a_sweep_over_batches_has_a_line_for_each_curve():
    assert [line.partition(":")[0] for line in list_sentences(make_run(10), make_run(20))] == [
        "no saturating batch up to 20 per device (ddp_gloo, 1 device)"
    ]
    assert list_sentences(make_run(10), make_run(10, strategy="horovod_gloo"), sweeps.failed_run()) == []
    of_one_device = list_sentences(make_run(10), make_run(20), sweeps.run("ddp_gloo", 2))
    assert len(of_one_device) == 1
    many = [make_run(batch, strategy=f"s{number}") for number in range(MAX_SENTENCES + 2) for batch in (10, 20)]
    sentences = list_sentences(*many)
    assert len(sentences) == MAX_SENTENCES + 1 and sentences[-1].startswith("saturating batches: 2 more")


def test_the_terminal_shows_it(tmp_path, capsys):
    sweeps.write_results(tmp_path, [make_run(10), make_run(20)])
    Console().print_table([tmp_path])
    lines = capsys.readouterr().out.splitlines()
    (sentence,) = [
        line for line in lines if line.startswith("no saturating batch up to 20 per device (ddp_gloo, 1 device)")
    ]
    assert lines.index(sentence) < next(i for i, line in enumerate(lines) if line.startswith("results:"))
