"""Collective operations and bandwidths for people: terminal tables, and who overtakes whom in words. Layer 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from scalebench.crossover import COMPARABLE, crossovers, size_words
from scalebench.results import COLLECTIVES

if TYPE_CHECKING:
    import pandas as pd

GIGA = 1e9


def tables(frame: pd.DataFrame) -> list[Table]:
    """Of scalebench.collectives: one for each operation and number of devices, sizes down, strategies across."""
    order = {name: number for number, name in enumerate(COLLECTIVES)}
    groups = sorted(frame.groupby(COMPARABLE), key=lambda group: (*group[0][:-1], order.get(group[0][-1], 0)))
    return [_table(dict(zip(COMPARABLE, key, strict=True)), rows) for key, rows in groups]


def sentences(frame: pd.DataFrame) -> list[str]:
    """One for each two strategies and operation: who is faster, and from which size on."""
    return [comparison.sentence() for comparison in crossovers(frame)]


def bandwidth_table(frame: pd.DataFrame) -> Table:
    """Of scalebench.bandwidth: one row for each transfer."""
    table = Table(title=Text("bandwidth"), title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("strategy", "gpus", "transfer", "ranks", "size", "GB/s (95 %)"):
        table.add_column(name, justify="right" if name in ("gpus", "size", "GB/s (95 %)") else "left")
    for row in frame.to_dict("records"):
        rate = _with_limits(row["bytes_per_s"] / GIGA, row["bytes_per_s_low"], row["bytes_per_s_high"])
        size = size_words(row["size_bytes"])
        table.add_row(*map(Text, (row["strategy"], str(row["gpus"]), row["kind"], _ranks(row), size, rate)))
    return table


def _table(key: dict[str, Any], rows: pd.DataFrame) -> Table:
    over = f" on {key['nodes']} nodes" if key["nodes"] > 1 else ""
    title = f"{key['name']} on {key['gpus']} devices{over} ({key['framework']}, {key['hardware']})"
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("size", justify="right")
    strategies = sorted(rows["strategy"].unique())
    for strategy in strategies:
        table.add_column(f"{strategy} (95 %)", justify="right")
        table.add_column("busbw", justify="right")
    for size, same in rows.groupby("size_bytes"):
        cells = [size_words(size)]
        for strategy in strategies:
            mine = same[same["strategy"] == strategy]
            cells += _cells(mine) if len(mine) else ["", ""]
        table.add_row(*map(Text, cells))
    return table


def _cells(rows: pd.DataFrame) -> list[str]:
    """Time and bus bandwidth, means over the runs, between the lowest and the highest of their limits."""
    taken, low, high = rows["time_s"].mean(), rows["time_low"].min(), rows["time_high"].max()
    busbw = rows["busbw_bytes_per_s"].mean()
    return [f"{time_words(taken)} ± {100 * (high - low) / 2 / taken:.0f} %", rate_words(busbw)]


def time_words(taken_s: float) -> str:
    """`12.3 µs`"""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if taken_s * factor < 1000:
            return f"{taken_s * factor:.3g} {unit}"
    return f"{taken_s:.3g} s"


def rate_words(bytes_per_s: float) -> str:
    """`12.3 MB/s`, in powers of ten, as links are given."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if bytes_per_s < 1000:
            return f"{bytes_per_s:.3g} {unit}"
        bytes_per_s /= 1000
    return f"{bytes_per_s:.3g} GB/s"


def _with_limits(rate: float, low: Any, high: Any) -> str:
    return f"{rate:.3g}" if _unknown(high) else f"{rate:.3g} [{low / GIGA:.3g}, {high / GIGA:.3g}]"


def _ranks(row: dict[str, Any]) -> str:
    if _unknown(row["source"]):
        return "all"
    if row["source"] == row["target"]:
        return str(row["source"])
    return f"{row['source']} {'<->' if 'both_ways' in row['kind'] else '->'} {row['target']}"


def _unknown(value: Any) -> bool:
    return str(value) in ("<NA>", "nan", "None")
