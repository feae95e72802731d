"""What runs used of devices, processors and network, as means and over the time of single runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalebench.analysis.columns import select_heads
from scalebench.analysis.scaling_curves import Curve
from scalebench.core.result import Result
from scalebench.core.untrusted import find_run_file
from scalebench.measure.monitor.summary import measured_window
from scalebench.measure.monitor.time_series import TimeWindow, read_series
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.flag_text import format_flag
from scalebench.report.report_data import ReportData, list_detailed_runs, list_left_out_runs, name_runs

# The counters of a node's interfaces hold the traffic of all programs, and none of ranks that share the node.
BETWEEN_NODES = ("net_sent_bytes_per_s", "net_received_bytes_per_s")
HEADS = select_heads(
    "gpu_util_mean gpu_power_w_mean peak_memory_bytes sm_clock_mhz_mean sm_clock_mhz_min mem_clock_mhz_min "
    "cpu_util_mean rss_peak_bytes pcie_sent_bytes_per_step pcie_received_bytes_per_step nvlink_sent_bytes_per_step "
    "nvlink_received_bytes_per_step net_sent_bytes_per_s net_received_bytes_per_s"
)
TABLE_CAPTION = (
    "Utilisation, power and clock: means over time, by all programs; busier is not faster, since a kernel or a loop "
    "may wait. Power: of all devices together. Memory: of the fullest device, and of the largest rank. Network: of "
    "runs on several nodes only, all interfaces except the loopback. Power, memory and traffic: less is better at "
    "equal throughput."
)

MAX_MONITORED_RUNS = 4  # a run has up to seven charts
MAX_FLAGGED_RUNS = 2  # so that some are left for runs without flags
# Flags that a series explains; the first ones are about the clocks themselves.
CLOCK_FLAGS = ("throttled", "unequal_clocks", "hot_at_start", "foreign_process", "busy_machine")
MAX_MONITOR_POINTS = 200  # of a line
MAX_SERIES_BYTES = 2**28  # of a file: a day of eight GPUs is a third of it
SAMPLES_NOTE = (
    "Before 0 is warm-up. Of many samples the lowest and highest of each stretch are drawn, so that dips stay visible."
)


def _leave_out_traffic_within_nodes(curves: Sequence[Curve]) -> list[Curve]:
    def hide(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, **dict.fromkeys(BETWEEN_NODES)} if row["nodes"] == 1 else row

    return [replace(curve, rows=[*map(hide, curve.rows)]) for curve in curves]


usage_groups = spec.Groups(
    "usage",
    [spec.Listing("While blocks were timed", HEADS, TABLE_CAPTION)],
    prepare=_leave_out_traffic_within_nodes,
)


def draw_clocks(report_data: ReportData) -> Iterator[doc.Block]:
    """Draw the series of some runs that were monitored: first of those with a flag that a series explains, then of the
    largest run of each curve."""
    rows = {row["run_id"]: row for row in list_detailed_runs(report_data) if row["status"] == "ok"}
    flags = {run_id: [flag for flag in CLOCK_FLAGS if flag in (row["flags"] or "").split()]
             for run_id, row in rows.items()}  # fmt: skip
    first = sorted((run_id for run_id in rows if flags[run_id]), key=lambda name: CLOCK_FLAGS.index(flags[name][0]))
    largest = [str(curve.rows[-1]["run_id"]) for curve in report_data.curves]
    run_ids = dict.fromkeys([*first[:MAX_FLAGGED_RUNS], *largest, *first[MAX_FLAGGED_RUNS:]])
    left, names = [run_id for run_id in run_ids if run_id in rows], name_runs(list(rows.values()))
    if not left:
        return
    without_series: dict[str, list[str]] = {}  # reason -> runs
    count = 0
    while left and count < MAX_MONITORED_RUNS:
        run_id = left.pop(0)
        name, tags = names[run_id], doc.get_tags(rows[run_id])
        try:
            result, folder = report_data.result(run_id), report_data.folders[run_id]
            charts = make_monitor_charts(result, folder, f"clocks-{count}", name, tags)
        except NoSeries as error:
            without_series.setdefault(str(error), []).append(name)
            continue
        count += 1
        yield doc.Paragraph(": ".join(filter(None, [name, ", ".join(map(format_flag, flags[run_id]))])), tags=tags)
        yield from charts
    for reason, runs in without_series.items():
        yield doc.Paragraph(f"No series of {'; '.join(runs)}: {reason}.")
    yield from doc.note_left_out(count, count + len(left), "runs with a flag or the most devices are drawn")
    yield from list_left_out_runs(report_data)


class NoSeries(Exception):
    """There is nothing to draw; the message says why."""


# Of GPUs: the part of a chart's id, its title, the name in the monitor's series, and the axis.
GPU_QUANTITIES = (
    ("sm-clock", "SM clock", "sm_clock_mhz", doc.Axis("SM clock (MHz)", from_zero=False)),
    ("memory-clock", "memory clock", "mem_clock_mhz", doc.Axis("memory clock (MHz)", from_zero=False)),
    ("power", "power", "power_w", doc.Axis("power (W)")),
    ("temperature", "temperature", "temperature_c", doc.Axis("temperature (degrees C)", from_zero=False)),
    ("utilisation", "utilisation", "util_share", doc.Axis("share of the time in which a kernel ran", percent=True)),
)
TIME_AXIS = doc.Axis("seconds since measuring began", from_zero=False)


def make_monitor_charts(result: Result, folder: Path, chart_id: str, name: str, tags: doc.Tags) -> list[doc.Chart]:
    """Make charts of a run's monitor series from the first step to the end of the measured phase; if its GPUs were hot
    at the start, from the monitor's first sample on. Raises NoSeries if there is nothing to draw."""
    if result.monitor.file is None:
        raise NoSeries(result.monitor.reason or "it was not monitored")
    path = find_run_file(folder, result.monitor.file)
    if path is None:
        raise NoSeries(f"there is no {result.monitor.file} in its folder")
    if path.stat().st_size > MAX_SERIES_BYTES:
        raise NoSeries(f"{path.name} is too large to be drawn")
    try:
        series = read_series(path)
    except Exception as error:  # a file of that name may be anything
        raise NoSeries(f"{path.name} cannot be read: {' '.join(str(error).split())[:200]}") from error
    first = next((rank for rank in result.ranks if rank.rank == 0), None)
    window = measured_window(first)
    if first is None or window is None:
        raise NoSeries("its measured phase has no beginning or no end")
    begin_s = 0.0 if "hot_at_start" in result.flags else first.marks_s.get("warmup", window.begin_s)
    period = TimeWindow(begin_s, window.end_s)
    # The other nodes have their own series, by their own clocks.
    nodes = f" Of node 0; there are {result.scale.nodes} nodes." if result.scale.nodes > 1 else ""
    charts: list[doc.Chart] = []

    def select_points(source: str, quantity: str) -> doc.Points:
        return [*zip(series.times_s(source, quantity, period), series.values(source, quantity, period), strict=True)]

    def draw(quantity: str, title: str, axis: doc.Axis, lines: dict[str, doc.Points], note: str = "") -> None:
        """Draw the lines that have points, over the time from the start of the measured phase."""
        curves = []
        for line, points in lines.items():
            points = doc.downsample([(at_s - window.begin_s, value) for at_s, value in points], MAX_MONITOR_POINTS)
            if points:
                curves.append(doc.Series(line, [x for x, _ in points], [y for _, y in points], tags=tags))
        if curves:
            heading, caption = f"{title}: {name}", note + SAMPLES_NOTE + nodes
            charts.append(doc.Chart(f"{chart_id}-{quantity}", heading, TIME_AXIS, axis, curves, caption=caption))

    devices = [device.index for device in result.monitor.devices if not device.node]
    for quantity, title, column, axis in GPU_QUANTITIES:
        draw(quantity, title, axis, {f"GPU {index}": select_points(f"gpu{index}", column) for index in devices})
    cores = {"all programs": _compute_rates(select_points("cpu", "busy_s")),
             "this run": _compute_rates(select_points("ours", "cpu_s"))}  # fmt: skip
    limit = next(iter(series.values("cpu", "cores")), None)
    note = f"Of the {limit:g} cores that the run may use. " if limit is not None else ""
    draw("cores", "busy processor cores", doc.Axis("cores' worth of time"), cores, note)
    ranks = sorted(series.sources("process:"), key=lambda source: (len(source), source))
    memory = {f"rank {source.removeprefix('process:')}": select_points(source, "rss_bytes")
              for source in ranks}  # fmt: skip
    draw("memory", "resident memory", doc.Axis("resident memory", unit="bytes"), memory)
    if not charts:
        raise NoSeries("its series has nothing of the measured phase")
    return charts


def _compute_rates(counts: doc.Points) -> doc.Points:
    """Return the growth of a counter per second, at the end of each interval; none where it was reset."""
    rates = [(b, (y - x) / (b - a)) for (a, x), (b, y) in itertools.pairwise(counts) if b > a]
    return [(at_s, rate) for at_s, rate in rates if rate >= 0]
