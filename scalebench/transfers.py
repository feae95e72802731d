"""Bandwidth on load: bytes per second between devices, and between them and host memory. Layer 1."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from scalebench.crossover import operation_s
from scalebench.frame import find
from scalebench.results import Result, Transfer, read_result

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "run_id strategy backend_used hardware gpus nodes repeat kind source target size_bytes moved_bytes time_s "
    "bytes_per_s bytes_per_s_low bytes_per_s_high"
).split()
TEXT = ("run_id", "strategy", "backend_used", "hardware", "kind")
COUNTS = ("gpus", "nodes", "repeat", "source", "target", "size_bytes", "moved_bytes")


def load(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> pd.DataFrame:
    """One row for each run and transfer below `path`, as `transfers`; InputError as scalebench.load."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    return transfers([read_result(file) for file in find(paths)])


def transfers(results: Iterable[Result]) -> pd.DataFrame:
    """One row for each run and transfer; source and target are ranks, null where all take part at once.

    `bytes_per_s` is of all that moves at once, in both directions and for all devices; its 95 % interval is over the
    blocks, in each of which the slowest rank's time counts. A limit that the blocks do not give is null.
    """
    import pandas as pd

    table = pd.DataFrame([row for result in results for row in _rows(result)], columns=COLUMNS)
    kinds = dict.fromkeys(TEXT, "string") | dict.fromkeys(COUNTS, "Int64")
    return table.astype({name: kinds.get(name, "Float64") for name in COLUMNS})


def _rows(result: Result) -> list[dict[str, Any]]:
    of_ranks = [rank.probes.bandwidth for rank in result.ranks if rank.probes is not None]
    if not of_ranks or not all(of_ranks):
        return []
    scale, rows = result.scale, []
    for same in zip(*of_ranks, strict=True):
        one = same[0]
        taken = operation_s([part.block_s for part in same], one.repeats)
        moved = moved_bytes(one, scale.processes)
        rows.append(
            {
                "run_id": result.run_id, "strategy": scale.strategy, "backend_used": scale.backend_used,
                "hardware": scale.hardware, "gpus": scale.gpus, "nodes": scale.nodes, "repeat": scale.repeat,
                "kind": one.kind, "source": one.source, "target": one.target, "size_bytes": one.size_bytes,
                "moved_bytes": moved, "time_s": taken.value, "bytes_per_s": moved / taken.value,
                "bytes_per_s_low": moved / taken.high, "bytes_per_s_high": moved / taken.low if taken.low else None,
            }
        )  # fmt: skip
    return rows


def moved_bytes(transfer: Transfer, ranks: int) -> int:
    """By one of it, over all ranks and directions; a copy within host memory counts once."""
    directions = 2 if "both_ways" in transfer.kind else 1
    devices = ranks if transfer.source is None else 1
    return transfer.size_bytes * directions * devices
