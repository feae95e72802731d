"""Launches of one configuration as one row: figures over repeats, with intervals that hold what differs between
launches. Layer 1.

A launch is one observation, however many blocks it has: blocks of one process say nothing of the next start
(Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation"; Kalibera and Jones 2013,
"Rigorous benchmarking in reasonable time"). All launches weigh alike: weighted by their seconds, intervals cover 0.73
instead of 0.95 at five launches where slow ones are measured ten times as long, as the stopping rule may have it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from scalebench.analysis import throughput
from scalebench.analysis.baselines import Baselines
from scalebench.analysis.columns import COLUMNS, typed
from scalebench.analysis.named_baseline import Given, find_given
from scalebench.analysis.read_runs import PathLike, figures_in, find, paths_of
from scalebench.analysis.rows import compared, figures_of, joined, limits, row
from scalebench.analysis.run_summary import Figures, Run
from scalebench.core.result import Result
from scalebench.core.stats.estimates import CONFIDENCE, Interval, ratio_interval, student_t

if TYPE_CHECKING:
    import pandas as pd

LEAST = 3  # launches that give an interval
OF_A_LAUNCH = ("no_interval", "superlinear", "superlinear_within_noise")  # flags that pooling decides anew
LIMITS = {name for name in COLUMNS if name.endswith(("_low", "_high"))}  # of single launches: none of their mean
WITH_LIMITS = [name for name in COLUMNS if f"{name}_low" in LIMITS]
UNIONS = ("flags", "throttle_reasons")
R = TypeVar("R", bound=Run)
FIRSTS = ("run_id", "started_at", "path", "reason")  # of the first launch, in time


@dataclass
class Group:
    """Launches that are one row, in the order of their start."""

    launches: list[Figures]
    rows: list[dict[str, Any]]  # of rows.row

    @property
    def rates(self) -> dict[str, float]:
        """Samples/s by run_id; empty where nothing was measured."""
        figures = {cells["run_id"]: cells["throughput_samples_per_s"] for cells in self.rows}
        return {run_id: rate for run_id, rate in figures.items() if rate is not None}


def pooled(path: PathLike | Sequence[PathLike], baseline: PathLike | None = None) -> pd.DataFrame:
    """One row per configuration found at or below `path`: the columns of `load`, and `repeats`, its launches.

    A configuration is a fingerprint on one kind of machine with one version of its framework; what did not go well is
    a row for each status and reason. Copies of a run (resume=true makes some) are one launch, and a repeat that was
    measured twice is two.

    One launch: the row of `load`. Two: figures without intervals. Three and more: `throughput_samples_per_s`,
    `step_s` and `epoch_s` are geometric means, speedups and efficiencies are as `speedup` says, `interval_over` is
    `repeats`. Other figures are means, of those that `load` gives an interval with Student's t over the launches;
    `_min` the least; memory peaks the largest; steady where all are; flags of any. `run_id`, `started_at` and `path`
    are the first launch's; text that differs is told in full; `repeat` is null. A `baseline` that is one of these
    launches stands for all launches of its configuration. Raises InputError as `load` does.
    """
    figures = figures_in(find(paths_of(path)))
    return pool_figures(figures, None if baseline is None else find_given(baseline, figures))


def pool(results: Iterable[Result], folders: Iterable[Path]) -> pd.DataFrame:
    """`pooled` of these records."""
    return pool_figures([figures_of(result, folder) for result, folder in zip(results, folders, strict=True)])


def pool_figures(figures: Sequence[Figures], given: Given | None = None) -> pd.DataFrame:
    """`pooled` of runs of which the records are gone."""
    once = sorted({run.run_id: run for run in reversed(figures)}.values(), key=throughput.started)
    baselines = Baselines.among(once)
    groups: dict[tuple[str, ...], Group] = {}
    for run in once:
        group = groups.setdefault(_key(run), Group([], []))
        group.launches.append(run)
        group.rows.append(row(run, baselines))
    of_run = {run.run_id: group for group in groups.values() for run in group.launches}
    order = {run_id: number for number, run_id in enumerate(dict.fromkeys(run.run_id for run in figures))}
    found = sorted(groups.values(), key=lambda group: min(order[run.run_id] for run in group.launches))
    rows = []
    for group in found:
        first = group.launches[0]
        runs = {"self": baselines.self_of(first), "bare": baselines.bare_of(first)}
        against = {kind: None if run is None else of_run[run.run_id] for kind, run in runs.items()}
        baseline = None if given is None else given.of(first)
        if baseline is not None:
            against["given"] = of_run.get(baseline.run_id) or Group([baseline], [baseline.cells])
        rows.append(_row(group, against))
    return typed(rows, [*COLUMNS, "repeats"])


def over_launches(values: Sequence[float]) -> tuple[float, Interval | None]:
    """(geometric mean, its 95 % interval) of positive figures, one a launch; no interval of fewer than three.

    Student's t on the logarithms: launches differ by factors, no limit turns negative, seconds and samples/s give the
    same answer, and a quotient of means is the mean of the quotients. Over 1,000 made-up trials each of 3, 5 and 10
    launches that differ by 3 %, at least 0.93 of the intervals hold the level that the launches vary around.

    Sources: Fleming and Wallace 1986, "How not to lie with statistics: the correct way to summarize benchmark
    results" (geometric mean); Bland and Altman 1996, "Transformations, means, and confidence intervals".
    """
    logs = [math.log(value) for value in values]
    mean, launches = math.fsum(logs) / len(logs), len(logs)
    value = math.exp(mean)
    if launches < LEAST:
        return value, None
    variance = math.fsum((log - mean) ** 2 for log in logs) / (launches - 1)
    reach = student_t(launches - 1, CONFIDENCE) * math.sqrt(variance / launches)
    # Beyond 700, exp would overflow; nothing measured has such a limit.
    return value, Interval(value, value * math.exp(-reach), value * math.exp(reach) if reach < 700 else math.inf)


def speedup(mine: Group, theirs: Group) -> tuple[float | None, Interval | None]:
    """Throughput over the baseline's, with its 95 % interval over launches; one launch of either: as for runs.

    Where repeats of both were interleaved, each repeat gives one ratio, in which what the machine did meanwhile
    cancels, and the interval is Student's t on the logarithms of at least three. Else the launches count as
    independent: the quotient of the means, by MOVER on the log scale (stats.ratio_interval), which is never much
    narrower, for its t has as few degrees of freedom, and at 5 % common drift twice as wide. A baseline with too few
    launches gives no interval: that over its blocks would hide what differs between them.

    Sources: Box, Hunter and Hunter 1978, "Statistics for Experimenters" (paired comparisons, blocking); Zou and
    Donner 2008, as at stats.ratio_interval.
    """
    if mine is theirs:
        return 1.0, None
    if len(mine.launches) == len(theirs.launches) == 1:
        return throughput.speedup(mine.launches[0], theirs.launches[0])
    if not (mine.rates and theirs.rates):
        return None, None
    pairs = interleaved(mine.launches, theirs.launches)
    if len(pairs) >= LEAST:
        return over_launches([mine.rates[a.run_id] / theirs.rates[b.run_id] for a, b in pairs])
    (value, interval), (base, base_interval) = (over_launches([*group.rates.values()]) for group in (mine, theirs))
    known = interval is not None and base_interval is not None
    return value / base, ratio_interval(interval, base_interval) if known else None  # type: ignore[arg-type]


def interleaved(mine: Sequence[R], theirs: Sequence[R]) -> list[tuple[R, R]]:
    """Launches of the same repeat, one of either, in the order of time; none where repeats overlap in time.

    A repeat that both have measured twice gives two pairs. Those of the first sweep come first in each.
    """
    by_repeat = [_by_repeat(launches) for launches in (mine, theirs)]
    both = [(own, by_repeat[1].get(repeat, [])) for repeat, own in by_repeat[0].items()]
    pairs = [pair for own, base in both for pair in zip(own, base, strict=False)]
    spans = sorted((sorted(map(throughput.started, pair)) for pair in pairs), key=lambda span: span[0])
    if any(earlier[1] >= later[0] for earlier, later in itertools.pairwise(spans)):
        return []
    return sorted(pairs, key=lambda pair: throughput.started(pair[0]))


def _by_repeat(launches: Sequence[R]) -> dict[int, list[R]]:
    found: dict[int, list[R]] = {}
    for run in sorted(launches, key=throughput.started):
        found.setdefault(run.scale.repeat, []).append(run)
    return found


def _key(run: Figures) -> tuple[str, ...]:
    """What launches of one row share."""
    if run.throughput[0] is None:
        return run.fingerprint, run.status, run.reason or ""
    machine = throughput.comparison_key(run, True)
    return run.fingerprint, machine, run.scale.framework_version or "", "measured"


def _row(group: Group, against: dict[str, Group | None]) -> dict[str, Any]:
    launches, gpus = len(group.launches), group.launches[0].scale.gpus
    cells = dict(group.rows[0]) if launches == 1 else _merged(group.rows)
    cells["repeats"] = launches
    for kind, base in against.items():
        cells[f"baseline_{kind}_id"] = None if base is None else base.launches[0].run_id
    efficiency = None
    for kind, base in against.items() if group.rates else ():
        value, interval = (None, None) if base is None else speedup(group, base)
        devices = gpus / (base.launches[0].scale.gpus if base is not None else 1)
        cells.update(compared(kind, devices, value, interval))
        efficiency = throughput.per_device(interval, devices) if kind == "self" else efficiency
    others = [base for kind, base in against.items() if base is not None and kind != "given"]
    if not group.rates or (launches == 1 and all(len(base.launches) == 1 for base in others)):
        return cells
    cells.update(limits("overhead_share", "overhead_share", *_overhead(against["self"], against["bare"])))
    if launches > 1:
        cells.update(_figures(group))
    kept = [flag for flag in (cells["flags"] or "").split() if flag not in OF_A_LAUNCH]
    no_interval = ["no_interval"] if cells["throughput_high"] is None else []
    cells["flags"] = joined([*kept, *no_interval, *throughput.superlinear(efficiency)])
    return cells


def _figures(group: Group) -> dict[str, Any]:
    """The headline figures over launches."""
    value, interval = over_launches([*group.rates.values()])
    cells: dict[str, Any] = limits("throughput_samples_per_s", "throughput", value, interval)
    cells["interval_over"] = None if interval is None else "repeats"
    for name in ("step_s", "epoch_s", "device_hours_per_epoch"):
        known = _known(group.rows, name)
        cells[name] = over_launches(known)[0] if known else None
    return cells


def _overhead(own: Group | None, bare: Group | None) -> tuple[float | None, Interval | None]:
    if own is None or bare is None or own is bare:
        return None, None
    if throughput.comparison_key(own.launches[0], True) == throughput.comparison_key(bare.launches[0], True):
        return None, None  # the bare strategy itself, placed elsewhere
    return throughput.lost(*speedup(own, bare))


def _merged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    columns = zip(COLUMNS, zip(*(map(cells.get, COLUMNS) for cells in rows), strict=True), strict=True)
    cells = {name: None if name in LIMITS else _combined(name, values) for name, values in columns}
    for name in WITH_LIMITS:
        if len(known := _known(rows, name)) >= LEAST:
            cells.update(limits(name, name, *_mean_interval(known)))
    return cells


def _known(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [cells[name] for cells in rows if cells.get(name) is not None]


def _mean_interval(values: Sequence[float]) -> tuple[float, Interval]:
    """Mean and Student's t of figures that may be negative, such as exposed sync."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    reach = student_t(len(values) - 1, CONFIDENCE) * math.sqrt(variance / len(values))
    return mean, Interval(mean, mean - reach, mean + reach)


def _combined(name: str, values: Sequence[Any]) -> Any:
    """One cell of those of several launches."""
    if values.count(values[0]) == len(values) and name not in UNIONS:
        return values[0]
    known = [value for value in values if value is not None]
    if not known:
        return None
    if name in UNIONS:
        return joined(list(dict.fromkeys(" ".join(known).split())))
    if name in FIRSTS or all(value == known[0] for value in known):
        # A steady launch says nothing of one that could not be told.
        return None if name == "steady" and known[0] and len(known) < len(values) else known[0]
    if isinstance(known[0], str):
        return " ".join(dict.fromkeys(known))
    if isinstance(known[0], bool):
        return all(known)
    return _number(name)(known) if name != "repeat" else None


def _number(name: str) -> Callable[[list[Any]], Any]:
    if name.endswith("_min"):
        return min
    if name.endswith("_max") or "peak_" in name:
        return max
    return _mean


def _mean(values: list[Any]) -> Any:
    mean = math.fsum(values) / len(values)
    return round(mean) if all(isinstance(value, int) for value in values) else mean
