"""Frames of measured collective operations (time, algbw and busbw by size, and the size from which one strategy
overtakes another) and of bandwidths between devices, and between devices and host memory.

Source of algbw and busbw: doc/PERFORMANCE.md of nccl-tests; for gather and scatter, which it omits, their GetBw
functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from scalebench.analysis.columns import make_typed_frame
from scalebench.analysis.identity import OPERATION_COLUMNS, VARIANT_COLUMNS, name_curves, settings_cells
from scalebench.core.result import COLLECTIVES, CollectiveRecord, Result, TransferRecord
from scalebench.core.stats import estimates
from scalebench.core.stats.estimate_arithmetic import combine, fit_least_squares
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS, mean_over_repeats
from scalebench.core.units import format_binary_bytes

if TYPE_CHECKING:
    import pandas as pd

COLLECTIVE_COLUMNS = (
    "run_id strategy options environment bind layout device_ids framework backend_used hardware gpus nodes repeat name "
    "size_bytes time_s time_low time_high "
    "algbw_bytes_per_s busbw_bytes_per_s"
).split()
COLLECTIVE_TEXTS = ("run_id", *VARIANT_COLUMNS, "framework", "backend_used", "hardware", "name")
COLLECTIVE_COUNTS = ("gpus", "nodes", "repeat", "size_bytes")


def make_collective_table(results: Iterable[Result]) -> pd.DataFrame:
    """Return one row for each run, operation and message size.

    `time_s` is the time of one operation: in each block that of the slowest rank, then the mean over blocks with its 95
    % interval. Bandwidths are in bytes/s. Runs without collectives have no row.
    """
    rows = [row for result in results for row in list_collectives(result)]
    return make_typed_frame(rows, COLLECTIVE_COLUMNS, COLLECTIVE_TEXTS, COLLECTIVE_COUNTS)


def list_collectives(result: Result) -> list[dict[str, Any]]:
    """Return a row for each operation and size that this run measured."""
    of_ranks = [rank.probes.collectives for rank in result.ranks if rank.probes is not None]
    if not of_ranks or not all(of_ranks):
        return []
    scale, rows = result.scale, []
    for same in zip(*of_ranks, strict=True):
        time_s = operation_s([operation.block_s for operation in same], same[0].repeats)
        algbw, busbw = bandwidths(same[0], scale.gpus, time_s.value)
        rows.append(
            {
                **_shared_cells(result), "framework": scale.framework, "name": same[0].name,
                "size_bytes": same[0].size_bytes,
                "time_s": time_s.value, "time_low": time_s.low, "time_high": time_s.high,
                "algbw_bytes_per_s": algbw, "busbw_bytes_per_s": busbw,
            }
        )  # fmt: skip
    return rows


def _shared_cells(result: Result) -> dict[str, Any]:
    scale = result.scale
    return {"run_id": result.run_id, "strategy": scale.strategy, **settings_cells(result),
            "backend_used": scale.backend_used, "hardware": scale.hardware, "gpus": scale.gpus, "nodes": scale.nodes,
            "repeat": scale.repeat}  # fmt: skip


def operation_s(block_s_of_ranks: Sequence[Sequence[float]], repeats: int) -> estimates.Estimate:
    """Return the seconds of one operation, those of the slowest rank in each block. Raises ValueError for fewer than
    two blocks."""
    slowest = np.array(block_s_of_ranks, dtype=np.float64).max(axis=0) / repeats
    interval = estimates.estimate_mean(slowest, batches=max(2, len(slowest)))
    if interval is None:
        raise ValueError(f"an interval needs at least 2 blocks, not {len(slowest)}")
    return estimates.Estimate(interval.value, max(0.0, interval.low), interval.high)  # no time is negative


def bandwidths(collective: CollectiveRecord, ranks: int, time_s: float) -> tuple[float, float]:
    """Return (algbw, busbw) in bytes/s: size / time, and that times a factor that makes it comparable with the
    bandwidth of a link for any number of ranks."""
    algbw = collective.size_bytes / time_s
    return algbw, algbw * bus_factor(collective.name, ranks)


def bus_factor(name: str, ranks: int) -> float:
    """Return busbw / algbw of an operation."""
    if name in ("reduce", "broadcast"):
        return 1.0
    return (2.0 if name == "all_reduce" else 1.0) * (ranks - 1) / ranks


@dataclass
class Crossover:
    """The message size above which another strategy is faster."""

    size_bytes: float  # on a line through the logarithms of size and of the ratio of times
    low_bytes: int  # the nearest measured sizes at which the difference is resolved
    high_bytes: int


@dataclass
class OperationComparison:
    """Two strategies' times for one operation on the same devices."""

    name: str
    gpus: int
    nodes: int
    hardware: str  # empty where all operations ran on the same
    strategies: tuple[str, str]
    fastest: list[str] = field(default_factory=list)  # in order of size, one more than crossovers
    crossovers: list[Crossover] = field(default_factory=list)
    resolved: int = 0  # sizes at which the limits of the difference exclude 0
    sizes: list[int] = field(default_factory=list)  # measured with both
    has_limits: bool = False  # both strategies started often enough for limits of their times

    def sentence(self) -> str:
        """Return `all_reduce on 2 devices: horovod_mpi is faster below 64 KiB, ddp_gloo above`."""
        of = f" of {self.hardware}" if self.hardware else ""
        over = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        head = f"{self.name} on {self.gpus} devices{of}{over}"
        within = f"{format_binary_bytes(self.sizes[0])} to {format_binary_bytes(self.sizes[-1])}"
        if not self.fastest:
            few = f": fewer than {MIN_REPEATS_FOR_LIMITS} repeats, measure.repeats={MIN_REPEATS_FOR_LIMITS} decides"
            text = f"{head}: no difference between {' and '.join(self.strategies)} is resolved from {within}"
            return text if self.has_limits else text + few
        if not self.crossovers:
            (first,) = self.fastest
            other = self.strategies[self.strategies[0] == first]
            count = len(self.sizes)
            if self.resolved == count:
                return f"{head}: {first} is faster than {other} at all {count} sizes; never overtaken within {within}"
            where = f"at {self.resolved} of {count} sizes, the others unresolved"
            return f"{head}: {first} is faster than {other} {where}; nowhere seen overtaken within {within}"
        at = [self._format_size(crossover) for crossover in self.crossovers]
        parts = [f"{self.fastest[0]} is faster below {at[0]}"]
        parts += [f"{name} from there to {end}" for name, end in zip(self.fastest[1:-1], at[1:], strict=True)]
        return f"{head}: {', '.join(parts)}, {self.fastest[-1]} above"

    def _format_size(self, crossover: Crossover) -> str:
        """Return the size, with its resolved neighbours if there are unresolved sizes between them."""
        at = format_binary_bytes(crossover.size_bytes)
        if self.sizes.index(crossover.high_bytes) - self.sizes.index(crossover.low_bytes) == 1:
            return at
        return f"{at} ({format_binary_bytes(crossover.low_bytes)} to {format_binary_bytes(crossover.high_bytes)})"


def compare_operations(frame: pd.DataFrame) -> list[OperationComparison]:
    """Compare each two strategies (or settings of one) of one framework that ran the same operation on as many devices
    of the same hardware.

    Sizes at which the limits of the difference include 0 are unresolved. These limits are over the repeats of three
    runs or more; fewer have none, since the blocks of a run say nothing about its next start.
    """
    comparisons, has_several = [], frame["hardware"].nunique() > 1
    for key, rows in group_operations(frame):
        hardware = str(key["hardware"]) if has_several else ""
        times = {line: times_by_size(own_rows) for line, own_rows in split_lines(rows).items()}
        for pair in itertools.combinations(sorted(times), 2):
            comparison = OperationComparison(str(key["name"]), int(key["gpus"]), int(key["nodes"]), hardware, pair)
            find_crossovers(comparison, times[pair[0]], times[pair[1]])
            comparisons += [comparison] if comparison.sizes else []
    return comparisons


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


def times_by_size(rows: pd.DataFrame, of_blocks: bool = False) -> dict[int, estimates.Estimate]:
    """Return the times of a line by size, over its runs; with `of_blocks` a single run has the limits of its blocks,
    which hold within this run only."""
    times: dict[int, estimates.Estimate] = {}
    for size, same_size in rows.groupby("size_bytes"):
        if of_blocks and len(same_size) == 1:
            (limits,) = same_size[["time_s", "time_low", "time_high"]].itertuples(index=False)
            times[int(size)] = estimates.Estimate(*map(float, limits))
        else:
            times[int(size)] = mean_over_repeats([float(time_s) for time_s in same_size["time_s"]])
    return times


def find_crossovers(
    into: OperationComparison, first: dict[int, estimates.Estimate], second: dict[int, estimates.Estimate]
) -> None:
    """Fill in which strategy is faster at which sizes; `first` and `second` are seconds by size, of into.strategies."""
    into.sizes = sorted(first.keys() & second.keys())
    into.has_limits = all(times[size].has_limits for times in (first, second) for size in into.sizes)
    last_resolved = 0  # place of the last size so far whose difference is resolved
    for number, size in enumerate(into.sizes):
        a, b = first[size], second[size]
        difference = combine({"a": 1.0, "b": -1.0}, {"a": a, "b": b})
        if difference.low <= 0 <= difference.high:
            continue
        into.resolved += 1
        faster = into.strategies[a.value > b.value]
        if into.fastest and into.fastest[-1] != faster:
            between = into.sizes[last_resolved : number + 1]
            ratios = [first[s].value / second[s].value for s in between]
            into.crossovers.append(Crossover(interpolate_crossover_bytes(between, ratios), between[0], between[-1]))
        if not into.fastest or into.fastest[-1] != faster:
            into.fastest.append(faster)
        last_resolved = number


def interpolate_crossover_bytes(sizes: Sequence[int], ratios: Sequence[float]) -> float:
    """Return where the least-squares line through (log size, log ratio) passes 0, within the sizes; between two points
    that is interpolation. The first and the last ratio are on different sides of 1."""
    x, y = np.log(np.array(sizes, dtype=np.float64)), np.log(np.array(ratios, dtype=np.float64))
    line = fit_least_squares([(1.0, at) for at in x - x[0]], y)
    start, slope = (0.0, 0.0) if line is None else line.coefficients
    share = -start / slope if slope else 0.0
    return float(np.exp(x[0] + np.clip(share, 0.0, x[-1] - x[0])))


LATENCY_KIND = "_latency"  # end of the kinds whose transfers are so small that their time is latency
BANDWIDTH_COLUMNS = (
    "run_id strategy options environment bind layout device_ids backend_used hardware gpus nodes repeat kind source "
    "target size_bytes moved_bytes time_s "
    "bytes_per_s bytes_per_s_low bytes_per_s_high"
).split()
BANDWIDTH_TEXTS = ("run_id", *VARIANT_COLUMNS, "backend_used", "hardware", "kind")
BANDWIDTH_COUNTS = ("gpus", "nodes", "repeat", "source", "target", "size_bytes", "moved_bytes")


def make_bandwidth_table(results: Iterable[Result]) -> pd.DataFrame:
    """Return one row for each run and transfer; source and target are ranks, null if all ranks take part at once.

    `bytes_per_s` counts all bytes that move at the same time, in both directions and for all devices; its 95 % interval
    is over blocks, in each of which the slowest rank's time counts. A limit that the blocks do not give is null.
    """
    rows = [row for result in results for row in list_transfers(result)]
    return make_typed_frame(rows, BANDWIDTH_COLUMNS, BANDWIDTH_TEXTS, BANDWIDTH_COUNTS)


def list_transfers(result: Result) -> list[dict[str, Any]]:
    """Return a row for each transfer that this run measured."""
    of_ranks = [rank.probes.bandwidth for rank in result.ranks if rank.probes is not None]
    if not of_ranks or not all(of_ranks):
        return []
    rows = []
    for same in zip(*of_ranks, strict=True):
        first = same[0]
        time_s = operation_s([transfer.block_s for transfer in same], first.repeats)
        moved = count_moved_bytes(first, result.scale.processes)
        rows.append(
            {
                **_shared_cells(result),
                "kind": first.kind, "source": first.source, "target": first.target, "size_bytes": first.size_bytes,
                "moved_bytes": moved, "time_s": time_s.value, "bytes_per_s": moved / time_s.value,
                "bytes_per_s_low": moved / time_s.high, "bytes_per_s_high": moved / time_s.low if time_s.low else None,
            }
        )  # fmt: skip
    return rows


def count_moved_bytes(transfer: TransferRecord, ranks: int) -> int:
    """Count the bytes of one transfer over all ranks and directions; a copy within host memory counts once."""
    directions = 2 if "both_ways" in transfer.kind else 1
    devices = ranks if transfer.source is None else 1
    return transfer.size_bytes * directions * devices
