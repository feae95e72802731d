"""Transports between ranks in the logs of several versions of NCCL, as people have posted them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.machine import nccl_log

# NVIDIA/nccl issues 147, 226, 385, 429, 629, 952, 1189, 1814, and documentation of NCCL and aws-ofi-nccl.
LINES = {
    "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read": {"0-1": "P2P/CUMEM/read"},
    "a:1:2 [1] NCCL INFO Channel 15/0 : 1[1] -> 0[0] via P2P/IPC": {"0-1": "P2P/IPC"},
    "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 7[7] via P2P/direct pointer/read": {"0-7": "P2P/direct pointer/read"},
    "a:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct": {"0-1": "SHM/direct/direct"},
    "a:1:2 [1] NCCL INFO Channel 00 : 1[1a000] -> 2[af000] via direct shared memory": {"1-2": "direct shared memory"},
    "a:1:2 [3] NCCL INFO Ring 04 : 3[3] -> 2[2] via P2P/IPC": {"2-3": "P2P/IPC"},
    "a:1:2 [0] NCCL INFO Ring 00 : 43 -> 44 [receive] via NET/Socket/0": {"43-44": "NET/Socket/0"},
    "a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 10[0] [send] via NET/IB/0(1)/GDRDMA": {"1-10": "NET/IB/0(1)/GDRDMA"},
    "a:1:2 [7] NCCL INFO Channel 08/0 : 33[1] -> 40[0] [send] via NET/IBext_v8/7": {"33-40": "NET/IBext_v8/7"},
    "[1,6]<stdout>:a:3:7 [6] NCCL INFO Channel 03 : 15[a01d0] -> 6[a01c0] [receive] via NET/AWS Libfabric/3/GDRDMA": {
        "6-15": "NET/AWS Libfabric/3/GDRDMA"
    },
    "a:1:2 [0] NCCL INFO Channel 00/24 :    0   1": {},
    "a:1:2 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1": {},
    "a:1:2 [1] NCCL INFO Trees [0] -1/-1/-1->1->0 [1] 0/3/-1->1->-1": {},
    "a:1:2 [6] NCCL INFO a:3:4 [7] NCCL INFO Ring 04 : 7[7] -> 3[3] via P2P/IPC": {"3-7": "P2P/IPC"},  # two writers
    "Ring 04 : 6[6] -> 5[5] via P2P/IPC": {},  # the rest of the first of them
    "epoch 1 via SHM": {},
}


@pytest.mark.parametrize("line", LINES)
def test_one_line(line: str) -> None:
    assert nccl_log.parse_transports([line]) == LINES[line]
    assert nccl_log.parse_transports([f"{line}\r"]) == LINES[line]


def test_pairs_are_sorted_with_all_transports_of_each() -> None:
    connections = [
        (10, 2, "SHM/direct/direct"),
        (0, 1, "NET/IB/1"),
        (2, 3, "P2P/IPC"),
        (1, 0, "NET/IB/0"),
        (0, 1, "NET/IB/1"),
    ]
    lines = [f"a [0] NCCL INFO Channel 00/0 : {a}[0] -> {b}[1] via {transport}" for a, b, transport in connections]
    found = nccl_log.parse_transports(lines)
    assert list(found.items()) == [("0-1", "NET/IB/0 + NET/IB/1"), ("2-3", "P2P/IPC"), ("2-10", "SHM/direct/direct")]
    assert nccl_log.summarize_transports(found) == "NET/IB/0 + NET/IB/1 + P2P/IPC + SHM/direct/direct"
    assert nccl_log.summarize_transports(None) is None


def test_logs_are_read_together_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    logs = [tmp_path / f"rank{rank}.log" for rank in range(3)]
    line = b"a [0] NCCL INFO Channel 00/0 : %d[0] -> %d[1] via P2P/IPC\n"
    logs[0].write_bytes(b"\xff\xfe no text\n" + line % (0, 1))
    logs[1].write_bytes(line % (1, 2) + b"x" * 1000 + b"\n" + line % (2, 3))
    assert nccl_log.read_transports(logs) == {"0-1": "P2P/IPC", "1-2": "P2P/IPC", "2-3": "P2P/IPC"}
    monkeypatch.setattr(nccl_log, "MAX_LOG_BYTES", 1000)
    assert nccl_log.read_transports(logs) == {"0-1": "P2P/IPC", "1-2": "P2P/IPC"}
    assert nccl_log.read_transports([logs[2], tmp_path]) is None
