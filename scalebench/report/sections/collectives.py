"""Collective operations by message size, and bandwidths and latencies between devices and with host memory; the
terminal shows the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scalebench.analysis import collectives
from scalebench.analysis.columns import estimate_of
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

GIGA = 1e9
LIMITS = (
    f"Intervals: 95 %, from {MIN_REPEATS_FOR_LIMITS} repeats on over these; that of a single run is over its blocks "
    "and says nothing about its next start."
)
TIME_CAPTION = f"The slowest rank's; small messages show the latency. Less is better. {LIMITS}"
RATE_CAPTION = "Bytes that a link carries per second, for any number of ranks. More is better."


def list_blocks(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield what runs measured of collective operations and bandwidths."""
    operations, transfers = report_data.operations
    for number, group in enumerate(collectives.group_operations(operations) if len(operations) else ()):
        yield from _draw_operation(number, *group)
        yield _make_collective_table(number, *group)
    if len(transfers):
        yield from _make_matrices(transfers)
        yield make_bandwidth_table(transfers)


def _draw_operation(number: int, key: dict[str, Any], rows: pd.DataFrame) -> Iterator[doc.Chart]:
    """Yield a chart of the time and one of the bandwidth of an operation, by size."""
    times, rates = [], []
    for name, own in collectives.split_lines(rows).items():
        tags = {"hardware": key["hardware"], "strategy": str(own["strategy"].iloc[0])}
        by_size, means = collectives.times_by_size(own, of_blocks=True), _mean_bandwidths(own)
        low, high = zip(*(time_s.limits for time_s in by_size.values()), strict=True)
        seconds = [time_s.value for time_s in by_size.values()]
        times.append(doc.Series(name, [*map(float, by_size)], seconds, low, high, tags))
        rates.append(doc.Series(name, [*map(float, means)], [*means.values()], tags=tags))
    for figure, title, unit, lines, caption in (
        ("time", "time of an operation", "s", times, TIME_CAPTION),
        ("busbw", "bus bandwidth", "bytes/s", rates, RATE_CAPTION),
    ):
        axes = doc.Axis("message size (bytes)", log=True), doc.Axis(title, log=True, unit=unit)
        name = f"{_name_operation(key)}: {title.partition(' of ')[0]}"
        yield doc.Chart(f"collectives-{number}-{figure}", name, *axes, lines, caption=caption)


def _mean_bandwidths(rows: pd.DataFrame) -> dict[int, float]:
    """Return the bus bandwidth by size, means over runs."""
    means = rows.groupby("size_bytes")["busbw_bytes_per_s"].mean()
    return dict(zip(map(int, means.index), map(float, means), strict=True))


def _make_matrices(frame: pd.DataFrame) -> Iterator[doc.Table]:
    """Yield a table for each run and way between devices, with a row for each source and a column for each target:
    bandwidth, or latency."""
    one_way = frame[frame["kind"].str.endswith(("_one_way", collectives.LATENCY_KIND))]
    lines = collectives.name_lines(frame)
    for number, ((_, kind), rows) in enumerate(one_way.groupby(["run_id", "kind"], sort=False)):
        first, is_latency = rows.iloc[0], str(kind).endswith(collectives.LATENCY_KIND)
        column, factor, unit = ("time_s", 1e6, "us") if is_latency else ("bytes_per_s", 1 / GIGA, "GB/s")
        figures = {(row["source"], row["target"]): factor * row[column] for _, row in rows.iterrows()}
        ranks, tags = range(int(first["gpus"])), {"hardware": first["hardware"], "strategy": first["strategy"]}
        table_rows = [
            (tags, {"from rank": str(source), **{
                f"to {target}": (figures.get((source, target)), "{:.3g}".format) for target in ranks
            }})
            for source in ranks
        ]  # fmt: skip
        title = f"{kind} ({unit}): {lines[first.name]} on {first['gpus']} devices"
        caption = f"Transfers of {units.format_binary_bytes(int(first['size_bytes']))}, one at a time."
        yield spec.make_table(f"bandwidth-matrix-{number}", title, table_rows, caption=caption)


def make_collective_tables(frame: pd.DataFrame) -> list[doc.Table]:
    """Make the tables of scalebench.collectives: one for each operation and device count, with a row for each size and
    columns for each strategy."""
    return [_make_collective_table(number, *group) for number, group in enumerate(collectives.group_operations(frame))]


def _name_operation(key: dict[str, Any]) -> str:
    nodes = f" on {key['nodes']} nodes" if key["nodes"] > 1 else ""
    return f"{key['name']} on {key['gpus']} devices{nodes} ({key['framework']}, {key['hardware']})"


def _make_collective_table(number: int, key: dict[str, Any], rows: pd.DataFrame) -> doc.Table:
    lines = collectives.split_lines(rows)
    times = {line: collectives.times_by_size(own, of_blocks=True) for line, own in lines.items()}
    rates = {line: _mean_bandwidths(own) for line, own in lines.items()}
    table_rows: list[tuple[doc.Tags, dict[str, Any]]] = []
    for size in sorted(rows["size_bytes"].unique()):
        values: dict[str, Any] = {"size": doc.make_cell(units.format_binary_bytes(size), size)}
        for line in lines:
            values[f"{line} (95 %)"] = (times[line].get(size), _format_time)
            values[f"busbw, {line}"] = (rates[line].get(size), lambda r: f"{units.format_bytes(r)}/s")
        table_rows.append(({}, values))
    return spec.make_table(f"collectives-{number}", _name_operation(key), table_rows, caption=LIMITS)


def _format_time(time_s: Estimate) -> str:
    """Return `1.02 ms ± 3 %`."""
    share = f" ± {50 * (time_s.high - time_s.low) / time_s.value:.0f} %" if time_s.has_limits else ""
    return units.format_seconds(time_s.value) + share


def make_bandwidth_table(frame: pd.DataFrame) -> doc.Table:
    """Make the table of scalebench.bandwidth, with a row for each transfer."""
    rows = list[spec.TableRow]()
    for line, row in zip(collectives.name_lines(frame), plain_rows(frame), strict=True):
        rate = estimate_of(row, "bytes_per_s")
        is_latency, ranks = row["kind"].endswith(collectives.LATENCY_KIND), "all"
        if row["source"] is not None:
            arrow = "<->" if "both_ways" in row["kind"] else "->"
            ranks = f"{row['source']} {arrow} {row['target']}" if row["source"] != row["target"] else str(row["source"])
        rows.append(({}, {
            "strategy": line, doc.DEVICES: row["gpus"], "transfer": row["kind"], "ranks": ranks,
            "size": (row["size_bytes"], units.format_binary_bytes),
            "time": (row["time_s"], units.format_seconds),
            "GB/s (95 %)": "" if rate is None or is_latency else units.format_limits(rate, lambda x: f"{x / GIGA:.3g}"),
        }))  # fmt: skip
    return spec.make_table("bandwidth", "bandwidth", rows, ("transfer", "ranks"))
