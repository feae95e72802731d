"""Bandwidth on load: known times come back as bytes per second of all that moved."""

from __future__ import annotations

from pathlib import Path

import pytest

import scalebench
from scalebench.analysis.collectives import TRANSFERS_COLUMNS, moved_bytes, transfers
from scalebench.core.result import ProbeRecord, Transfer, write_result
from tests.builders.runs import rank, record

MEBIBYTE = 2**20


def made(kind: str, source: int | None, target: int | None, block_s: list[float]) -> Transfer:
    return Transfer(kind, source, target, MEBIBYTE, 4, block_s)


def test_a_known_transfer() -> None:
    """The receiver is the slower one, by a factor that differs from block to block."""
    zero, one = made("send_one_way", 0, 1, [0.001, 0.001]), made("send_one_way", 0, 1, [0.0039, 0.0041])
    ranks = [rank(k, probes=ProbeRecord(bandwidth=[t])) for k, t in enumerate((zero, one))]
    (row,) = transfers([record(gpus=2, ranks=ranks)]).to_dict("records")
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
def test_everything_that_moves_at_once_counts(kind: str, source: int | None, moved: int) -> None:
    assert moved_bytes(made(kind, source, source, []), 3) == moved * MEBIBYTE


def test_nothing_measured() -> None:
    frame = transfers([record(gpus=2), record(status="failed", block_s=None)])
    assert len(frame) == 0 and list(frame.columns) == TRANSFERS_COLUMNS


def test_all_at_once_and_limits_that_the_blocks_do_not_give(tmp_path: Path) -> None:
    wide = made("memcpy_all", None, None, [0.001, 0.1])
    write_result(record(gpus=2, ranks=[rank(k, probes=ProbeRecord(bandwidth=[wide])) for k in range(2)]), tmp_path)
    frame = scalebench.bandwidth(tmp_path)
    assert frame["source"].isna().all() and frame["bytes_per_s_high"].isna().all()
    assert frame["bytes_per_s_low"].notna().all()
