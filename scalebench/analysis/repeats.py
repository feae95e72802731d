"""Repeats of one configuration as one row: figures over repeats, with intervals that hold what differs between starts.

A repeat is one observation, however many blocks it has: blocks of one process say nothing of the next start (Georges,
Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation"; Kalibera and Jones 2013, "Rigorous
benchmarking in reasonable time"). All repeats have equal weight: weighted by their seconds, intervals cover 0.73
instead of 0.95 at five repeats where slow ones are measured ten times as long, as the stopping rule may do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from scalebench.analysis import throughput
from scalebench.analysis.columns import COUNT_COLUMNS, FRAME_COLUMNS, make_frame
from scalebench.analysis.identity import comparison_key, pooling_key
from scalebench.analysis.named_baseline import resolve_named_baseline
from scalebench.analysis.read_runs import PathLike, find_results, list_paths, pause_garbage_collection, summarize_files
from scalebench.analysis.rows import (
    Cells,
    ComparedRuns,
    compare_runs,
    interval_cells,
    join_words,
    speedup_cells,
    summarize_run,
)
from scalebench.analysis.run_summary import Run, RunSummary, start_time
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import MIN_REPEATS_FOR_LIMITS, mean_over_repeats
from scalebench.core.stats.estimates import Estimate, divide_estimates

if TYPE_CHECKING:
    import pandas as pd

SINGLE_RUN_FLAGS = ("no_interval", "superlinear", "superlinear_within_noise")  # decided anew for pooled figures
UNION_COLUMNS = ("flags", "throttle_reasons")
FIRST_RUN_COLUMNS = ("run_id", "started_at", "path", "reason")  # of the first repeat, in time
LIMIT_COLUMNS = {name for name in FRAME_COLUMNS if name.endswith(("_low", "_high"))}  # of runs: none of their mean
# Formed of throughputs over repeats rather than of the rows: none if these have no throughput.
THROUGHPUT_COLUMNS = {
    "throughput_samples_per_s",
    *(f"{ratio}_{kind}" for ratio in ("speedup", "efficiency") for kind in ("self", "bare", "given")),
}
COLUMNS_WITH_LIMITS = [
    name for name in FRAME_COLUMNS if f"{name}_low" in LIMIT_COLUMNS and name not in THROUGHPUT_COLUMNS
]
MERGED_COLUMNS = [
    name for name in FRAME_COLUMNS if name not in LIMIT_COLUMNS | THROUGHPUT_COLUMNS | {*COLUMNS_WITH_LIMITS}
]
R = TypeVar("R", bound=Run)


@dataclass
class Configuration:
    """Repeats that become one row, in the order of their start; complete before its figures are used."""

    repeats: list[RunSummary]
    rows: list[Cells]  # as rows.make_row returns them

    @cached_property
    def rates(self) -> dict[str, float]:
        """Samples/s by run_id; empty if nothing was measured."""
        rates = {cells["run_id"]: cells["throughput_samples_per_s"] for cells in self.rows}
        return {run_id: rate for run_id, rate in rates.items() if rate is not None}


@pause_garbage_collection()
def pooled(path: PathLike | Sequence[PathLike], baseline: PathLike | None = None) -> pd.DataFrame:
    """Return one row per configuration found at or below `path`: the columns of `load`, and `repeats`, their number.

    A configuration is a fingerprint on one kind of machine with one version of its framework; runs without a throughput
    are a row for each status and reason. Copies of a run (resume=true makes some) count once, and a repeat that was
    measured twice counts twice.

    One repeat: the row of `load`. Two: figures without intervals. Three and more: `throughput_samples_per_s`, `step_s`
    and `epoch_s` are geometric means, speedups and efficiencies are those of `pooled_speedup`, `interval_over` is
    `repeats`. Other figures are means, with Student's t over the repeats for those that have an interval in `load`;
    `_min` is the least; memory peaks are the largest; steady if all are; flags of any. `run_id`, `started_at` and
    `path` are those of the first repeat; differing texts are joined; `repeat` is null. A `baseline` that is one of
    these runs stands for all repeats of its configuration. Raises InputError as `load` does.
    """
    runs = summarize_files(find_results(list_paths(path)))
    return pool_runs(compare_runs(runs, None if baseline is None else resolve_named_baseline(baseline, runs)))


def pool_results(results: Iterable[Result], folders: Iterable[Path]) -> pd.DataFrame:
    """Return the frame of `pooled` for records in memory."""
    runs = [summarize_run(result, folder) for result, folder in zip(results, folders, strict=True)]
    return pool_runs(compare_runs(runs))


def pool_runs(compared: ComparedRuns) -> pd.DataFrame:
    """Return the frame of `pooled`, made of the rows of `load`."""
    pairs = list(zip(compared.runs, compared.rows, strict=True))
    first_copies = {run.run_id: (run, cells) for run, cells in reversed(pairs)}
    by_key: dict[tuple[str, ...], Configuration] = {}
    for run, cells in sorted(first_copies.values(), key=lambda pair: start_time(pair[0])):
        configuration = by_key.setdefault(pooling_key(run), Configuration([], []))
        configuration.repeats.append(run)
        configuration.rows.append(cells)
    by_id = {run.run_id: configuration for configuration in by_key.values() for run in configuration.repeats}
    rows = []
    for configuration in {id(by_id[run.run_id]): by_id[run.run_id] for run in compared.runs}.values():
        first = configuration.repeats[0]
        runs = {"self": compared.baselines.find_self(first), "bare": compared.baselines.find_bare(first)}
        against = {kind: None if run is None else by_id[run.run_id] for kind, run in runs.items()}
        named = None if compared.named_baseline is None else compared.named_baseline.for_run(first)
        if named is not None:
            against["given"] = by_id.get(named.run_id) or Configuration([named], [named.cells])
        rows.append(_make_row(configuration, against))
    return make_frame(rows, [*FRAME_COLUMNS, "repeats"])


def geometric_mean_over_repeats(values: Sequence[float]) -> tuple[float, Estimate | None]:
    """Return (geometric mean, its 95 % interval) of positive figures, one a repeat; no interval of fewer than three.

    Student's t on the logarithms: repeats differ by factors, no limit becomes negative, seconds and samples/s give the
    same answer, and a quotient of means is the mean of the quotients. In 1,000 simulated trials each of 3, 5 and 10
    repeats that differ by 3 %, at least 0.93 of the intervals contain the level that the repeats vary around.

    Sources: Fleming and Wallace 1986, "How not to lie with statistics: the correct way to summarize benchmark
    results" (geometric mean); Bland and Altman 1996, "Transformations, means, and confidence intervals".
    """
    mean = mean_over_repeats([math.log(value) for value in values])
    value = math.exp(mean.value)
    if not mean.has_limits:
        return value, None
    # Beyond 700, exp would overflow; nothing measured has such a limit.
    return value, Estimate(value, math.exp(mean.low), math.exp(mean.high) if mean.high < 700 else math.inf)


def pooled_speedup(configuration: Configuration, base: Configuration) -> tuple[float | None, Estimate | None]:
    """Return throughput over the baseline's, with its 95 % interval over repeats; of single runs as for runs.

    Where repeats of both were interleaved, each repeat gives one ratio, in which the drift of the machine cancels, and
    the interval is Student's t on the logarithms of at least three. Otherwise the repeats count as independent: the
    quotient of the means, by MOVER on the log scale (estimates.divide_estimates), which is never much narrower, since
    its t has as few degrees of freedom, and at 5 % common drift twice as wide. A baseline with too few repeats gives no
    interval: one over its blocks would hide what differs between repeats.

    Sources: Box, Hunter and Hunter 1978, "Statistics for Experimenters" (paired comparisons, blocking); Zou and
    Donner 2008, as at estimates.divide_estimates.
    """
    if configuration is base:
        return 1.0, None
    if len(configuration.repeats) == len(base.repeats) == 1:
        return throughput.speedup(configuration.repeats[0], base.repeats[0])
    if not (configuration.rates and base.rates):
        return None, None
    pairs = pair_interleaved(configuration.repeats, base.repeats)
    if len(pairs) >= MIN_REPEATS_FOR_LIMITS:
        return geometric_mean_over_repeats([ratio for a, b in pairs if (ratio := throughput.speedup(a, b)[0])])
    value, interval = geometric_mean_over_repeats([*configuration.rates.values()])
    base_value, base_interval = geometric_mean_over_repeats([*base.rates.values()])
    has_interval = interval is not None and base_interval is not None
    return value / base_value, divide_estimates(interval, base_interval) if has_interval else None  # type: ignore[arg-type]


def pair_interleaved(runs: Sequence[R], base_runs: Sequence[R]) -> list[tuple[R, R]]:
    """Return pairs of the same repeat, in the order of time; none if repeats overlap in time.

    A repeat that both have measured twice gives two pairs; the first sweep's run comes first in each list.
    """
    by_repeat, base_by_repeat = _group_by_repeat(runs), _group_by_repeat(base_runs)
    both = [(of_repeat, base_by_repeat.get(repeat, [])) for repeat, of_repeat in by_repeat.items()]
    pairs = [pair for of_repeat, base in both for pair in zip(of_repeat, base, strict=False)]
    spans = sorted((sorted(map(start_time, pair)) for pair in pairs), key=lambda span: span[0])
    if any(earlier[1] >= later[0] for earlier, later in itertools.pairwise(spans)):
        return []
    return sorted(pairs, key=lambda pair: start_time(pair[0]))


def _group_by_repeat(runs: Sequence[R]) -> dict[int, list[R]]:
    by_repeat: dict[int, list[R]] = {}
    for run in sorted(runs, key=start_time):
        by_repeat.setdefault(run.scale.repeat, []).append(run)
    return by_repeat


def _make_row(configuration: Configuration, against: dict[str, Configuration | None]) -> Cells:
    repeats, gpus = len(configuration.repeats), configuration.repeats[0].scale.gpus
    cells = dict(configuration.rows[0]) if repeats == 1 else _merge_rows(configuration.rows)
    cells["repeats"] = repeats
    for kind, base in against.items():
        cells[f"baseline_{kind}_id"] = None if base is None else base.repeats[0].run_id
    rates, efficiency = configuration.rates, None
    for kind, base in against.items() if rates else ():
        value, interval = (None, None) if base is None else pooled_speedup(configuration, base)
        devices = gpus / (base.repeats[0].scale.gpus if base is not None else 1)
        cells.update(speedup_cells(kind, devices, value, interval))
        efficiency = throughput.scale_to_efficiency(interval, devices) if kind == "self" else efficiency
    automatic = [base for kind, base in against.items() if base is not None and kind != "given"]
    if not rates or (repeats == 1 and all(len(base.repeats) == 1 for base in automatic)):
        return cells
    cells.update(interval_cells("overhead_share", "overhead_share", *_overhead(against["self"], against["bare"])))
    if repeats > 1:
        cells.update(_headline_cells(configuration))
    flags = [flag for flag in (cells["flags"] or "").split() if flag not in SINGLE_RUN_FLAGS]
    no_interval = ["no_interval"] if cells["throughput_high"] is None else []
    cells["flags"] = join_words([*flags, *no_interval, *throughput.superlinear_flags(efficiency)])
    return cells


def _headline_cells(configuration: Configuration) -> Cells:
    """Return throughput and the times that follow from it, as geometric means over repeats."""
    value, interval = geometric_mean_over_repeats([*configuration.rates.values()])
    cells: Cells = interval_cells("throughput_samples_per_s", "throughput", value, interval)
    cells["interval_over"] = None if interval is None else "repeats"
    for name in ("step_s", "epoch_s", "device_hours_per_epoch"):
        values = _present_values(configuration.rows, name)
        cells[name] = geometric_mean_over_repeats(values)[0] if values else None
    return cells


def _overhead(own: Configuration | None, bare: Configuration | None) -> tuple[float | None, Estimate | None]:
    if own is None or bare is None or own is bare:
        return None, None
    if comparison_key(own.repeats[0], True) == comparison_key(bare.repeats[0], True):
        return None, None  # the bare strategy itself, with another placement
    return throughput.lost_share(*pooled_speedup(own, bare))


def _merge_rows(rows: Sequence[Cells]) -> Cells:
    cells: Cells = dict.fromkeys(FRAME_COLUMNS)
    columns = list(zip(*(map(row.get, MERGED_COLUMNS) for row in rows), strict=True))
    first = [values[0] for values in columns]
    cells.update(zip(MERGED_COLUMNS, first, strict=True))
    for name, values, equal in zip(MERGED_COLUMNS, columns, map(tuple.count, columns, first), strict=True):
        if equal != len(rows) or name in UNION_COLUMNS:
            cells[name] = _merge_values(name, values)
    for name in COLUMNS_WITH_LIMITS:
        present = [row for row in rows if row.get(name) is not None]
        if len(present) == 1:  # such as the probes, which only the first repeat has: over its blocks
            cells |= {column: present[0].get(column) for column in (name, f"{name}_low", f"{name}_high")}
        elif present:
            mean = mean_over_repeats([row[name] for row in present])
            cells.update(interval_cells(name, name, mean.value, mean))
    return cells


def _present_values(rows: Sequence[Cells], name: str) -> list[Any]:
    return [cells[name] for cells in rows if cells.get(name) is not None]


def _merge_values(name: str, values: Sequence[Any]) -> Any:
    """Return one cell for those of several repeats, which are not all equal or are to be united."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if name in UNION_COLUMNS:
        return join_words(list(dict.fromkeys(" ".join(present).split())))
    if name in FIRST_RUN_COLUMNS or present.count(present[0]) == len(present):
        # A steady repeat says nothing about one with too few blocks to decide.
        return None if name == "steady" and present[0] and len(present) < len(values) else present[0]
    if isinstance(present[0], str):
        return " ".join(dict.fromkeys(present))
    if isinstance(present[0], bool):
        return all(present)
    return REDUCERS[name](present) if name != "repeat" else None


def _mean(values: list[Any]) -> Any:
    return math.fsum(values) / len(values)


def _whole_mean(values: list[Any]) -> Any:
    return round(_mean(values))


def _choose_reducer(name: str) -> Callable[[list[Any]], Any]:
    if name.endswith("_min"):
        return min
    if name.endswith("_max") or "peak_" in name:
        return max
    return _whole_mean if name in COUNT_COLUMNS else _mean


REDUCERS = {name: _choose_reducer(name) for name in MERGED_COLUMNS}
