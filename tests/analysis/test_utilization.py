"""Model FLOPs utilization of a run: by hand, null where a part of it is unknown, and flagged above 1."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from scalebench.analysis.load import frame_of_results
from scalebench.analysis.repeats import pool_results
from scalebench.analysis.rows import link_cells
from scalebench.core.machine.gpus import Gpu
from scalebench.core.result import DeviceMonitorRecord, MonitorRecord
from scalebench.report.flag_text import describe_row
from scalebench.report.tables import make_configuration_table
from scalebench.report.terminal import list_headline
from tests.builders.runs import MACHINE, record

pytestmark = pytest.mark.gpu
A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"
RATE = 2 * 2 * 10 / 0.1  # samples/s of two devices: blocks of two steps of 10 samples in 0.1 s


def make_gpu(index, name, mig=None):
    return Gpu(index, name, None, None, None, None, None, None, None, mig=mig)


def run_on(
    names, precision = "tf32", flops = 1e9,
    watched = None, device = "cuda", mig = None, **changes
):  # fmt: skip
    """Make the record of a run on two of these GPUs; the monitor watched those with the numbers `watched`."""
    gpus = [make_gpu(index, name, mig) for index, name in enumerate(names)]
    monitor = MonitorRecord(devices=[DeviceMonitorRecord(index) for index in watched or []])
    changes = {"machine": dataclasses.replace(MACHINE, gpus=gpus), "monitor": monitor, **changes}
    result = record(gpus=2, **changes)
    result.workload.precision_used, result.workload.flops_per_sample = precision, flops
    result.scale.device = device
    return result


def read_mfu(result):
    (row,) = frame_of_results([result], [Path("x")])[["mfu", "flags"]].to_dict("records")
    return (None if pd.isna(row["mfu"]) else row["mfu"]), (None if pd.isna(row["flags"]) else row["flags"])


@pytest.mark.parametrize(
    ("names", "precision", "watched", "peak_tflops"),
    [
        ([A100, A100], "tf32", None, 2 * 156),
        ([A100, A100], "bfloat16", None, 2 * 312),
        ([A100] * 8, "float32", None, 2 * 19.5),  # of eight alike, any two
        ([V100, A100, V100], "float16", [0, 2], 2 * 125),
        ([V100, A100], "float32", [0, 1], 15.7 + 19.5),
        ([None, A100, A100], "tf32", [1, 2], 2 * 156),
    ],
)
def test_the_arithmetic(names, precision, watched, peak_tflops):
    mfu, flags = read_mfu(run_on(names, precision, 1e9, watched))
    assert mfu == pytest.approx(RATE * 1e9 / (peak_tflops * 1e12), rel=1e-3)
    assert flags == ("no_tensor_cores" if precision == "float32" else None)


@pytest.mark.parametrize(
    "result",
    [
        run_on([None, None]),
        run_on(["some card", "some card"]),
        run_on([V100, V100]),  # has no TF32
        run_on([A100, A100], precision=None),
        run_on([A100, A100], precision="float8"),
        run_on([A100, A100], flops=None),
        run_on([A100, A100], device="cpu"),
        run_on([A100, A100], mig=True),
        run_on([]),
        run_on([A100, "some card"]),  # unknown which of them
        run_on([A100, "some card"], watched=[0, 1]),
        run_on([A100, A100], watched=[0, 7]),
        run_on([A100, A100], status="failed"),
        run_on([A100, A100], block_s=None),
    ],
)
def test_null_where_a_part_is_unknown(result):
    assert read_mfu(result)[0] is None


def test_gpus_of_all_nodes_count():
    two = run_on([A100], "float32", watched=None)
    two.scale.nodes = 2
    assert read_mfu(two)[0] is None  # the other node did not report
    two.other_machines = [dataclasses.replace(MACHINE, gpus=[make_gpu(0, V100)])]
    two.monitor.devices = [DeviceMonitorRecord(0, node=0), DeviceMonitorRecord(0, node=1)]
    assert read_mfu(two)[0] == pytest.approx(RATE * 1e9 / 35.2e12, rel=1e-3)


def test_more_than_the_peak_is_flagged_with_advice():
    result = run_on([A100, A100], flops=312e12 / RATE * 1.25)
    mfu, flags = read_mfu(result)
    assert mfu == pytest.approx(1.25, rel=1e-3) and flags == "mfu_above_1"
    (row,) = frame_of_results([result], [Path("x")]).to_dict("records")
    assert describe_row(row, explains=True)[0].startswith("mfu above 1: more FLOP/s than the peak")


@pytest.mark.parametrize(
    ("names", "precision", "device", "is_flagged"),
    [
        ([A100, A100], "float32", "cuda", True),
        ([V100, V100], "float32", "cuda", True),
        (["Tesla P100-SXM2-16GB", A100], "float32", "cuda", True),  # one is enough
        (["Tesla P100-SXM2-16GB"], "float32", "cuda", False),  # has none
        (["NVIDIA GeForce RTX 3090"], "float32", "cuda", False),  # theirs are hardly faster
        (["some card", None], "float32", "cuda", False),
        ([A100, A100], "tf32", "cuda", False),
        ([A100, A100], "bfloat16+float32", "cuda", False),
        ([A100, A100], None, "cuda", False),
        ([A100, A100], "float32", "cpu", False),
    ],
)
def test_idle_tensor_cores_are_flagged(names, precision, device, is_flagged):
    assert (read_mfu(run_on(names, precision, device=device))[1] == "no_tensor_cores") == is_flagged


def test_where_it_is_shown():
    result = run_on([A100, A100], flops=312e12 / RATE / 4)
    table = make_configuration_table(pool_results([result], [Path("x")]))
    assert table.rows[0].cells[table.columns.index("MFU")].text == "25 %"
    expected = "25.0 % of 312 TFLOP/s, the peak of its devices at tf32"
    assert ("MFU", expected) in list_headline(result)
    assert "MFU" not in make_configuration_table(pool_results([record()], [Path("x")])).columns
    assert "MFU" not in dict(list_headline(record()))


def test_repeats_are_pooled_as_their_throughput_is():
    runs = [
        run_on([A100, A100], block_s=seconds, repeat=number, run_id=str(number))
        for number, seconds in enumerate([0.1, 0.2, 0.4])
    ]
    (row,) = pool_results(runs, [Path(str(number)) for number in range(3)]).to_dict("records")
    assert row["mfu"] == pytest.approx(row["throughput_samples_per_s"] * 1e9 / 312e12, rel=1e-9)


@pytest.mark.parametrize(("second", "sent_bytes"), [(3e9, 0.5 * 5e9), (None, None)])
def test_bytes_of_a_step_over_links(second, sent_bytes):
    """They are those of all GPUs, and null unless each was measured."""
    devices = [DeviceMonitorRecord(0, pcie_sent_bytes_per_s=2e9), DeviceMonitorRecord(1, pcie_sent_bytes_per_s=second)]
    cells = link_cells(MonitorRecord(devices=devices), step_s=0.5)
    assert cells["pcie_sent_bytes_per_step"] == sent_bytes and cells["nvlink_sent_bytes_per_step"] is None
    assert set(link_cells(MonitorRecord(), step_s=0.5).values()) == {None}
