"""The tables of the studies: their arithmetic holds, every row says where it is from, and names are ours."""

import math

import pytest

from scalebench.analysis import published
from scalebench.core.config_files import list_options
from scalebench.core.errors import InputError

STUDIES = published.list_studies()
ALL = published.load_published(STUDIES)
ROWS = [{name: None if str(cell) == "<NA>" else cell for name, cell in row.items()} for row in ALL.to_dict("records")]
# Printed wrongly by the study, and told so in the row's remark.
MIXED = [("cifar10_batch_sizes", 2, 4096)]
ROUNDED = {"tf_cnn_best": 0.01}  # efficiency "79 %" of a speedup of 4.774 on 6


def key(row):
    return row["table"], row["gpus"], row["batch_per_device"]


def test_every_row_has_a_source_and_a_figure():
    for row in ROWS:
        assert row["source"] and row["table"]
        assert any(row[name] is not None for name in published.PUBLISHED_FIGURES) != (row["remark"] == "error")
        assert (row["value"] is None) == (row["quantity"] is None)
        assert set((row["derived"] or "").split()) <= set(published.PUBLISHED_COLUMNS)


def test_efficiency_is_speedup_over_gpus():
    checked = 0
    for row in ROWS:
        if row["speedup"] is None or row["efficiency"] is None or row["gpus"] is None:
            continue
        checked += 1
        near = math.isclose(row["speedup"] / row["gpus"], row["efficiency"], abs_tol=ROUNDED.get(row["table"], 0.006))
        assert near != (key(row) in MIXED), row
        assert key(row) not in MIXED or "4 and 5" in row["remark"]
    assert checked > 70


def test_speedup_is_the_ratio_of_throughputs():
    checked = 0
    for row in ROWS:
        if row["throughput_samples_per_s"] is None or row["speedup"] is None:
            continue
        (base,) = [other for other in ROWS if is_base(other, row)]
        ratio = row["throughput_samples_per_s"] / base["throughput_samples_per_s"]
        assert math.isclose(ratio, row["speedup"], abs_tol=0.006), row
        checked += 1
    assert checked > 40


def is_base(other, row):
    """The row that a speedup was divided by: one GPU of that table, with its method."""
    if other["gpus"] != 1 or any(other[name] != row[name] for name in ("study", "table", "model", "hardware")):
        return False
    if row["table"] == "memory_clock":
        return bool(other["settings"] == "hardware.device_ids=[0]")
    same = other["method"].split(",")[0] == row["method"].split(",")[0]
    return same or row["study"] == "parallel_strategies"


def test_weak_and_strong_scaling_are_those_of_the_studies():
    """Keras rows for ImageNet kept the batch of all GPUs, tf_cnn_benchmarks and the CIFAR-10 network that of each."""
    for row in ROWS:
        if row["table"] == "imagenet_synthetic":
            keras = not row["method"].startswith("tf_cnn")
            assert row["scaling"] == ("strong" if keras else "weak"), row
            assert row["global_batch"] == (32 if keras else 32 * row["gpus"])
        elif row["study"] == "keras_multi_gpu" and (row["gpus"] or 1) > 1 and row["table"] != "kuza55_mlp":
            assert row["scaling"] == "weak", row
        if row["batch_per_device"] is not None and row["global_batch"] is not None:
            assert row["global_batch"] == row["batch_per_device"] * row["gpus"], row


def test_names_are_those_of_scalebench_and_hardware_is_explained():
    failed = [row for row in ROWS if row["remark"] == "error"]
    assert [(row["strategy"], row["gpus"]) for row in failed] == [("kuza55_ps_cpu", 6), ("kuza55_ps_gpu", 6)] * 2
    for group in ("model", "dataset", "strategy"):
        assert {row[group] for row in ROWS if row[group]} <= set(list_options(group))
    for row in ROWS:
        assert row["hardware"] is None or row["hardware"] in published.load_study(row["study"]).machines


def test_an_unknown_study_and_none():
    with pytest.raises(InputError, match="did you mean 'keras_multi_gpu'"):
        published.load_published(["keras_multigpu"])
    assert published.load_published([]).empty and len(published.load_published(["thesis", "thesis"])) == 24
