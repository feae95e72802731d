"""Causes of exposed exchange: told where the figures say so, and not where they do not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.analysis.attribution.causes import Case, Cause
from scalebench.analysis.attribution.causes import communication as checks
from scalebench.analysis.attribution.ladder import ladder
from scalebench.core.result import Result, Sync
from tests.builders.attribution_runs import STEPS, TRANSFER_S, series, weak
from tests.builders.runs import MACHINE

PCIE = [["X", "PHB"], ["PHB", "X"]]
ROW = {
    "status": "ok", "model": "m", "dataset": "d", "hardware": "h", "scaling": "weak", "precision": "float32",
    "feed": "host", "framework": "tensorflow", "gpus": 2, "global_batch": 20, "strategy": "mirrored_nccl",
    "options": None, "flags": None,
}  # fmt: skip


def case(
    messages: list[int] | None = None,
    alone_s: float = TRANSFER_S,
    backward_s: float | None = None,
    options: dict[str, Any] | None = None,
    rows: Any = (),
    change: Any = lambda result: result,
    **changes: Any,
) -> Case:
    """Exposed without the wait are 1.2 ms; `alone_s`: the same exchange alone."""
    parts = {} if backward_s is None else {"part_steps": STEPS, "forward_s": series(0.001),
                                           "backward_s": series(0.001 + backward_s)}  # fmt: skip
    probes = {"isolated_sync_s": series(alone_s, 0.001), **parts, **changes.pop("probes", {})}
    result, bare, own = weak(probes=probes, sync=Sync(message_bytes=messages or []), **changes)
    result.spec["strategy"]["options"] = options or {}
    result = change(result)
    found = ladder(result, bare, bare, own)
    assert found is not None
    return Case(found, result, bare, bare, own, rows)


def evidence(cause: Cause | None) -> str:
    assert cause is not None and cause.part == "transfer"
    return cause.evidence


def test_one_message() -> None:
    cause = checks.one_message(case([614_000], options={"bucket_cap_mb": 25.0}))
    assert evidence(cause) == "1 message of 614 kB, 1.2 ms exposed, 1.2 ms alone"
    assert cause is not None and "(lower strategy.options.bucket_cap_mb, now 25)" in cause.remedy
    assert checks.one_message(case([300_000, 314_000])) is None
    assert checks.one_message(case([614_000], alone_s=0.002)) is None  # a part of it is hidden
    assert checks.one_message(case([614_000], probes={"sync_on_s": series(0.0108)})) is None  # nothing is exposed


def test_an_exchange_that_costs_more_than_alone() -> None:
    assert (
        evidence(checks.dearer_than_alone(case(alone_s=0.0009)))
        == "1.2 ms of the update without the wait for the slowest, 900 us alone"
    )
    assert checks.dearer_than_alone(case()) is None
    assert checks.dearer_than_alone(case(alone_s=0.0009, probes={"local_step_s": []})) is None


def test_a_backward_pass_too_short_to_hide_it() -> None:
    assert evidence(checks.little_to_hide_behind(case(backward_s=0.001))) == "1.2 ms alone, a backward pass of 1 ms"
    assert checks.little_to_hide_behind(case(backward_s=0.002)) is None
    assert checks.little_to_hide_behind(case()) is None


def test_small_messages_and_large_ones() -> None:
    small = checks.small_messages(case([40_000] * 8, options={"fusion_threshold_mb": 0.5}))
    assert evidence(small) == "8 messages of 40 kB, 150 us each alone"
    assert small is not None and "(raise strategy.options.fusion_threshold_mb, now 0.5)" in small.remedy
    single = checks.small_messages(case([40_000]))
    assert evidence(single).startswith("1 message of 40 kB") and single is not None
    assert single.remedy.startswith("Try a larger train.batch_per_device")
    assert checks.small_messages(case([400_000] * 3)) is None and checks.small_messages(case()) is None
    large = checks.large_messages(case([25_000_000, 5_000_000], options={"compression": "none"}))
    # A ring of two moves each byte once over each link: 2 (2 - 1) / 2.
    assert evidence(large) == "30 MB in 2 take 1.2 ms alone, 25 GB/s on each link of a ring"
    assert large is not None and "compression=fp16" in large.remedy
    assert checks.large_messages(case([400_000] * 3)) is None


def nccl(topology: Any = PCIE, peers: Any = None, backend: str = "nccl", cpu: float = 3000.0, **row: Any) -> Case:
    def on_gpus(result: Result) -> Result:
        machine = dataclasses.replace(MACHINE, topology=topology, peer_access=peers)
        scale = dataclasses.replace(result.scale, backend_used=backend)
        return dataclasses.replace(result, machine=machine, scale=scale)

    mine = {**ROW, "run_id": "ddp-2-10-weak-0", "throughput_samples_per_s": 2000.0, "throughput_high": 2010.0}
    other = {**ROW, "run_id": "cpu", "strategy": "mirrored_reduce_cpu", "throughput_samples_per_s": cpu}
    return case(rows=[mine, {**other, "throughput_low": 0.99 * cpu, **row}], change=on_gpus)


def test_nccl_without_a_direct_way() -> None:
    told = evidence(checks.nccl_without_links(nccl()))
    assert told == "mirrored_reduce_cpu 3,000 samples/s, this 2,000; no NVLink (GPUs connected by PHB)"
    no_peers = {"read": [["X", "CNS"], ["CNS", "X"]]}
    assert evidence(checks.nccl_without_links(nccl(peers=no_peers))).endswith("no peer access between all")
    assert evidence(checks.nccl_without_links(nccl(throughput_low=None))).startswith("mirrored_reduce_cpu")


@pytest.mark.parametrize(
    "told",
    [
        {"topology": [["X", "NV4"], ["NV4", "X"]]},
        {"topology": None},
        {"peers": {"read": [["X", "OK"], ["OK", "X"]]}},
        {"backend": "gloo"},
        {"cpu": 2020.0},
        {"gpus": 4},
        {"framework": "torch"},
        {"strategy": "mirrored_hierarchical"},
        {"status": "failed"},
    ],
)
def test_nccl_is_not_accused_where_a_figure_is_missing(told: dict[str, Any]) -> None:
    assert checks.nccl_without_links(nccl(**told)) is None


def waiting(**changes: Any) -> Case:
    mine = {**ROW, "run_id": "ddp-2-10-weak-0", "gpu_util_mean": 0.9, "gpu_power_w_mean": 210.0, "speedup_self": 1.5,
            "collective_kernel_share": 0.87}  # fmt: skip
    before = {**ROW, "run_id": "one", "gpus": 1, "gpu_util_mean": 0.4, "gpu_power_w_mean": 105.0, "speedup_self": 1.0}
    return case(rows=[{**mine, **changes}, before])


def test_a_kernel_that_waits() -> None:
    assert evidence(checks.waiting_kernels(waiting())) == (
        "from 1 to 2 devices utilisation goes from 40 % to 90 %, power a device from 105 to 105 W, speedup from 1.00 "
        "to 1.50; collective operations are 87 % of all kernels' time"
    )
    assert "collective" not in evidence(checks.waiting_kernels(waiting(collective_kernel_share=None)))


@pytest.mark.parametrize(
    "told",
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
def test_kernels_that_work_are_not_said_to_wait(told: dict[str, Any]) -> None:
    assert checks.waiting_kernels(waiting(**told)) is None
