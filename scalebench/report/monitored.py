"""What the monitor's series of one run show, as charts over the seconds of its measured phase. Layer 3."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scalebench.measure.monitor.series import Series as Seen
from scalebench.measure.monitor.series import Window, read_series
from scalebench.measure.monitor.summary import measured
from scalebench.report.blocks import Axis, Chart, Series, Tags
from scalebench.report.run_files import inside
from scalebench.report.thinning import Points, thin
from scalebench.results import Result

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
    window = measured(first)
    if first is None or window is None:
        raise NoSeries("its measured phase has no beginning or no end")
    begin_s = 0.0 if "hot_at_start" in result.flags else first.marks_s.get("warmup", window.begin_s)
    shown = Window(begin_s, window.end_s)
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


def _of_gpus(found: Seen, shown: Window, zero_s: float, result: Result) -> Iterator[Made]:
    for quantity in OF_A_GPU:
        lines = {}
        for device in (device for device in result.monitor.devices if not device.node):
            points = _points(found, f"gpu{device.index}", quantity.of, shown)
            if points:
                lines[f"GPU {device.index}"] = _thinned(points, zero_s)
        if lines:
            yield quantity, lines, _WHERE


def _of_programs(found: Seen, shown: Window, zero_s: float) -> Iterator[Made]:
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


def _points(found: Seen, source: str, quantity: str, shown: Window) -> Points:
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
