"""Columns computed for a row: overhead of a strategy on one device, costs of a run, utilization of its FLOPs, links."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from scalebench.core.machine.gpus import Gpu
from scalebench.core.probe_record import ProbeRecord, Profile
from scalebench.core.result import DeviceMonitorRecord, MonitorRecord, Quality
from scalebench.report.flag_text import describe_row
from scalebench.report.tables import make_configuration_table
from tests.builders.frames import frame_of_results, pool_results
from tests.builders.runs import MACHINE, rank, record


def read_cells(results, *names):
    """Return the cells of these columns, null as None, for each run."""
    table = frame_of_results(results, [Path("x")] * len(results))
    return [tuple(None if pd.isna(row[name]) else row[name] for name in names) for row in table.to_dict("records")]


def test_a_strategy_has_the_overhead_of_one_device_and_a_bare_one_only_with_other_options():
    names = "overhead_share_low", "overhead_share", "overhead_share_high"
    rows = [record(block_s=0.1), record(gpus=2, block_s=0.13), record(gpus=8, status="failed", block_s=None)]
    one, *others, alone, without = read_cells(
        [*rows, record("bare_torch", block_s=0.083), record("horovod_gloo", gpus=2)], *names
    )
    assert others == [one] * 2 and one == (None, pytest.approx(0.17), None), "limits only over repeats"
    assert alone == without == (None, None, None)
    plain, again, slow = (
        record("bare_tensorflow", block_s=block_s, baseline="bare_tensorflow", run_id=loop)
        for loop, block_s in (("custom", 0.1), ("again", 0.1), ("fit", 0.125))
    )
    for run, loop in ((plain, "custom"), (again, "custom"), (slow, "fit")):
        run.spec["strategy"]["options"] = {"loop": loop}
    assert read_cells([plain, again, slow], names[1]) == [(None,), (None,), (pytest.approx(0.2),)]
    assert read_cells([slow], names[1]) == [(None,)], "nothing to compare it with"


def test_costs_of_an_epoch_and_to_the_target():
    """1,000 samples at 400/s on two devices; 32 blocks of 40 samples took 640 J."""
    monitor = MonitorRecord(energy_j=640.0, gpu_power_w_mean=150.0)
    run = record(gpus=2, block_s=0.1, monitor=monitor, quality=Quality(time_to_target_s=36.0))
    names = "device_hours_per_epoch", "device_hours_to_target", "energy_j_per_epoch", "energy_j_to_target"
    ((*costs,),) = read_cells([run], *names)
    assert costs == pytest.approx([2 * 2.5 / 3600, 2 * 36 / 3600, 0.5 * 1000, 150 * 36])


@pytest.mark.parametrize(
    ("seen", "peaks", "expected"), [(900, [400, 300], 900), (None, [400, 300], 700), (None, [400, None], None)]
)
def test_resident_memory_is_the_sum_of_the_peaks_where_the_monitor_saw_none(seen, peaks, expected):
    ranks = [rank(number, [0.1], rss_anon_peak_bytes=peak) for number, peak in enumerate(peaks)]
    run = record(gpus=2, ranks=ranks, monitor=MonitorRecord(rss_anon_bytes_max=seen))
    assert read_cells([run], "rss_anon_bytes_max") == [(expected,)]


@pytest.mark.parametrize(("second", "sent_bytes"), [(3e9, 0.5 * 5e9), (None, None)])
def test_bytes_of_a_step_over_links(second, sent_bytes):
    """They are those of all GPUs, and null unless each was measured."""
    devices = [DeviceMonitorRecord(0, pcie_sent_bytes_per_s=2e9), DeviceMonitorRecord(1, pcie_sent_bytes_per_s=second)]
    run = record(gpus=2, block_s=1.0, monitor=MonitorRecord(devices=devices))  # blocks of two steps
    names = ("pcie_sent_bytes_per_step", "nvlink_sent_bytes_per_step")
    assert read_cells([run, record()], *names) == [(sent_bytes and pytest.approx(sent_bytes), None), (None, None)]


A100, V100, P100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB", "Tesla P100-SXM2-16GB"
RATE = 2 * 2 * 10 / 0.1  # samples/s of two devices: blocks of two steps of 10 samples in 0.1 s


def make_gpu(index, name, mig=None):
    return Gpu(index, name, None, None, None, None, None, None, None, mig=mig)


def run_on(names, precision="tf32", watched=None, device="cuda", flops=1e9, mig=None, **changes):
    """Make the record of a run on two of these GPUs; the monitor watched those with the numbers `watched`."""
    gpus = [make_gpu(index, name, mig) for index, name in enumerate(names)]
    monitor = MonitorRecord(devices=[DeviceMonitorRecord(index) for index in watched or []])
    changes = {"machine": dataclasses.replace(MACHINE, gpus=gpus), "monitor": monitor, **changes}
    result = record(gpus=2, **changes)
    result.workload.precision_used, result.workload.flops_per_sample = precision, flops
    result.scale.device = device
    return result


@pytest.mark.gpu
@pytest.mark.parametrize(("names", "precision", "watched", "peak_tflops"), [
    ([A100, A100], "tf32", None, 2 * 156), ([A100, A100], "bfloat16", None, 2 * 312),
    ([A100] * 8, "float32", None, 2 * 19.5),  # of eight alike, any two
    ([V100, A100, V100], "float16", [0, 2], 2 * 125), ([V100, A100], "float32", [0, 1], 15.7 + 19.5),
    ([None, A100, A100], "tf32", [1, 2], 2 * 156),
])  # fmt: skip
def test_utilization_is_the_share_of_the_peak_of_its_devices(names, precision, watched, peak_tflops):
    ((mfu, flags),) = read_cells([run_on(names, precision, watched)], "mfu", "flags")
    assert mfu == pytest.approx(RATE * 1e9 / (peak_tflops * 1e12), rel=1e-3)
    assert flags == ("no_tensor_cores" if precision == "float32" else None)


@pytest.mark.gpu
@pytest.mark.parametrize(("names", "changes"), [
    ([None, None], {}), (["some card", "some card"], {}), ([], {}),
    ([V100, V100], {}),  # has no TF32
    ([A100, "some card"], {}),  # unknown which of them
    ([A100, "some card"], {"watched": [0, 1]}),
    *(([A100, A100], changes) for changes in (
        {"precision": None}, {"precision": "float8"}, {"flops": None}, {"device": "cpu"}, {"mig": True},
        {"watched": [0, 7]}, {"status": "failed"}, {"block_s": None},
    )),
])  # fmt: skip
def test_utilization_is_null_where_a_part_is_unknown(names, changes):
    assert read_cells([run_on(names, **changes)], "mfu") == [(None,)]


@pytest.mark.gpu
def test_gpus_of_all_nodes_count():
    two = run_on([A100], "float32")
    two.scale.nodes = 2
    assert read_cells([two], "mfu") == [(None,)]  # the other node did not report
    two.other_machines = [dataclasses.replace(MACHINE, gpus=[make_gpu(0, V100)])]
    two.monitor.devices = [DeviceMonitorRecord(0, node=0), DeviceMonitorRecord(0, node=1)]
    assert read_cells([two], "mfu") == [(pytest.approx(RATE * 1e9 / 35.2e12, rel=1e-3),)]


@pytest.mark.gpu
@pytest.mark.parametrize(("names", "precision", "device", "is_flagged"), [
    ([A100, A100], "float32", "cuda", True), ([V100, V100], "float32", "cuda", True),
    ([P100, A100], "float32", "cuda", True),  # one is enough
    ([P100], "float32", "cuda", False),  # has none
    (["NVIDIA GeForce RTX 3090"], "float32", "cuda", False),  # theirs are hardly faster
    (["some card", None], "float32", "cuda", False), ([A100, A100], "tf32", "cuda", False),
    ([A100, A100], "bfloat16+float32", "cuda", False), ([A100, A100], None, "cuda", False),
    ([A100, A100], "float32", "cpu", False),
])  # fmt: skip
def test_idle_tensor_cores_are_flagged(names, precision, device, is_flagged):
    ((flags,),) = read_cells([run_on(names, precision, device=device)], "flags")
    assert (flags == "no_tensor_cores") == is_flagged


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel_s", "gpu_util", "is_flagged"), [
    (0.006, 0.9, False), (0.04, 0.2, True), (None, 0.2, False), (None, 0.9, True), (None, None, True),
])  # fmt: skip
def test_tensor_cores_are_no_advice_where_a_step_waits_for_its_host(kernel_s, gpu_util, is_flagged):
    """Steps take 50 ms; NVML counts as busy what the profile has seen in detail."""
    run = run_on([A100, A100], "float32", watched=[0, 1])
    for device in run.monitor.devices:
        device.gpu_util_mean = gpu_util
    for each in run.ranks:
        each.probes = ProbeRecord(profile=Profile(2, 0.06, kernel_s))
    ((flags,),) = read_cells([run], "flags")
    assert (flags == "no_tensor_cores") == is_flagged


@pytest.mark.gpu
def test_where_utilization_is_shown_and_how_it_is_pooled():
    above = run_on([A100, A100], flops=312e12 / RATE * 1.25)
    assert read_cells([above], "mfu", "flags") == [(pytest.approx(1.25, rel=1e-3), "mfu_above_1")]
    (row,) = frame_of_results([above], [Path("x")]).to_dict("records")
    assert describe_row(row, explains=True)[0].startswith("mfu above 1: more FLOP/s than the peak")
    result = run_on([A100, A100], flops=312e12 / RATE / 4)
    table = make_configuration_table(pool_results([result], [Path("x")]))
    assert table.rows[0].cells[table.columns.index("MFU")].text == "25 %"
    assert "MFU" not in make_configuration_table(pool_results([record()], [Path("x")])).columns
    runs = [run_on([A100, A100], block_s=seconds, repeat=number, run_id=str(number))
            for number, seconds in enumerate([0.1, 0.2, 0.4])]  # fmt: skip
    (row,) = pool_results(runs, [Path(str(number)) for number in range(3)]).to_dict("records")
    assert row["mfu"] == pytest.approx(row["throughput_samples_per_s"] * 1e9 / 312e12, rel=1e-9)
