"""How the GPUs of this machine are connected, and whether each may read and write the other's memory. Layer 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from scalebench.nvml import Ask

# Values of nvml.h, fixed by its binary interface.
MAX_NVLINKS, LINK_ACTIVE, SWITCH_TYPE = 36, 1, 2
# The words of `nvidia-smi topo -m`; 0 is one board with two GPUs, which it shows as PIX as well.
ANCESTOR_WORDS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# Those of `nvidia-smi topo -p2p`: not by this chipset, GPU, topology; disabled in the registry; not at all; unknown.
PEER_WORDS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
PEER_KINDS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}

Matrix = list[list[str]]


def topology(ask: Ask, handles: Sequence[Any], addresses: Sequence[str | None]) -> Matrix | None:
    """How each pair of GPUs is connected; None without GPUs, or where a pair's answer is missing."""
    links = [_nvlinks(ask, handle) for handle in handles]

    def word(a: int, b: int) -> str:
        # Linked to each other, or both to NVSwitches, which connect all with all.
        nvlinks = links[a][addresses[b] or ""] or min(links[a]["switch"], links[b]["switch"])
        ancestor = ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
        return f"NV{nvlinks}" if nvlinks else ANCESTOR_WORDS.get(ancestor, "")

    return _matrix(len(handles), word)


def peer_access(ask: Ask, handles: Sequence[Any]) -> dict[str, Matrix] | None:
    """What the GPU of the row may do in the memory of the column's, one matrix for each of PEER_KINDS; OK is yes.

    Kinds that the driver does not tell of are left out; None where it tells of none.
    """
    found = {}
    for kind, number in PEER_KINDS.items():

        def word(a: int, b: int, number: int = number) -> str:
            return PEER_WORDS.get(ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], number), "")

        matrix = _matrix(len(handles), word)
        if matrix is not None:
            found[kind] = matrix
    return found or None


def pairs_by_link(words: Matrix) -> dict[str, list[tuple[int, int]]]:
    """Pairs of GPUs by what connects them, the lower number first, in the order of the first pair of each kind."""
    found: dict[str, list[tuple[int, int]]] = {}
    for a, row in enumerate(words):
        for b in range(a + 1, len(row)):
            found.setdefault(row[b], []).append((a, b))
    return found


def _matrix(size: int, word: Callable[[int, int], str]) -> Matrix | None:
    rows = [["X" if a == b else word(a, b) for b in range(size)] for a in range(size)]
    return rows if rows and all(map(all, rows)) else None


def _nvlinks(ask: Ask, handle: Any) -> Counter[str]:
    """Active NVLinks of one GPU, counted by the PCI address of the other end, or 'switch'."""
    peers = []
    for link in range(MAX_NVLINKS):
        if ask("nvmlDeviceGetNvLinkState", handle, link) == LINK_ACTIVE:
            to_switch = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == SWITCH_TYPE
            pci_info = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            peers.append("switch" if to_switch else getattr(pci_info, "busId", None))
    return Counter(peer for peer in peers if peer)
