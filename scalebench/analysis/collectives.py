"""Frames of measured collective operations (time, algbw and busbw by size) and of bandwidths between devices, and
between devices and host memory.

Source of algbw and busbw: doc/PERFORMANCE.md of nccl-tests; for gather and scatter, which it omits, their GetBw
functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from scalebench.analysis.columns import COUNT, TEXT, make_frame
from scalebench.analysis.identity import OPERATION_COLUMNS, VARIANT_COLUMNS, name_curves, settings_cells
from scalebench.core.probe_record import COLLECTIVES
from scalebench.core.result import Result
from scalebench.core.stats.estimates import Estimate, estimate_mean
from scalebench.core.stats.log_means import mean_over_repeats

if TYPE_CHECKING:
    import pandas as pd

COLLECTIVE_COLUMNS = (
    "run_id strategy options environment bind layout device_ids framework backend_used hardware gpus nodes repeat name "
    "size_bytes time_s time_low time_high algbw_bytes_per_s busbw_bytes_per_s"
).split()


def make_collective_table(results: Iterable[Result]) -> pd.DataFrame:
    """Return one row for each run, operation and message size.

    `time_s` is the time of one operation: in each block that of the slowest rank, then the mean over blocks with its 95
    % interval. Bandwidths are in bytes/s. Runs without collectives have no row.
    """
    rows = [row for result in results for row in list_collectives(result)]
    return make_frame(rows, COLLECTIVE_COLUMNS, name=TEXT, size_bytes=COUNT)


def list_collectives(result: Result) -> list[dict[str, Any]]:
    """Return a row for each operation and size that this run measured."""
    rows = []
    for operation, time_s in _time_operations(result, "collectives"):
        algbw = operation.size_bytes / time_s.value
        busbw = algbw * bus_factor(operation.name, result.scale.gpus)  # comparable for any number of ranks
        cells = {"framework": result.scale.framework, "name": operation.name, "size_bytes": operation.size_bytes}
        times = {"time_s": time_s.value, "time_low": time_s.low, "time_high": time_s.high}
        rates = {"algbw_bytes_per_s": algbw, "busbw_bytes_per_s": busbw}
        rows.append(_shared_cells(result) | cells | times | rates)
    return rows


def _shared_cells(result: Result) -> dict[str, Any]:
    scale = result.scale
    return {"run_id": result.run_id, "strategy": scale.strategy, **settings_cells(result),
            "backend_used": scale.backend_used, "hardware": scale.hardware, "gpus": scale.gpus, "nodes": scale.nodes,
            "repeat": scale.repeat}  # fmt: skip


def _time_operations(result: Result, probe: str) -> Iterator[tuple[Any, Estimate]]:
    """Yield each operation of a probe as the first rank has it, and its seconds, in each block of the slowest rank.
    Raises ValueError for fewer than two blocks."""
    of_ranks = [getattr(rank.probes, probe) for rank in result.ranks if rank.probes is not None]
    if of_ranks and all(of_ranks):
        for operations in zip(*of_ranks, strict=True):
            blocks = np.array([each.block_s for each in operations], np.float64)
            slowest = blocks.max(axis=0) / operations[0].repeats
            interval = estimate_mean(slowest, batches=max(2, len(slowest)))
            if interval is None:
                raise ValueError(f"an interval needs at least 2 blocks, not {len(slowest)}")
            yield operations[0], Estimate(interval.value, max(0.0, interval.low), interval.high)  # no time is negative


def bus_factor(name: str, ranks: int) -> float:
    """Return busbw / algbw of an operation."""
    if name in ("reduce", "broadcast"):
        return 1.0
    return (2.0 if name == "all_reduce" else 1.0) * (ranks - 1) / ranks


def group_operations(frame: pd.DataFrame) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return the OPERATION_COLUMNS and the rows of each operation, in the order of COLLECTIVES."""
    order = {name: number for number, name in enumerate(COLLECTIVES)}
    groups = sorted(frame.groupby(OPERATION_COLUMNS), key=lambda group: (*group[0][:-1], order.get(group[0][-1], 0)))
    return [(dict(zip(OPERATION_COLUMNS, key, strict=True)), rows) for key, rows in groups]


def split_lines(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows by the name of their line, names in order."""
    return {str(name): own for name, own in rows.groupby(name_lines(rows))}


def name_lines(rows: pd.DataFrame) -> pd.Series[Any]:
    """Name each row by its strategy, and by the settings in which runs of it differ: `ddp NCCL_P2P_DISABLE=1`."""
    import pandas as pd

    settings = rows[list(VARIANT_COLUMNS)].astype(object)
    keys = list(settings.where(settings.notna(), None).itertuples(index=False, name=None))
    names = name_curves(list(dict.fromkeys(keys)), VARIANT_COLUMNS)
    return pd.Series([names[key] for key in keys], index=rows.index)


def times_by_size(rows: pd.DataFrame, of_blocks: bool = False) -> dict[int, Estimate]:
    """Return the times of a line by size, over its runs; with `of_blocks` a single run has the limits of its blocks,
    which hold within this run only."""
    times: dict[int, Estimate] = {}
    for size, same_size in rows.groupby("size_bytes"):
        if of_blocks and len(same_size) == 1:
            (limits,) = same_size[["time_s", "time_low", "time_high"]].itertuples(index=False)
            times[int(size)] = Estimate(*map(float, limits))
        else:
            times[int(size)] = mean_over_repeats([float(time_s) for time_s in same_size["time_s"]])
    return times


LATENCY_KIND = "_latency"  # end of the kinds whose transfers are so small that their time is latency
BANDWIDTH_COLUMNS = (
    "run_id strategy options environment bind layout device_ids backend_used hardware gpus nodes repeat kind source "
    "target size_bytes moved_bytes time_s bytes_per_s bytes_per_s_low bytes_per_s_high"
).split()


def make_bandwidth_table(results: Iterable[Result]) -> pd.DataFrame:
    """Return one row for each run and transfer; source and target are ranks, null if all ranks take part at once.

    `bytes_per_s` counts all bytes that move at the same time, in both directions and for all devices; its 95 % interval
    is over blocks, in each of which the slowest rank's time counts. A limit that the blocks do not give is null.
    """
    rows = [row for result in results for row in list_transfers(result)]
    ranks = {"source": COUNT, "target": COUNT}
    return make_frame(rows, BANDWIDTH_COLUMNS, kind=TEXT, size_bytes=COUNT, moved_bytes=COUNT, **ranks)


def list_transfers(result: Result) -> list[dict[str, Any]]:
    """Return a row for each transfer that this run measured."""
    rows = []
    for transfer, time_s in _time_operations(result, "bandwidth"):
        # Over all ranks and directions; a copy within host memory counts once.
        directions = 2 if "both_ways" in transfer.kind else 1
        moved = transfer.size_bytes * directions * (result.scale.processes if transfer.source is None else 1)
        cells = {name: getattr(transfer, name) for name in ("kind", "source", "target", "size_bytes")}
        high = moved / time_s.low if time_s.low else None
        rates = {"bytes_per_s": moved / time_s.value, "bytes_per_s_low": moved / time_s.high, "bytes_per_s_high": high}
        rows.append(_shared_cells(result) | cells | {"moved_bytes": moved, "time_s": time_s.value} | rates)
    return rows
