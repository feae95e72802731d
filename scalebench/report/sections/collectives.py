"""The section `collectives` of a report: collective operations by message size, and bandwidths and latencies between
devices and with host memory; and the terminal's tables of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scalebench.analysis import collectives
from scalebench.core import units
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS
from scalebench.report import document as doc
from scalebench.report.flag_text import to_text
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

GIGA = 1e9
MAX_GROUPS = 16  # operations by framework, hardware and devices, each with two charts and a table
MAX_MATRICES = 12
# Column of the frame, title, axis.
CURVES = (
    ("time_s", "time", doc.Axis("time of an operation", log=True, unit="s")),
    ("busbw_bytes_per_s", "bus bandwidth", doc.Axis("bus bandwidth", log=True, unit="bytes/s")),
)
LIMITS = (
    f"Intervals: 95 %, from {MIN_REPEATS_FOR_LIMITS} repeats on over these; that of a single run is over its blocks "
    "and says nothing about its next start."
)
CURVE_CAPTIONS = {
    "time_s": f"The slowest rank's; small messages show the latency. Less is better. {LIMITS}",
    "busbw_bytes_per_s": "Bytes that a link carries per second, for any number of ranks. More is better.",
}


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no run measured collective operations or bandwidths."""
    operations, transfers = report_data.operations
    blocks: list[doc.Block] = []
    if len(operations):
        blocks += _make_operation_blocks(operations)
    if len(transfers):
        blocks += [*_make_matrices(transfers), make_bandwidth_table(transfers)]
    return doc.Section("collectives", "Collective operations and bandwidths", blocks) if blocks else None


def _make_operation_blocks(frame: pd.DataFrame) -> Iterator[doc.Block]:
    """Yield charts and a table for each operation, and the sizes from which one strategy is faster than another."""
    groups = collectives.group_operations(frame)
    for number, (key, rows) in enumerate(groups[:MAX_GROUPS]):
        tags = {"hardware": key["hardware"]}
        lines = collectives.split_lines(rows)
        for column, name, axis in CURVES:
            series = [_make_line(line, own, column, tags) for line, own in lines.items()]
            title, x = f"{_name_operation(key)}: {name}", doc.Axis("message size (bytes)", log=True)
            block_id = f"collectives-{number}-{column.partition('_')[0]}"
            yield doc.Chart(block_id, title, x, axis, series, caption=CURVE_CAPTIONS[column])
        yield _make_collective_table(number, key, rows)
    yield from (doc.Paragraph(f"{sentence}.") for sentence in list_comparisons(frame))
    if len(groups) > MAX_GROUPS:
        yield doc.Paragraph(f"{MAX_GROUPS} of {len(groups)} operations are shown; report --csv has all.")


def _make_line(name: str, rows: pd.DataFrame, column: str, tags: doc.Tags) -> doc.Series:
    tags = {**tags, "strategy": str(rows["strategy"].iloc[0])}
    if column != "time_s":
        means = rows.groupby("size_bytes")[column].mean()
        return doc.Series(name, [*map(float, means.index)], [*map(float, means)], tags=tags)
    times = collectives.times_by_size(rows, of_blocks=True)
    has_limits = all(time_s.has_limits for time_s in times.values())
    low, high = ([time_s.limits[end] for time_s in times.values()] if has_limits else [] for end in (0, 1))
    return doc.Series(name, [*map(float, times)], [time_s.value for time_s in times.values()], low, high, tags)


def list_comparisons(frame: pd.DataFrame) -> Iterator[str]:
    """Yield `all_reduce on 2 devices (torch, cpu): horovod_mpi is faster from 4 B to 16 KiB, ddp_gloo from 64 KiB to
    256 MiB` for each two strategies."""
    for each in collectives.compare_operations(frame):
        head, span, count = _name_operation(each.operation), _format_sizes(each.sizes), len(each.sizes)
        if not each.faster:
            few = f": fewer than {MIN_REPEATS_FOR_LIMITS} repeats, measure.repeats={MIN_REPEATS_FOR_LIMITS} decides"
            text = f"{head}: no difference between {' and '.join(each.strategies)} is resolved {span}"
            yield text if each.has_limits else text + few
        elif len(each.faster) == 1:
            (name, sizes), (other,) = each.faster[0], {*each.strategies} - {each.faster[0][0]}
            is_all = len(sizes) == count
            where = f"all {count} sizes" if is_all else f"{len(sizes)} of {count} sizes, the others unresolved,"
            yield f"{head}: {name} is faster than {other} at {where} {span}"
        else:
            (first, sizes), *others = each.faster
            parts = [f"{first} is faster {_format_sizes(sizes)}"]
            parts += [f"{name} {_format_sizes(sizes)}" for name, sizes in others]
            yield f"{head}: {', '.join(parts)}"


def _format_sizes(sizes: Sequence[int]) -> str:
    first, last = (units.format_binary_bytes(size) for size in (sizes[0], sizes[-1]))
    return f"at {first}" if first == last else f"from {first} to {last}"


def _make_matrices(frame: pd.DataFrame) -> Iterator[doc.Table | doc.Paragraph]:
    """Yield a table for each run and way between devices, with a row for each source and a column for each target:
    bandwidth, or latency."""
    one_way = frame[frame["kind"].str.endswith(("_one_way", collectives.LATENCY_KIND))]
    groups = list(one_way.groupby(["run_id", "kind"], sort=False))
    lines = collectives.name_lines(frame)
    for number, ((_, kind), rows) in enumerate(groups[:MAX_MATRICES]):
        first, is_latency = rows.iloc[0], str(kind).endswith(collectives.LATENCY_KIND)
        column, factor, unit = ("time_s", 1e6, "us") if is_latency else ("bytes_per_s", 1 / GIGA, "GB/s")
        ranks = range(int(first["gpus"]))
        matrix = rows.pivot(index="source", columns="target", values=column).reindex(index=ranks, columns=ranks)
        tags = {"hardware": str(first["hardware"]), "strategy": str(first["strategy"])}
        table_rows = [
            doc.Row([doc.make_cell(str(source)), *(_make_figure(value * factor) for value in of_source)], tags)
            for source, of_source in zip(ranks, matrix.to_numpy(float, na_value=math.nan).tolist(), strict=True)
        ]
        title = f"{kind} ({unit}): {lines[first.name]} on {first['gpus']} devices"
        heads = ["from rank", *(f"to {target}" for target in ranks)]
        caption = f"Transfers of {units.format_binary_bytes(int(first['size_bytes']))}, one at a time."
        yield doc.Table(f"bandwidth-matrix-{number}", title, heads, table_rows, frozenset(heads[1:]), caption)
    if len(groups) > MAX_MATRICES:
        yield doc.Paragraph(f"{MAX_MATRICES} of {len(groups)} matrices are shown; report --csv has all.")


def _make_figure(value: float) -> doc.Cell:
    return doc.Cell("") if math.isnan(value) else doc.Cell(f"{value:.3g}", value)


def make_collective_tables(frame: pd.DataFrame) -> list[doc.Table]:
    """Make the tables of scalebench.collectives: one for each operation and device count, with a row for each size and
    columns for each strategy."""
    return [_make_collective_table(number, *group) for number, group in enumerate(collectives.group_operations(frame))]


def _name_operation(key: dict[str, Any]) -> str:
    nodes = f" on {key['nodes']} nodes" if key["nodes"] > 1 else ""
    return f"{key['name']} on {key['gpus']} devices{nodes} ({key['framework']}, {key['hardware']})"


def _make_collective_table(number: int, key: dict[str, Any], rows: pd.DataFrame) -> doc.Table:
    lines = collectives.split_lines(rows)
    columns = ["size", *(name for line in lines for name in (f"{line} (95 %)", "busbw"))]
    times = [collectives.times_by_size(own, of_blocks=True) for own in lines.values()]
    rates = [own.groupby("size_bytes")["busbw_bytes_per_s"].mean() for own in lines.values()]
    table_rows = []
    for size in sorted(rows["size_bytes"].unique()):
        texts = [units.format_binary_bytes(size)]
        for times_s, rate in zip(times, rates, strict=True):
            time_s = times_s.get(size)
            if time_s is None:
                texts += ["", ""]
                continue
            share = f" ± {50 * (time_s.high - time_s.low) / time_s.value:.0f} %" if time_s.has_limits else ""
            texts += [units.format_seconds(time_s.value) + share, f"{units.format_bytes(rate[size])}/s"]
        table_rows.append(doc.Row([doc.Cell(text) for text in texts]))
    return doc.Table(f"collectives-{number}", _name_operation(key), columns, table_rows, frozenset(columns), LIMITS)


def make_bandwidth_table(frame: pd.DataFrame) -> doc.Table:
    """Make the table of scalebench.bandwidth, with a row for each transfer."""
    columns = ("strategy", "gpus", "transfer", "ranks", "size", "time", "GB/s (95 %)")
    rows = []
    lines = collectives.name_lines(frame)
    for index, row in frame.head(doc.MAX_ROWS).iterrows():
        rate, low, high = (row[f"bytes_per_s{end}"] for end in ("", "_low", "_high"))
        limits = "" if not to_text(high) else f" [{low / GIGA:.3g}, {high / GIGA:.3g}]"
        figure = "" if row["kind"].endswith(collectives.LATENCY_KIND) else f"{rate / GIGA:.3g}{limits}"
        arrow = "<->" if "both_ways" in row["kind"] else "->"
        ranks = "all" if not to_text(row["source"]) else f"{row['source']} {arrow} {row['target']}"
        ranks = str(row["source"]) if to_text(row["source"]) and row["source"] == row["target"] else ranks
        size, time = units.format_binary_bytes(row["size_bytes"]), units.format_seconds(row["time_s"])
        texts = (lines[index], str(row["gpus"]), row["kind"], ranks, size, time, figure)
        rows.append(doc.Row([doc.Cell(text) for text in texts]))
    more = f"{doc.MAX_ROWS} of {len(frame)} rows." if len(frame) > doc.MAX_ROWS else ""
    numeric = frozenset(columns) - {"strategy", "transfer", "ranks"}
    return doc.Table("bandwidth", "bandwidth", columns, rows, numeric, more)
