"""The section `collectives` of a report: collective operations by message size, and bandwidths and latencies between
devices and with host memory; and the terminal's tables of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scalebench.analysis import collectives
from scalebench.core import units
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.flag_text import to_number, to_text
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

GIGA = 1e9
MAX_GROUPS = 16  # operations by framework, hardware and devices, each with two charts and a table
MAX_MATRICES = 12
LIMITS = (
    f"Intervals: 95 %, from {MIN_REPEATS_FOR_LIMITS} repeats on over these; that of a single run is over its blocks "
    "and says nothing about its next start."
)
TIME_CAPTION = f"The slowest rank's; small messages show the latency. Less is better. {LIMITS}"
RATE_CAPTION = "Bytes that a link carries per second, for any number of ranks. More is better."


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if no run measured collective operations or bandwidths."""
    operations, transfers = report_data.operations
    blocks: list[doc.Block] = []
    if len(operations):
        groups = collectives.group_operations(operations)
        for number, group in enumerate(groups[:MAX_GROUPS]):
            blocks += [*_draw_operation(number, *group), _make_collective_table(number, *group)]
        blocks += [doc.Paragraph(f"{sentence}.") for sentence in list_comparisons(operations)]
        blocks += doc.note_left_out(MAX_GROUPS, len(groups), "operations are shown; report --csv has all")
    if len(transfers):
        blocks += [*_make_matrices(transfers), make_bandwidth_table(transfers)]
    return doc.Section("collectives", "Collective operations and bandwidths", blocks) if blocks else None


def _draw_operation(number: int, key: dict[str, Any], rows: pd.DataFrame) -> Iterator[doc.Chart]:
    """Yield a chart of the time and one of the bandwidth of an operation, by size."""
    times, rates = [], []
    for name, own in collectives.split_lines(rows).items():
        tags = {"hardware": key["hardware"], "strategy": str(own["strategy"].iloc[0])}
        by_size = collectives.times_by_size(own, of_blocks=True)
        low, high = zip(*(time_s.limits for time_s in by_size.values()), strict=True)
        seconds = [time_s.value for time_s in by_size.values()]
        times.append(doc.Series(name, [*map(float, by_size)], seconds, low, high, tags))
        means = own.groupby("size_bytes")["busbw_bytes_per_s"].mean()
        rates.append(doc.Series(name, [*map(float, means.index)], [*map(float, means)], tags=tags))
    for figure, title, unit, lines, caption in (
        ("time", "time of an operation", "s", times, TIME_CAPTION),
        ("busbw", "bus bandwidth", "bytes/s", rates, RATE_CAPTION),
    ):
        axes = doc.Axis("message size (bytes)", log=True), doc.Axis(title, log=True, unit=unit)
        name = f"{_name_operation(key)}: {title.partition(' of ')[0]}"
        yield doc.Chart(f"collectives-{number}-{figure}", name, *axes, lines, caption=caption)


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
        figures = (matrix * factor).to_numpy()
        cells = [[doc.format_cell(to_number(value), "{:.3g}".format) for value in row] for row in figures]
        title = f"{kind} ({unit}): {lines[first.name]} on {first['gpus']} devices"
        heads = ["from rank", *(f"to {target}" for target in ranks)]
        caption = f"Transfers of {units.format_binary_bytes(int(first['size_bytes']))}, one at a time."
        rows_of_table = [(tags, [str(source), *of_source]) for source, of_source in zip(ranks, cells, strict=True)]
        yield spec.make_table(f"bandwidth-matrix-{number}", title, heads, rows_of_table, caption=caption)
    yield from doc.note_left_out(MAX_MATRICES, len(groups), "matrices are shown; report --csv has all")


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
    table_rows: list[tuple[doc.Tags, list[doc.Cell]]] = []
    for size in sorted(rows["size_bytes"].unique()):
        values = [doc.make_cell(units.format_binary_bytes(size), size)]
        for times_s, rate in zip(times, rates, strict=True):
            if (time_s := times_s.get(size)) is None:
                values += [doc.Cell("")] * 2
                continue
            share = f" ± {50 * (time_s.high - time_s.low) / time_s.value:.0f} %" if time_s.has_limits else ""
            values.append(doc.make_cell(units.format_seconds(time_s.value) + share, time_s.value))
            values.append(doc.make_cell(f"{units.format_bytes(rate[size])}/s", rate[size]))
        table_rows.append(({}, values))
    return spec.make_table(f"collectives-{number}", _name_operation(key), columns, table_rows, caption=LIMITS)


def make_bandwidth_table(frame: pd.DataFrame) -> doc.Table:
    """Make the table of scalebench.bandwidth, with a row for each transfer."""
    heads = ("strategy", "gpus", "transfer", "ranks", "size", "time", "GB/s (95 %)")
    rows: list[tuple[doc.Tags, list[Any]]] = []
    lines = collectives.name_lines(frame)
    for index, row in frame.iterrows():
        rate, low, high = (row[f"bytes_per_s{end}"] for end in ("", "_low", "_high"))
        limits = "" if not to_text(high) else f" [{low / GIGA:.3g}, {high / GIGA:.3g}]"
        figure = "" if row["kind"].endswith(collectives.LATENCY_KIND) else f"{rate / GIGA:.3g}{limits}"
        arrow = "<->" if "both_ways" in row["kind"] else "->"
        ranks = f"{row['source']} {arrow} {row['target']}" if to_text(row["source"]) else "all"
        ranks = str(row["source"]) if ranks != "all" and row["source"] == row["target"] else ranks
        size = doc.format_cell(row["size_bytes"], units.format_binary_bytes)
        time = doc.format_cell(row["time_s"], units.format_seconds)
        rows.append(({}, [lines[index], int(row["gpus"]), row["kind"], ranks, size, time, figure]))
    return spec.make_table("bandwidth", "bandwidth", heads, rows, ("transfer", "ranks"))
