"""The section `collectives` of a report: collective operations by message size, and bandwidths and latencies between
devices and with host memory; and the terminal's tables of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scalebench.analysis import collectives
from scalebench.core.units import format_binary_bytes
from scalebench.report.document import (
    MAX_ROWS,
    Axis,
    Block,
    Cell,
    Chart,
    Paragraph,
    Row,
    Section,
    Series,
    Table,
    Tags,
    make_cell,
)
from scalebench.report.flag_text import to_text
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

GIGA = 1e9
MAX_GROUPS = 16  # operations by framework, hardware and devices, each with two charts and a table
MAX_MATRICES = 12
# Column of the frame, its stem of limits, title, axis.
CURVES = (
    ("time_s", "time", "time", Axis("time of an operation", log=True, unit="s")),
    ("busbw_bytes_per_s", "", "bus bandwidth", Axis("bus bandwidth", log=True, unit="bytes/s")),
)
CURVE_CAPTIONS = {
    "time_s": "The slowest rank's; small messages show the latency. Less is better. Intervals: 95 %, over blocks, from "
    "the lowest to the highest of several runs.",
    "busbw_bytes_per_s": "Bytes that a link carries per second, for any number of ranks. More is better.",
}


def section(report_data: ReportData) -> Section | None:
    """Return None if no run measured collective operations or bandwidths."""
    operations, transfers = report_data.operations
    blocks: list[Block] = []
    if len(operations):
        blocks += _make_operation_blocks(operations)
    if len(transfers):
        blocks += [*_make_matrices(transfers), make_bandwidth_table(transfers)]
    return Section("collectives", "Collective operations and bandwidths", blocks) if blocks else None


def _make_operation_blocks(frame: pd.DataFrame) -> Iterator[Block]:
    """Yield charts and a table for each operation, and the sizes from which one strategy is faster than another."""
    groups = collectives.group_operations(frame)
    for number, (key, rows) in enumerate(groups[:MAX_GROUPS]):
        tags = {"hardware": key["hardware"]}
        lines = [(str(strategy), _mean_of_runs(own)) for strategy, own in rows.groupby("strategy")]
        for column, stem, name, axis in CURVES:
            series = [_make_line(strategy, means, column, stem, tags) for strategy, means in lines]
            title, x = f"{_name_operation(key)}: {name}", Axis("message size (bytes)", log=True)
            block_id = f"collectives-{number}-{column.partition('_')[0]}"
            yield Chart(block_id, title, x, axis, series, caption=CURVE_CAPTIONS[column])
        yield _make_collective_table(number, key, rows)
    yield from (Paragraph(f"{each.sentence()}.") for each in collectives.compare_operations(frame))
    if len(groups) > MAX_GROUPS:
        yield Paragraph(f"{MAX_GROUPS} of {len(groups)} operations are shown; report --csv has all.")


def _mean_of_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each size, with limits from the lowest to the highest of the runs."""
    reducers = {"time_s": "mean", "time_low": "min", "time_high": "max", "busbw_bytes_per_s": "mean"}
    return rows.groupby("size_bytes").agg(reducers).reset_index()


def _make_line(strategy: str, rows: pd.DataFrame, column: str, stem: str, tags: Tags) -> Series:
    low, high = ([*map(float, rows[f"{stem}_{end}"])] if stem else [] for end in ("low", "high"))
    x, y = [*map(float, rows["size_bytes"])], [*map(float, rows[column])]
    return Series(strategy, x, y, low, high, {**tags, "strategy": strategy})


def _make_matrices(frame: pd.DataFrame) -> Iterator[Table | Paragraph]:
    """Yield a table for each run and way between devices, with a row for each source and a column for each target:
    bandwidth, or latency."""
    one_way = frame[frame["kind"].str.endswith(("_one_way", collectives.LATENCY_KIND))]
    groups = list(one_way.groupby(["run_id", "kind"], sort=False))
    for number, ((_, kind), rows) in enumerate(groups[:MAX_MATRICES]):
        first, is_latency = rows.iloc[0], str(kind).endswith(collectives.LATENCY_KIND)
        column, factor, unit = ("time_s", 1e6, "us") if is_latency else ("bytes_per_s", 1 / GIGA, "GB/s")
        cells = {(int(r["source"]), int(r["target"])): float(r[column]) * factor for r in rows.to_dict("records")}
        ranks = range(int(first["gpus"]))
        tags = {"hardware": str(first["hardware"]), "strategy": str(first["strategy"])}
        made = [
            Row([make_cell(str(source)), *(_make_figure(cells.get((source, target))) for target in ranks)], tags)
            for source in ranks
        ]
        title = f"{kind} ({unit}): {first['strategy']} on {first['gpus']} devices"
        heads = ["from rank", *(f"to {target}" for target in ranks)]
        caption = f"Transfers of {format_binary_bytes(int(first['size_bytes']))}, one at a time."
        yield Table(f"bandwidth-matrix-{number}", title, heads, made, frozenset(heads[1:]), caption)
    if len(groups) > MAX_MATRICES:
        yield Paragraph(f"{MAX_MATRICES} of {len(groups)} matrices are shown; report --csv has all.")


def _make_figure(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(f"{value:.3g}", value)


def make_collective_tables(frame: pd.DataFrame) -> list[Table]:
    """Make the tables of scalebench.collectives: one for each operation and device count, with a row for each size and
    columns for each strategy."""
    return [_make_collective_table(number, *group) for number, group in enumerate(collectives.group_operations(frame))]


def _name_operation(key: dict[str, Any]) -> str:
    nodes = f" on {key['nodes']} nodes" if key["nodes"] > 1 else ""
    return f"{key['name']} on {key['gpus']} devices{nodes} ({key['framework']}, {key['hardware']})"


def _make_collective_table(number: int, key: dict[str, Any], rows: pd.DataFrame) -> Table:
    strategies = sorted(rows["strategy"].unique())
    columns = ["size", *(name for strategy in strategies for name in (f"{strategy} (95 %)", "busbw"))]
    made = []
    for size, same_size in rows.groupby("size_bytes"):
        cells = [format_binary_bytes(size)]
        for strategy in strategies:
            cells += _format_operation(same_size[same_size["strategy"] == strategy])
        made.append(Row([Cell(text) for text in cells]))
    return Table(f"collectives-{number}", _name_operation(key), columns, made, frozenset(columns))


def _format_operation(rows: pd.DataFrame) -> list[str]:
    """Format time and bus bandwidth, means over the runs, with limits from the lowest to the highest of theirs."""
    if rows.empty:
        return ["", ""]
    time_s, low_s, high_s = rows["time_s"].mean(), rows["time_low"].min(), rows["time_high"].max()
    busbw = format_rate(rows["busbw_bytes_per_s"].mean())
    return [f"{format_time(time_s)} ± {100 * (high_s - low_s) / 2 / time_s:.0f} %", busbw]


def make_bandwidth_table(frame: pd.DataFrame) -> Table:
    """Make the table of scalebench.bandwidth, with a row for each transfer."""
    columns = ("strategy", "gpus", "transfer", "ranks", "size", "time", "GB/s (95 %)")
    rows = []
    for row in frame.head(MAX_ROWS).to_dict("records"):
        rate, low, high = (row[f"bytes_per_s{end}"] for end in ("", "_low", "_high"))
        limits = "" if not to_text(high) else f" [{low / GIGA:.3g}, {high / GIGA:.3g}]"
        size = format_binary_bytes(row["size_bytes"])
        is_latency = row["kind"].endswith(collectives.LATENCY_KIND)
        figure = "" if is_latency else f"{rate / GIGA:.3g}{limits}"
        texts = (row["strategy"], str(row["gpus"]), row["kind"], _format_ranks(row), size)
        rows.append(Row([Cell(text) for text in (*texts, format_time(row["time_s"]), figure)]))
    more = f"{MAX_ROWS} of {len(frame)} rows." if len(frame) > MAX_ROWS else ""
    return Table("bandwidth", "bandwidth", columns, rows, frozenset(columns) - {"strategy", "transfer", "ranks"}, more)


def format_time(time_s: float) -> str:
    """Return `12.3 µs`."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if time_s * factor < 1000:
            return f"{time_s * factor:.3g} {unit}"
    return f"{time_s:.3g} s"


def format_rate(bytes_per_s: float) -> str:
    """Return `12.3 MB/s`, in powers of ten, as link rates are stated."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if bytes_per_s < 1000:
            return f"{bytes_per_s:.3g} {unit}"
        bytes_per_s /= 1000
    return f"{bytes_per_s:.3g} GB/s"


def _format_ranks(row: dict[str, Any]) -> str:
    if not to_text(row["source"]):
        return "all"
    if row["source"] == row["target"]:
        return str(row["source"])
    return f"{row['source']} {'<->' if 'both_ways' in row['kind'] else '->'} {row['target']}"
