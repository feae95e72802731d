"""How GPUs are connected, and which may reach the other's memory: a made-up NVML, and the stand-in through ctypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalebench.core.machine import gpus
from scalebench.core.machine import gpus as gpu_links
from tests.nvml_stand_in import put_in

MATRIX = [
    ["X", "PIX", "PHB", "SYS"],
    ["PIX", "X", "PHB", "SYS"],
    ["PHB", "PHB", "X", "SYS"],
    ["SYS", "SYS", "SYS", "X"],
]


def test_pairs_by_link() -> None:
    assert gpu_links.pairs_by_link(MATRIX) == {
        "PIX": [(0, 1)],
        "PHB": [(0, 2), (1, 2)],
        "SYS": [(0, 3), (1, 3), (2, 3)],
    }
    assert gpu_links.pairs_by_link([["X"]]) == {}


def test_peer_access_is_told_in_the_words_of_nvidia_smi() -> None:
    said = {(0, 1): 0, (1, 0): 1, (0, 2): 2, (2, 0): 3, (1, 2): 4, (2, 1): 5}

    def ask(name: str, a: int, b: int, kind: int) -> int | None:
        assert name == "nvmlDeviceGetP2PStatus"
        return said[a, b] if kind == 1 else 6 if kind == 0 else None

    assert gpu_links.peer_access(ask, [0, 1, 2]) == {
        "read": [["X", "U", "U"], ["U", "X", "U"], ["U", "U", "X"]],
        "write": [["X", "OK", "GNS"], ["CNS", "X", "DR"], ["TNS", "NS", "X"]],
    }


def test_peer_access_that_nobody_tells() -> None:
    def ask(*_: Any) -> None:
        return None

    assert gpu_links.peer_access(ask, [0, 1]) is None
    assert gpu_links.peer_access(ask, []) is None


def test_the_words_are_the_librarys() -> None:
    pynvml = pytest.importorskip("pynvml")
    kinds = {kind: getattr(pynvml, f"NVML_P2P_CAPS_INDEX_{kind.upper()}") for kind in gpu_links.PEER_KINDS}
    # A comma too many makes tuples of some of them.
    assert {kind: n[0] if isinstance(n, tuple) else n for kind, n in kinds.items()} == gpu_links.PEER_KINDS
    names = ["OK", "CHIPSET_NOT_SUPPORTED", "GPU_NOT_SUPPORTED", "IOH_TOPOLOGY_NOT_SUPPORTED", "DISABLED_BY_REGKEY"]
    numbers = [getattr(pynvml, f"NVML_P2P_STATUS_{name}") for name in [*names, "NOT_SUPPORTED", "UNKNOWN"]]
    assert numbers == list(gpu_links.PEER_WORDS)


@pytest.mark.parametrize(
    ("settings", "topology", "peers"),
    [
        ({"NVLINKS": 4}, "NV4", "OK"),
        ({"NVLINKS": 0, "ANCESTOR": 20}, "PXB", "OK"),
        ({"NVLINKS": 0, "ANCESTOR": 50, "P2P": 1}, "SYS", "CNS"),
    ],
)
def test_the_stand_in(
    nvml_library: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], topology: str, peers: str
) -> None:
    put_in(monkeypatch, nvml_library, **settings)
    found = gpus.detect_gpus()
    assert found.topology == [["X", topology], [topology, "X"]]
    assert (found.peer_access or {})["read"] == [["X", peers], [peers, "X"]]
    assert gpus.pair_of_each_link() == [(0, 1)]
