"""The section `usage` of a report: what runs used of devices, processors and network, side by side. Layer 3.

The section `clocks` of a report: GPUs, cores and memory over the time of single runs. Layer 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.report import report_data, tables, usage_text
from scalebench.report.document import (
    DEVICES,
    THROUGHPUT,
    Axis,
    Block,
    Cells,
    Chart,
    Group,
    Section,
    Words,
    bars,
    groups,
    sentences,
    tags,
)
from scalebench.report.flag_text import text
from scalebench.report.report_data import Evidence

SHARE = Axis("share of the time", percent=True)
AT_EQUAL = "less is better where throughput is the same"
# Column, title, axis, what it is and which way is good.
FIGURES = (
    ("gpu_util_mean", "GPU utilisation", SHARE,
     "share of the time in which some kernel ran, mean of the devices; busier is not faster: a kernel may wait"),
    ("gpu_power_w_mean", "Power", Axis("watts"), f"of all devices together; {AT_EQUAL}"),
    ("peak_memory_bytes", "Device memory", Axis("bytes"),
     "peak of the fullest device; less leaves room for a larger batch"),
    ("sm_clock_mhz_mean", "GPU clock", Axis("MHz"), "of the cores, mean over time and devices; higher is better"),
    ("sm_clock_mhz_min", "Lowest GPU clock", Axis("MHz"), "of the cores, in any sample; higher is better"),
    ("mem_clock_mhz_min", "Lowest memory clock", Axis("MHz"), "of device memory, in any sample; higher is better"),
    ("cpu_util_mean", "CPU utilisation", SHARE,
     "of the cores that the run may use, whoever used them; busier is not faster: a loop may wait"),
    ("rss_peak_bytes", "Memory of a rank", Axis("bytes"), "largest resident memory of any rank; less is better"),
    ("net_sent_bytes_per_s", "Network, sent", Axis("bytes/s"), f"all interfaces but the loopback; {AT_EQUAL}"),
    ("net_received_bytes_per_s", "Network, received", Axis("bytes/s"), f"all interfaces but the loopback; {AT_EQUAL}"),
)  # fmt: skip
UTILISATIONS = {"gpu_util_mean": "GPU", "cpu_util_mean": "CPU"}
RISES = 0.05  # of all time; less may be chance


def section(evidence: Evidence) -> Section | None:
    """None where the monitor saw nothing."""
    found, words = groups(evidence.curves, lambda members: any(map(_seen, members)))
    blocks: list[Block] = [*words]
    for group in found:
        blocks += [*group.words, *_charts(group), *(words for curve in group.curves for words in _waits(curve))]
    return Section("usage", "Usage of devices, processors and network", blocks) if found else None


def _seen(curve: Curve) -> bool:
    return any(row[column] is not None for row in curve.rows for column, *_ in FIGURES)


def _charts(group: Group) -> Iterator[Chart]:
    for column, title, axis, what in FIGURES:
        drawn = bars(group.curves, column)
        if any(y for one in drawn for y in one.y):  # bars of 0, as of a network that nobody uses, cannot be seen
            caption = sentences(what, "measured while blocks were timed, without intervals")
            head = f"{title}: {group.title}"
            yield Chart(group.id("usage", column), head, Axis(DEVICES), axis, drawn, "bars", caption)


def _waits(curve: Curve) -> Iterator[Words]:
    """Where devices or processors are busier with more devices and nothing comes of it."""
    for column, name in UTILISATIONS.items():
        known = [row for row in curve.rows if row[column] is not None]
        for fewer, more in itertools.pairwise(known):
            if more[column] - fewer[column] > RISES and not _faster(fewer, more):
                yield Words(_sentence(curve.name, name, column, fewer, more), "warning", curve.tags)


def _faster(fewer: Cells, more: Cells) -> bool:
    """Whether throughput rises by what noise does not explain; by the figures alone where there is no interval."""
    low, high = more["throughput_low"], fewer["throughput_high"]
    return bool(more[THROUGHPUT] > fewer[THROUGHPUT] if low is None or high is None else low > high)


def _sentence(curve: str, name: str, column: str, fewer: Cells, more: Cells) -> str:
    said = f"{curve}: from {fewer['gpus']} to {more['gpus']} devices {name} utilisation rises from"
    said += f" {units.format_percent(fewer[column])} to {units.format_percent(more[column])}, but throughput does not: from"
    said += f" {tables.throughput(dict(fewer))} to {tables.throughput(dict(more))} samples/s."
    power = [row["gpu_power_w_mean"] for row in (fewer, more)]
    if name == "GPU" and None not in power:
        each = [f"{units.format_number(watts / row['gpus'])} W" for watts, row in zip(power, (fewer, more), strict=True)]
        said += f" Power of a device: {each[0]}, then {each[1]}."
    return f"{said} Time in which a backend waits within a kernel or in a loop counts as busy."


MOST_RUNS = 8  # a run has up to seven charts
MOST_FLAGGED = 5  # so that some stay for the runs that went as they should
# What a series shows; the first ones are of the clocks themselves.
FLAGS = ("throttled", "unequal_clocks", "hot_at_start", "foreign_process", "busy_machine")


def clocks_section(evidence: Evidence) -> Section | None:
    """None where no run was monitored, or could have been."""
    rows = {row["run_id"]: row for row in report_data.detailed(evidence) if row["status"] == "ok"}
    wanted = _wanted(evidence, rows)
    if not wanted:
        return None
    names = report_data.names(list(rows.values()))
    blocks: list[Block] = []
    missing: dict[str, list[str]] = {}  # reason -> runs
    told = 0
    for run_id in wanted:
        if told == MOST_RUNS:
            break
        row, result = rows[run_id], evidence.result(run_id)
        try:
            charts = usage_text.charts(result, evidence.folder(run_id), f"clocks-{told}", names[run_id], tags(row))
        except usage_text.NoSeries as why:
            missing.setdefault(str(why), []).append(names[run_id])
            continue
        told += 1
        blocks += [Words(_heading(names[run_id], row), tags=tags(row)), *charts]
    blocks += [Words(f"No series of {_listed(whose)}: {why}.") for why, whose in missing.items()]
    left = len(wanted) - told - sum(map(len, missing.values()))
    if left > 0:
        blocks.append(Words(f"{left} more runs with a flag, or of the most devices of a curve, are not drawn here."))
    if said := report_data.left_out(evidence):
        blocks.append(Words(said))
    return Section("clocks", "Clocks, power and processors while a run was measured", blocks, folded=True)


def _wanted(evidence: Evidence, rows: dict[str, report_data.Row]) -> list[str]:
    """Runs with a flag that a series explains, some of them first, and those of the most devices of each curve."""
    flagged = {run_id: [FLAGS.index(flag) for flag in text(row["flags"]).split() if flag in FLAGS]
               for run_id, row in rows.items()}  # fmt: skip
    first = sorted((run_id for run_id in rows if flagged[run_id]), key=lambda run_id: min(flagged[run_id]))
    largest = [str(curve.rows[-1]["run_id"]) for curve in evidence.curves]
    some, rest = first[:MOST_FLAGGED], first[MOST_FLAGGED:]
    return list(dict.fromkeys(run_id for run_id in [*some, *largest, *rest] if run_id in rows))


def _heading(name: str, row: report_data.Row) -> str:
    flags = [flag.replace("_", " ") for flag in text(row["flags"]).split() if flag in FLAGS]
    return f"{name}: {', '.join(flags)}" if flags else name


def _listed(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{'; '.join(names[:most])}{more}"
