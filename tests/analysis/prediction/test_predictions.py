"""Predictions of made-up sweeps: probes and links, and what limits them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalebench.analysis.prediction import predictions
from scalebench.analysis.prediction.curve_models import fit_half_batch, fit_link_rate, group_rates_by_link, sync_kind
from scalebench.analysis.scaling_curves import make_curves
from scalebench.core.config_files import read_yaml
from scalebench.core.errors import InputError
from scalebench.core.machine.gpus import Gpu
from tests.builders import sweeps
from tests.builders.parallelism_runs import ddp_run
from tests.builders.runs import record

ALPHA = {
    "name": "alpha", "gpus_per_node": 8, "gpu_memory_bytes": 40e9,
    "links": {"intra_node_bytes_per_s": 300e9, "inter_node_bytes_per_s": 50e9, "intra_node": "NVLink 3"},
}  # fmt: skip
HARDWARE_FILES = sorted((Path(__file__).parents[3] / "conf" / "hardware").glob("*.yaml"))


def make_runs(strategies=("ddp_gloo",), gpus=(1, 2), **changes):
    return [sweeps.run(name, count, repeat, **changes) for name in strategies for count in gpus for repeat in range(3)]


def make_read(runs):
    by_id = {run.run_id: run for run in runs}
    return make_curves(sweeps.pool(runs).make_frame()), lambda row: by_id[row["run_id"]]


def predict(runs, **changes):
    (group,) = predictions.predict_curves(*make_read(runs), **changes)
    return group


def predict_one(runs, **changes):
    (prediction,) = predict(runs, **changes).predictions
    return prediction


def rates(prediction, *counts):
    return prediction.predict_rates(counts).throughput


def test_measured_points_are_met_and_more_devices_are_less_certain():
    prediction = predict_one(make_runs())
    actual = prediction.predict_rates([2, 4, 8, 64])
    assert actual.throughput[0] == pytest.approx(2 * sweeps.BATCH / sweeps.step_s("ddp_gloo", 2), rel=0.01)
    assert (np.diff(actual.throughput) > 0).all() and (np.diff(actual.efficiency) < 0).all()
    assert (np.diff(actual.high / actual.low) > 0).all()
    forecast = prediction.forecast(2)
    assert forecast.efficiency.value == actual.efficiency[0] == pytest.approx(0.9, rel=0.01)
    assert forecast.throughput == prediction.predict_rate(2)


def test_links_are_measured_else_those_of_the_hardware():
    links = predict_one(make_runs()).extrapolation.model.links
    assert links.bytes_per_s == pytest.approx(613_764 / 0.002) and links.network_bytes_per_s is None
    alpha = predict_one(make_runs(), hardware=ALPHA)
    links = alpha.extrapolation.model.links
    assert (links.devices_per_node, links.bytes_per_s, links.network_bytes_per_s) == (8, 240e9, 35e9)
    assert "nodes, links and memory of alpha; but computation at the pace of the CPU workers" in alpha.remarks[0]
    workers = predict_one(make_runs(), hardware={**ALPHA, "devices": "cpu"})
    assert workers.remarks[0].endswith("; devices as fast as those measured")
    assert rates(alpha, 64) > rates(predict_one(make_runs()), 64)


def test_rates_are_those_of_a_backend_on_as_many_devices_of_a_machine():
    link = {"hardware": "cpu", "machine": "a", "framework": "torch", "backend_used": "gloo", "gpus": 2, "nodes": 1,
            "sync_isolated_s": 0.04}  # fmt: skip
    run = ddp_run(8, 0.1, messages=4)
    rows = [link, {**link, "gpus": 4}, {**link, "sync_isolated_s": None}, {**link, "gpus": 1},
            {**link, "backend_used": "mpi"}]  # fmt: skip
    rates = group_rates_by_link(rows, lambda _: run)
    expected = [(("gloo", 2), [1e8]), (("gloo", 4), [1.5e8]), (("mpi", 2), [1e8])]
    assert [(key[3:5], of_link) for key, of_link in rates.items()] == expected
    assert fit_link_rate([1e8, 1e8]) == pytest.approx(1e8) and fit_link_rate([]) is None

    def read_deleted(row):
        raise InputError("deleted")

    assert group_rates_by_link(rows, read_deleted) == {}


def test_one_device_is_predicted_with_links_alone_and_never_ranked():
    names = ("ddp_gloo", "horovod_gloo")
    one = predict(make_runs(names, (1,)))
    assert not one.predictions and all("has no links" in reason for reason in one.reasons.values())
    alpha = predict(make_runs(names, (1,)), hardware=ALPHA)
    assert len(alpha.predictions) == 2 and predictions.rank_predictions(alpha.predictions, 8) == []
    two = predict(make_runs(names)).predictions
    assert [name for name, _ in predictions.rank_predictions(two, 8)] == [*names]


@pytest.mark.parametrize(("strategy", "reason"), [
    *((name, "how many bytes it sends is not known: measure gpus=2") for name in
      ("ddp_gloo", "fsdp_gloo", "central_storage_cpu")),
    ("tensor_parallel", "no formula says how a model scales that is cut: measure gpus=2"),
])  # fmt: skip
def test_one_device_whose_bytes_nobody_counted_is_not_predicted(strategy, reason):
    runs = make_runs((strategy,), (1,))
    for run in runs:
        run.workload.gradient_bytes = None
    assert predict(runs, hardware=ALPHA).reasons[strategy].endswith(reason)


def test_runs_without_probes_take_the_rate_of_the_hardware():
    runs = make_runs()
    for run in runs:
        for rank in run.ranks:
            rank.probes = None
        run.spec["hardware"]["links"] = {"intra_node_bytes_per_s": 1e9}
    prediction = predict_one(runs)
    assert prediction.extrapolation.model.links.bytes_per_s == pytest.approx(0.7e9)
    assert math.isfinite(rates(prediction, 8)[0])
    without = {"name": "cpu", "links": {"inter_node": None}}
    for hardware, reason in (
        (without, "hardware cpu has no links: set links.inter_node_bytes_per_s in its YAML"),
        ({**ALPHA, "links": {**ALPHA["links"], "kind": "rope"}}, "links.kind=rope should be one of nvlink"),
        ({**ALPHA, "links": {"inter_node_bytes_per_s": "50 GB/s"}}, "bytes per second, not None and 50 GB/s"),
    ):  # fmt: skip
        assert reason in predict(make_runs(), hardware=hardware).reasons["ddp_gloo"]


def test_one_process_has_no_more_devices_than_a_node():
    runs = make_runs(("mirrored",))
    for run in runs:
        run.spec["strategy"]["processes"] = "one_for_all"
    prediction = predict_one(runs, hardware=ALPHA)
    assert [prediction.forecast(count).fits for count in (4, 8, 16)] == [True, True, False]
    assert prediction.forecast(16).limited_by == "one node"
    assert prediction.list_remarks(16)[-1].endswith("at most the 8 of a node")
    assert "nothing between nodes" not in " ".join(prediction.list_remarks(16))
    assert predictions.rank_predictions([prediction], 16) == [] and prediction.find_reach(0.01, 64).by_figures == 8


def test_strong_scaling_ends_where_the_samples_do():
    prediction = predict_one(make_runs())
    rows = [{**row, "scaling": "strong", "global_batch": 20} for row in prediction.curve.rows]
    strong = replace(prediction, curve=replace(prediction.curve, rows=rows))
    assert [strong.forecast(count).batch for count in (4, 20, 32)] == [5, 1, None]
    assert strong.predict_rate(32) is None and strong.forecast(32).throughput is None


def test_checks_predict_each_row_from_the_smaller_ones():
    curves, read = make_read(make_runs(gpus=(1, 2, 4)))
    (check,) = predictions.check_curves(curves, read)  # from one device nothing is known of its links
    assert [point.devices for point in check.seen] == [1, 2] and check.row["gpus"] == 4
    assert abs(check.error) < 0.1 and check.holds


def on_two_cores(runs, **hardware):
    for run in runs:
        cores = {"cpus_per_node": 2, "cpus_per_device": 1}
        run.spec["hardware"] = {"devices": "cpu", "gpus_per_node": 2, **cores, **hardware}
    return runs


def test_workers_that_share_cores_take_turns_on_them():
    curves, read = make_read(on_two_cores(make_runs(gpus=(1, 2, 4))))
    (check,) = predictions.check_curves(curves, read)
    two_workers = curves[0].rows[1]["throughput_samples_per_s"]
    assert check.predicted.value == pytest.approx(two_workers, rel=0.01)  # four on two cores
    seen = predict_one(on_two_cores(make_runs()))
    apart = rates(seen, 2, 4, 8)
    assert (np.diff(apart) > 0).all()  # two on each node
    sharing = predict_one(on_two_cores(make_runs(), nodes_share_cores=True))
    shared = rates(sharing, 2, 4, 8)
    assert (shared[1:] < shared[0]).all()  # which now wait for a network
    assert shared == pytest.approx(apart[:1].repeat(3), rel=0.1) and sharing.forecast(8).limited_by == "host"
    four = predict_one(on_two_cores(make_runs(), gpus_per_node=4, cpus_per_node=4))
    assert rates(four, 4) == pytest.approx(apart[1:2], rel=0.1)


def test_one_worker_that_has_all_cores_is_met(monkeypatch):
    """Two workers wait for each other on the cores that one alone uses: their rate is not a limit for one."""
    monkeypatch.setitem(sweeps.EFFICIENCY, "ddp_gloo", 0.3)
    prediction = predict_one(on_two_cores(make_runs(), this_machine=True, max_nodes=1))
    one, two, four = rates(prediction, 1, 2, 4)
    assert [one, two] == pytest.approx([prediction.find_measured(count) for count in (1, 2)], rel=1e-6)
    assert two == pytest.approx(0.6 * one, rel=0.02) and four == pytest.approx(two, rel=0.05)
    assert prediction.find_measured(4) is None and prediction.list_missed() == []
    assert prediction.list_remarks(4) == []  # workers of one machine are on one node


def test_cores_of_other_hardware():
    runs = on_two_cores(make_runs())
    target = {**ALPHA, "devices": "cpu", "cpus_per_node": 4}
    targets = [{**target, "cpus_per_node": cores} for cores in (4, 8, None)]
    four, eight, unknown = (predict_one(runs, hardware=each).forecast(8) for each in targets)
    assert four.throughput.value == pytest.approx(eight.throughput.value / 2, rel=0.2)
    on_gpus = predict_one(runs, hardware={**ALPHA, "cpus_per_node": 1}).forecast(8)
    assert [each.limited_by == "host" for each in (four, unknown, on_gpus)] == [True, False, False]


def on_gpus(runs, model="NVIDIA A100-SXM4-40GB", device="cuda"):
    """Return the runs as of a machine with such GPUs, made on them or on its cores."""
    for run in runs:
        run.scale.device = run.spec["hardware"]["devices"] = device
        run.machine = replace(run.machine, gpus=[Gpu(0, model, None, None, None, None, None, None, None)])
    return runs


def test_gpus_of_other_hardware_are_compared_by_their_peaks():
    cores = predict_one(on_gpus(make_runs(), device="cpu"), hardware=ALPHA)
    for path in HARDWARE_FILES:
        hardware = {**read_yaml(path), "links": ALPHA["links"]}
        (remark,) = predict_one(on_gpus(make_runs()), hardware=hardware).remarks
        faster = "times as fast, by their peak FLOP/s, as those measured"
        assert remark.endswith(faster if hardware["gpu_model"] else "devices as fast as those measured"), path
        of_cores = predict_one(on_gpus(make_runs(), device="cpu"), hardware=hardware)
        assert "times as fast" not in of_cores.remarks[0], path
        assert of_cores.extrapolation.model.sample_s == cores.extrapolation.model.sample_s


@pytest.mark.parametrize(("model", "speed"), [("Tesla K80", 4.37 / 19.5), ("H100 80GB HBM3", 67 / 19.5)])
def test_efficiency_on_other_devices_is_over_one_of_them(model, speed):
    one = predict_one(on_gpus(make_runs()), hardware=ALPHA).predict_rates([1, 64])
    other = predict_one(on_gpus(make_runs()), hardware={**ALPHA, "gpu_model": model}).predict_rates([1, 64])
    assert other.throughput[0] == pytest.approx(one.throughput[0] * speed, rel=0.01)
    assert other.efficiency[0] == pytest.approx(1) and other.efficiency[1] < other.efficiency_high[1] <= 1
    assert (other.efficiency[1] > one.efficiency[1]) == (speed < 1)  # slower devices wait less for the links


@pytest.mark.parametrize("cores", [12, 48])
def test_cores_that_a_job_lacked_are_there_on_a_full_node(cores):
    """Two of eight GPUs use all of the cores that the job has: a quarter of the node's, or all of them."""
    runs = on_gpus(make_runs())
    for run in runs:
        run.monitor.cpu_util_ours_mean, run.machine = 0.9, replace(run.machine, cpus=cores)
        run.spec["hardware"] |= {"gpus_per_node": 8, "cpus_per_node": 48}
    assert (predict_one(runs).forecast(8).limited_by == "host") == (cores == 48)


def make_two_models():
    """Make runs of a model on up to four devices, and of another one on up to two."""
    other = make_runs(gpus=(1, 2))
    for run in other:
        run.run_id, run.workload.model = f"other-{run.run_id}", "other"
        run.spec["model"] = {**run.spec["model"], "name": "other"}
    return [*make_runs(gpus=(1, 2, 4)), *other]


def test_the_half_batch_is_that_of_weighted_least_squares():
    from scipy.optimize import curve_fit

    batches, times = (75, 150, 350, 700, 1000, 2000, 5000), [0.011, 0.013, 0.021, 0.029, 0.043, 0.078, 0.2]
    (one, two), _ = curve_fit(lambda b, one, two: one + two * b, batches, times, p0=[0.01, 1e-5], sigma=times)
    assert fit_half_batch(list(zip(batches, times, strict=True))) == pytest.approx(one / two, rel=1e-5)
    for points in ([], [(10, 0.02)], [(10, 0.02), (10, 0.03)], [(1, 1.0), (2, 3.0), (4, 7.0)], [(1, 2.0), (4, 1.4)]):
        assert fit_half_batch(points) == 0, "a fixed part below 0, and a line that does not rise, have none"


KINDS = {
    "all_reduce": "ddp_nccl horovod_tensorflow_mpi mirrored torch_distributed_data_parallel nonzero_ddp",
    "sharded": "fsdp_gloo deepspeed_zero3", "hsdp": "hsdp", "zero1": "deepspeed_zero2 zero1",
    "tensor": "tensor_parallel", "fsdp_tp": "fsdp_tp_gloo", "stages": "model_parallel model_parallel_tensorflow",
    "pipeline": "pipeline_1f1b pipeline_gpipe", "hybrid": "hybrid",
    "one_copy": "central_storage_cpu parameter_server", "in_graph": "kuza55_ps_cpu data_parallel",
    "none": "independent_torch bare_torch",
}  # fmt: skip


def test_what_devices_exchange_is_what_the_yaml_of_their_strategy_says():
    """Whatever the name: a plugin's may hold any word."""
    expected = {kind: {kind} for kind in KINDS}
    assert {kind: {sync_kind(record(name, 2)) for name in names.split()} for kind, names in KINDS.items()} == expected
    made = record("ddp", 2)
    del made.spec["strategy"]["sync"]
    with pytest.raises(InputError, match=r"strategy\.sync"):
        sync_kind(made)
