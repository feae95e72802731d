"""What a run used of processors, memory, GPUs, network and disks, in words. Layer 3.

What the monitor's series of one run show, as charts over the seconds of its measured phase. Layer 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.core.result import MonitorRecord, RankRecord, Result
from scalebench.core.units import format_number, format_percent, format_bytes
from scalebench.measure.monitor.summary import measured_window
from scalebench.measure.monitor.time_series import TimeSeries as Seen
from scalebench.measure.monitor.time_series import TimeWindow, read_series
from scalebench.report.document import Axis, Chart, Points, Series, Tags, thin
from scalebench.report.report_data import inside

Part = tuple[str, Callable[[Any], str]]  # field of the monitor, its words


def said(template: str, of: Callable[[float], str]) -> Callable[[Any], str]:
    return lambda value: template.format(of(value))


# Row -> its parts, of which those that were not measured are left out.
ROWS: dict[str, list[Part]] = {
    "processor cores": [
        ("cpu_util_mean", said("{} of those the run may use were busy", format_percent)),
        ("cpu_util_ours_mean", said("{} with the run's processes", format_percent)),
        ("cpu_cores_others_mean", said("other programs took {} cores' worth", format_number)),
    ],
    "memory at most": [
        ("rss_bytes_max", said("{}, all ranks together", format_bytes)),
        ("rss_anon_bytes_max", said("{} without mapped files", format_bytes)),
        ("memory_available_bytes_min", said("{} of the machine were left", format_bytes)),
    ],
    "swapped": [
        ("swap_in_bytes", said("{} in", format_bytes)),
        ("swap_out_bytes", said("{} out", format_bytes)),
    ],
    "GPUs": [
        ("gpu_util_mean", said("busy {} of the time", format_percent)),
        ("gpu_power_w_mean", said("{} W, all together", format_number)),
        ("energy_j", said("{} J", format_number)),
        ("gpu_temperature_c_max", said("{} degrees C at most", format_number)),
    ],
    "GPU clocks": [
        ("sm_clock_mhz_mean", said("cores {} MHz", format_number)),
        ("sm_clock_mhz_min", said("at least {}", format_number)),
        ("mem_clock_mhz_mean", said("memory {} MHz", format_number)),
        ("mem_clock_mhz_min", said("at least {}", format_number)),
        ("throttle_reasons", lambda names: f"held back by {' '.join(names)}" if names else "held back by nothing"),
    ],
    "network": [
        ("net_sent_bytes_per_s", said("{}/s sent", format_bytes)),
        ("net_received_bytes_per_s", said("{}/s received", format_bytes)),
        ("loopback_bytes_per_s", said("{}/s within the machine", format_bytes)),
        ("infiniband_sent_bytes_per_s", said("{}/s sent over InfiniBand", format_bytes)),
        ("infiniband_received_bytes_per_s", said("{}/s received over InfiniBand", format_bytes)),
    ],
    "disks": [
        ("disk_read_bytes_per_s", said("{}/s read", format_bytes)),
        ("disk_written_bytes_per_s", said("{}/s written", format_bytes)),
    ],
}


def rows(result: Result) -> list[tuple[str, str]]:
    """(what, how much) for all that was measured: by the monitor while blocks were timed, by each rank of itself."""
    found = [(name, _parts(result.monitor, parts)) for name, parts in ROWS.items()]
    found += [("memory of a rank at most", _of_ranks(result.ranks)), ("state of a device", _state(result))]
    return [(name, text) for name, text in found if text]


def _parts(monitor: MonitorRecord, parts: list[Part]) -> str:
    values = [(getattr(monitor, name), words) for name, words in parts]
    return ", ".join(words(value) for value, words in values if value is not None)


def _of_ranks(ranks: list[RankRecord]) -> str:
    """The largest of the ranks' own peaks; of one that is not known of all ranks nothing is said."""
    peaks: list[tuple[list[int | None], str]] = [
        ([rank.rss_peak_bytes for rank in ranks], ""),
        ([rank.rss_anon_peak_bytes for rank in ranks], " without mapped files"),
        ([peak for rank in ranks for peak in rank.peak_memory_bytes], " on a device"),
    ]
    known = [([peak for peak in found if peak is not None], found, words) for found, words in peaks]
    return ", ".join(f"{format_bytes(max(own))}{words}" for own, found, words in known if own and len(own) == len(found))


def _state(result: Result) -> str:
    """Of the fullest device; nothing where one of them cannot tell."""
    found = [state for rank in result.ranks for state in rank.state_bytes]
    known = [state for state in found if state is not None]
    if len(known) < len(found) or not all(rank.state_bytes for rank in result.ranks):
        return ""
    parameters = result.workload.model_params
    each = f", {max(known) / parameters:.1f} B a parameter" if parameters else ""
    return f"{format_bytes(max(known))} of weights, gradients and optimizer's state{each}"


MOST_POINTS = 200  # of a line
MOST_PROCESSES = 16
MOST_BYTES = 2**28  # of a file: a day of eight GPUs is a third of it
GIGA = 1e9


class NoSeries(Exception):
    """Why there is nothing to draw, in words."""


@dataclass(frozen=True)
class Quantity:
    id: str
    title: str
    of: str  # in the series
    axis: Axis


OF_A_GPU = (
    Quantity("sm-clock", "SM clock", "sm_clock_mhz", Axis("SM clock (MHz)", from_zero=False)),
    Quantity("memory-clock", "memory clock", "mem_clock_mhz", Axis("memory clock (MHz)", from_zero=False)),
    Quantity("power", "power", "power_w", Axis("power (W)")),
    Quantity("temperature", "temperature", "temperature_c", Axis("temperature (degrees C)", from_zero=False)),
    Quantity("utilisation", "utilisation", "util_share", Axis("share of the time in which a kernel ran", percent=True)),
)
TIME = Axis("seconds from the start of the measured phase", from_zero=False)


def charts(result: Result, folder: Path, id_: str, name: str, tags: Tags) -> list[Chart]:
    """Of what was seen from the first update to the end of the measured phase; of a run whose GPUs were hot before it,
    from the monitor's first look on. NoSeries where there is nothing."""
    found = _read(result, folder)
    first = next((rank for rank in result.ranks if rank.rank == 0), None)
    window = measured_window(first)
    if first is None or window is None:
        raise NoSeries("its measured phase has no beginning or no end")
    begin_s = 0.0 if "hot_at_start" in result.flags else first.marks_s.get("warmup", window.begin_s)
    shown = TimeWindow(begin_s, window.end_s)
    # Other nodes have series of their own, by their own clocks.
    of = f" Of node 0; there are {result.scale.nodes} nodes." if result.scale.nodes > 1 else ""
    made = [*_of_gpus(found, shown, window.begin_s, result), *_of_programs(found, shown, window.begin_s)]
    if not made:
        raise NoSeries("its series has nothing of the measured phase")
    return [
        Chart(
            f"{id_}-{quantity.id}", f"{quantity.title}: {name}", TIME, quantity.axis, _tagged(lines, tags), caption=more
        )
        for quantity, lines, more in ((quantity, lines, said + of) for quantity, lines, said in made)
    ]


def _read(result: Result, folder: Path) -> Seen:
    if result.monitor.file is None:
        raise NoSeries(result.monitor.reason or "it was not monitored")
    path = inside(folder, result.monitor.file)
    if path is None:
        raise NoSeries(f"there is no {result.monitor.file} in its folder")
    if path.stat().st_size > MOST_BYTES:
        raise NoSeries(f"{path.name} is too large to be drawn")
    try:
        return read_series(path)
    except Exception as error:  # a file of that name may be anything
        raise NoSeries(f"{path.name} cannot be read: {' '.join(str(error).split())[:200]}") from error


Made = tuple[Quantity, dict[str, Points], str]


def _of_gpus(found: Seen, shown: TimeWindow, zero_s: float, result: Result) -> Iterator[Made]:
    for quantity in OF_A_GPU:
        lines = {}
        for device in (device for device in result.monitor.devices if not device.node):
            points = _points(found, f"gpu{device.index}", quantity.of, shown)
            if points:
                lines[f"GPU {device.index}"] = _thinned(points, zero_s)
        if lines:
            yield quantity, lines, _WHERE


def _of_programs(found: Seen, shown: TimeWindow, zero_s: float) -> Iterator[Made]:
    cores = {"all programs": _rates(_points(found, "cpu", "busy_s", shown)),
             "this run": _rates(_points(found, "ours", "cpu_s", shown))}  # fmt: skip
    if any(cores.values()):
        limit = next(iter(found.values("cpu", "cores")), None)
        of = f"Of the {limit:g} cores that the run may use. " if limit is not None else ""
        quantity = Quantity("cores", "busy processor cores", "", Axis("cores' worth of time"))
        yield quantity, {name: _thinned(points, zero_s) for name, points in cores.items() if points}, of + _WHERE
    ranks = sorted(found.sources("process:"), key=lambda source: (len(source), source))
    lines = {}
    for source in ranks[:MOST_PROCESSES]:
        points = [(at_s, value / GIGA) for at_s, value in _points(found, source, "rss_bytes", shown)]
        if points:
            lines[f"rank {source.removeprefix('process:')}"] = _thinned(points, zero_s)
    if lines:
        more = f"{MOST_PROCESSES} of {len(ranks)} ranks. " if len(ranks) > MOST_PROCESSES else ""
        yield Quantity("memory", "resident memory", "", Axis("resident memory (GB)")), lines, more + _WHERE


_WHERE = "Before 0 is warm-up. Of many samples the lowest and the highest of each stretch are drawn, so that dips stay."


def _points(found: Seen, source: str, quantity: str, shown: TimeWindow) -> Points:
    times_s, values = found.times_s(source, quantity, shown), found.values(source, quantity, shown)
    return list(zip(times_s, values, strict=True))


def _rates(counted: Points) -> Points:
    """What a counter grew by per second, at the end of each interval; none where it was set back."""
    steps = [(b, (y - x) / (b - a)) for (a, x), (b, y) in itertools.pairwise(counted) if b > a]
    return [(at_s, rate) for at_s, rate in steps if rate >= 0]


def _thinned(points: Points, zero_s: float) -> Points:
    return [(at_s - zero_s, value) for at_s, value in thin(points, MOST_POINTS)]


def _tagged(lines: dict[str, Points], tags: Tags) -> list[Series]:
    return [Series(name, [x for x, _ in points], [y for _, y in points], tags=tags) for name, points in lines.items()]
