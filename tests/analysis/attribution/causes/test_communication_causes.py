"""Causes of exposed synchronization: reported where the figures say so, and not where they do not."""

import dataclasses
import tempfile
from pathlib import Path

import pytest

from scalebench.analysis.attribution.causes import AttributedRun
from scalebench.analysis.attribution.causes import communication as checks
from scalebench.analysis.attribution.lost_efficiency import attribute_run
from scalebench.analysis.attribution.reference_runs import ReferenceRuns
from scalebench.core.result import Sync, write_result
from tests.builders.attribution_runs import STEPS, TRANSFER_S, probe_series, weak_scaling_runs
from tests.builders.runs import MACHINE, record
from tests.builders.sweeps import ratio_of_rows

PCIE = [["X", "PHB"], ["PHB", "X"]]
ROW = {
    "status": "ok", "model": "m", "dataset": "d", "hardware": "h", "scaling": "weak", "precision": "float32",
    "feed": "host", "framework": "tensorflow", "gpus": 2, "global_batch": 20, "strategy": "mirrored_nccl",
    "options": None, "flags": None, "interval_over": "repeats", "repeats": 3,
}  # fmt: skip


def attributed(
    messages=None,
    isolated_s=TRANSFER_S,
    backward_s=None,
    options=None,
    rows=(),
    change=lambda result: result,
    **changes,
):
    """Exposed without the wait are 1.2 ms; `isolated_s`: the same exchange alone."""
    parts = {} if backward_s is None else {"part_steps": STEPS, "forward_s": probe_series(0.001),
                                           "backward_s": probe_series(0.001 + backward_s)}  # fmt: skip
    probes = {"isolated_sync_s": probe_series(isolated_s, 0.001), **parts, **changes.pop("probes", {})}
    result, bare, own = weak_scaling_runs(probes=probes, sync=Sync(message_bytes=messages or []), **changes)
    result.spec["strategy"]["options"] = options or {}
    result = change(result)
    references = ReferenceRuns(bare, bare, own)
    attribution = attribute_run(result, references)
    run = AttributedRun(attribution, result, references, rows)
    run.configurations.estimate_ratio = ratio_of_rows
    return run


def evidence(cause):
    assert cause.part == "transfer"
    return cause.evidence


def test_all_gradients_in_one_message():
    cause = checks.check_single_message(attributed([614_000], options={"bucket_cap_mb": 25.0}))
    assert evidence(cause) == "1 message of 614 kB, 1.20 ms exposed, 1.20 ms in isolation"
    assert "(lower strategy.options.bucket_cap_mb, now 25)" in cause.remedy
    assert checks.check_single_message(attributed([300_000, 314_000])) is None
    assert checks.check_single_message(attributed([614_000], isolated_s=0.002)) is None  # a part of it is hidden
    assert (
        checks.check_single_message(attributed([614_000], probes={"sync_on_s": probe_series(0.0108)})) is None
    )  # nothing is exposed


def test_sync_that_is_slower_in_training():
    assert (
        evidence(checks.check_sync_slower_in_training(attributed(isolated_s=0.0009)))
        == "1.20 ms of the step without the imbalance, 900 us in isolation"
    )
    assert checks.check_sync_slower_in_training(attributed()) is None
    assert checks.check_sync_slower_in_training(attributed(isolated_s=0.0009, probes={"local_step_s": []})) is None


def test_sync_that_is_longer_than_the_backward_pass():
    assert (
        evidence(checks.check_sync_longer_than_backward(attributed(backward_s=0.001)))
        == "1.20 ms in isolation, a backward pass of 1.00 ms"
    )
    assert checks.check_sync_longer_than_backward(attributed(backward_s=0.002)) is None
    assert checks.check_sync_longer_than_backward(attributed()) is None


def test_small_and_large_messages():
    small = checks.check_small_messages(attributed([40_000] * 8, options={"fusion_threshold_mb": 0.5}))
    assert evidence(small) == "8 messages of 40.0 kB, 150 us each in isolation"
    assert "(raise strategy.options.fusion_threshold_mb, now 0.5)" in small.remedy
    single = checks.check_small_messages(attributed([40_000]))
    assert evidence(single).startswith("1 message of 40.0 kB") and single is not None
    assert single.remedy.startswith("Try a larger train.batch_per_device")
    assert (
        checks.check_small_messages(attributed([400_000] * 3)) is None
        and checks.check_small_messages(attributed()) is None
    )
    large = checks.check_large_messages(attributed([25_000_000, 5_000_000], options={"compression": "none"}))
    # A ring of two moves each byte once over each link: 2 (2 - 1) / 2.
    assert evidence(large) == "30.0 MB in 2 take 1.20 ms in isolation, 25.0 GB/s on each link of a ring"
    assert "compression=fp16" in large.remedy
    assert checks.check_large_messages(attributed([400_000] * 3)) is None


def nccl(
    topology = PCIE, peers = None, backend = "nccl", cpu = 3000.0, place = "cpu",
    **changes
):  # fmt: skip
    def on_gpus(result):
        machine = dataclasses.replace(MACHINE, topology=topology, peer_access=peers)
        scale = dataclasses.replace(result.scale, backend_used=backend)
        return dataclasses.replace(result, machine=machine, scale=scale)

    row = {
        **ROW,
        "run_id": "ddp-2-10-weak-0",
        "throughput_samples_per_s": 2000.0,
        "throughput_low": 1990.0,
        "throughput_high": 2010.0,
    }
    folder = Path(tempfile.mkdtemp())
    rival = record("somebodys", 2)
    rival.spec["strategy"]["reduces_on"] = place
    write_result(rival, folder)
    other = {**ROW, "run_id": "cpu", "strategy": "somebodys", "throughput_samples_per_s": cpu, "path": str(folder)}
    limits = {"throughput_low": 0.99 * cpu, "throughput_high": 1.01 * cpu}
    return attributed(rows=[row, {**other, **limits, **changes}], change=on_gpus)


def test_nccl_without_direct_links():
    text = evidence(checks.check_nccl_without_links(nccl()))
    assert text == "somebodys 3,000 samples/s, this 2,000; no NVLink (GPUs connected by PHB)"
    no_peers = {"read": [["X", "CNS"], ["CNS", "X"]]}
    assert evidence(checks.check_nccl_without_links(nccl(peers=no_peers))).endswith("no peer access between all")


@pytest.mark.parametrize(
    "changes",
    [
        {"topology": [["X", "NV4"], ["NV4", "X"]]},
        {"topology": None},
        {"peers": {"read": [["X", "OK"], ["OK", "X"]]}},
        {"backend": "gloo"},
        {"cpu": 2020.0},
        {"gpus": 4},
        {"framework": "torch"},
        {"place": "devices"},
        {"status": "failed"},
        {"throughput_low": None},
        {"throughput_samples_per_s": None},
        {"interval_over": "blocks"},
    ],
)
def test_nccl_is_no_cause_without_all_its_evidence(changes):
    assert checks.check_nccl_without_links(nccl(**changes)) is None


def waiting(**changes):
    row = {**ROW, "run_id": "ddp-2-10-weak-0", "gpu_util_mean": 0.9, "gpu_power_w_mean": 210.0, "speedup_self": 1.5,
            "collective_kernel_share": 0.87}  # fmt: skip
    before = {**ROW, "run_id": "one", "gpus": 1, "gpu_util_mean": 0.4, "gpu_power_w_mean": 105.0, "speedup_self": 1.0}
    return attributed(rows=[{**row, **changes}, before])


def test_kernels_that_wait_for_other_devices():
    assert evidence(checks.check_waiting_kernels(waiting())) == (
        "from 1 to 2 devices utilization goes from 40 % to 90 %, power per device from 105 to 105 W, speedup from 1.00 "
        "to 1.50; collective operations are 87 % of kernel time"
    )
    assert "collective" not in evidence(checks.check_waiting_kernels(waiting(collective_kernel_share=None)))


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_util_mean": 0.5},
        {"gpu_util_mean": None},
        {"gpu_power_w_mean": 260.0},
        {"speedup_self": 2.1},
        {"strategy": "mirrored"},
        {"options": "loop=fit"},
        {"run_id": "another"},
    ],
)
def test_kernels_that_work_are_no_cause(changes):
    assert checks.check_waiting_kernels(waiting(**changes)) is None
