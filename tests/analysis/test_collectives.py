"""Tables of collective operations and bandwidths: known times give known bandwidths."""

import math

import pytest

import scalebench
from scalebench.analysis import collectives
from scalebench.core.probe_record import COLLECTIVES, CollectiveRecord, ProbeRecord, TransferRecord
from scalebench.core.result import write_result
from scalebench.measure.collectives import MESSAGE_SIZES
from tests.builders.runs import rank, record

NOISE = [0.99, 1.01, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99]  # its mean is 1


def series(latency_s, bytes_per_s, name="all_reduce"):
    """An operation that takes latency + size / rate, in 8 blocks of 10."""
    return [
        CollectiveRecord(name, size, 10, [10 * (latency_s + size / bytes_per_s) * factor for factor in NOISE])
        for size in MESSAGE_SIZES
    ]


def run(strategy, measured, gpus=2, **changes):
    """A run whose rank 1 is the slower one by nothing but rounding: it measured the same."""
    ranks = [rank(k, probes=ProbeRecord(collectives=measured)) for k in range(gpus)]
    return record(strategy, gpus, ranks=ranks, **changes)


def test_an_operation_of_known_time_has_its_bandwidths():
    frame = collectives.make_collective_table([run("ddp_gloo", series(1e-4, 1e9), gpus=4)])
    assert list(frame.columns) == collectives.COLLECTIVE_COLUMNS and len(frame) == len(MESSAGE_SIZES)
    row = frame[frame["size_bytes"] == 2**20].iloc[0]
    truth_s = 1e-4 + 2**20 / 1e9
    assert row["time_s"] == pytest.approx(truth_s)
    # Student's t with 7 degrees of freedom times the standard error of 8 blocks, by hand.
    half = 2.3646 * truth_s * math.sqrt(sum((f - 1) ** 2 for f in NOISE) / 7 / 8)
    assert (row["time_low"], row["time_high"]) == pytest.approx((truth_s - half, truth_s + half), rel=1e-4)
    assert row["algbw_bytes_per_s"] == pytest.approx(2**20 / truth_s)
    assert row["busbw_bytes_per_s"] == pytest.approx(1.5 * 2**20 / truth_s)
    assert (row["strategy"], row["gpus"], row["backend_used"]) == ("ddp_gloo", 4, "gloo")


def test_bus_factors_are_those_of_nccl_tests():
    factors = {"all_reduce": 1.5, "reduce": 1.0, "broadcast": 1.0, **dict.fromkeys(
        ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"), 0.75)}  # fmt: skip
    assert {name: collectives.bus_factor(name, 4) for name in COLLECTIVES} == factors


def test_transports_of_one_strategy_are_lines_and_no_repeats():
    """Runs that differ in their environment or options were never started again: each has one start."""
    results = [run("ddp_nccl", series(1e-4, rate)) for rate in (1e10, 3e9, 1e9)]
    for result, variables in zip(results, ({}, {"NCCL_P2P_DISABLE": 1}, {"NCCL_SHM_DISABLE": 1}), strict=True):
        result.spec["hardware"] = {"environment": variables}
    frame = collectives.make_collective_table(results)
    assert list(dict.fromkeys(frame["environment"].fillna(""))) == ["", "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"]
    names = ["ddp_nccl", "ddp_nccl NCCL_P2P_DISABLE=1", "ddp_nccl NCCL_SHM_DISABLE=1"]
    assert list(collectives.split_lines(frame)) == names
    times = [collectives.times_by_size(own)[2**28] for own in collectives.split_lines(frame).values()]
    assert [each.value for each in times] == pytest.approx([1e-4 + 2**28 / rate for rate in (1e10, 3e9, 1e9)])
    assert not any(each.has_limits for each in times)


MEBIBYTE = 2**20


def transfer(kind, source, target, block_s):
    return TransferRecord(kind, source, target, MEBIBYTE, 4, block_s)


def test_a_transfer_of_known_time_has_its_bandwidth():
    """The receiver is the slower one, by a factor that differs from block to block."""
    zero, one = transfer("send_one_way", 0, 1, [0.001, 0.001]), transfer("send_one_way", 0, 1, [0.0039, 0.0041])
    ranks = [rank(k, probes=ProbeRecord(bandwidth=[t])) for k, t in enumerate((zero, one))]
    (row,) = collectives.make_bandwidth_table([record(gpus=2, ranks=ranks)]).to_dict("records")
    assert row["bytes_per_s"] == pytest.approx(MEBIBYTE / 0.001)
    # Two blocks of 0.975 and 1.025 ms: standard error 0.025 ms, Student's t with one degree of freedom 12.706.
    assert row["bytes_per_s_low"] == pytest.approx(MEBIBYTE / (0.001 + 12.706 * 0.000025), rel=1e-4)
    assert row["bytes_per_s_high"] == pytest.approx(MEBIBYTE / (0.001 - 12.706 * 0.000025), rel=1e-4)
    assert (row["kind"], row["source"], row["target"], row["moved_bytes"]) == ("send_one_way", 0, 1, MEBIBYTE)


@pytest.mark.parametrize(
    ("kind", "source", "moved"),
    [("send_one_way", 0, 1), ("peer_both_ways", 0, 2), ("send_ring", None, 3), ("memcpy", 2, 1),
     ("memcpy_all", None, 3), ("host_both_ways", 1, 2), ("host_both_ways_all", None, 6),
     ("device_to_host_all", None, 3)],
)  # fmt: skip
def test_all_bytes_that_move_at_once_count(kind, source, moved):
    probes = ProbeRecord(bandwidth=[transfer(kind, source, source, [0.001] * 2)])
    (row,) = collectives.list_transfers(record(gpus=3, ranks=[rank(k, probes=probes) for k in range(3)]))
    assert row["moved_bytes"] == moved * MEBIBYTE


def test_transfers_of_all_ranks_have_no_source_and_unknown_limits_are_null(tmp_path):
    wide = transfer("memcpy_all", None, None, [0.001, 0.1])
    write_result(record(gpus=2, ranks=[rank(k, probes=ProbeRecord(bandwidth=[wide])) for k in range(2)]), tmp_path)
    frame = scalebench.bandwidth(tmp_path)
    assert frame["source"].isna().all() and frame["bytes_per_s_high"].isna().all()
    assert frame["bytes_per_s_low"].notna().all()
