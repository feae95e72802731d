"""Repeats of one configuration as one row: figures over repeats, with intervals that include what differs between
starts.

A repeat is one observation, however many blocks it has: blocks of one process say nothing about the next start
(Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation"; Kalibera and Jones 2013,
"Rigorous benchmarking in reasonable time"). All repeats have equal weight: weighted by their seconds, intervals cover
0.73 instead of 0.95 at five repeats where slow ones are measured ten times as long, as the stopping rule may do.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scalebench.analysis import columns, throughput
from scalebench.analysis import rows as run_rows
from scalebench.analysis.identity import Baselines, configuration_key, find_other_settings, group_by, is_comparable
from scalebench.analysis.rows import Cells, RunSummary
from scalebench.core.stats.estimates import Estimate, scale_estimate
from scalebench.core.stats.log_means import LogMean, mean_of_logs, mean_over_repeats
from scalebench.core.stats.moderated_variance import RepeatTable

if TYPE_CHECKING:
    import pandas as pd

# Flags of single runs that are decided again for pooled figures.
SINGLE_RUN_FLAGS = ("no_interval", "superlinear", "superlinear_on_cpu", "superlinear_within_noise")
MAX_REPEAT_RATIO = 1.1  # of the fastest repeat over the slowest, before they are flagged
EstimateRatio = Callable[[Mapping[str, Any], Mapping[str, Any]], LogMean]  # as Configurations.estimate_ratio


def holds_over_repeats(row: Mapping[str, Any]) -> bool:
    """Return whether the throughput interval of a pooled row includes what differs between starts of its processes,
    which every verdict needs."""
    return bool(row["interval_over"] == "repeats")


@dataclass(eq=False)
class Configuration:
    """Repeats that become one row, in the order of their start; complete before its figures are used."""

    repeats: list[RunSummary]
    rows: list[Cells]  # as rows.make_row returns them

    @cached_property
    def rates(self) -> dict[str, float]:
        """Samples/s by run_id; empty if nothing was measured."""
        return {run.run_id: run.rate for run in self.repeats if run.rate is not None}

    @cached_property
    def sweep(self) -> tuple[str, ...]:
        """Folder of the sweep, machine and model: configurations that share them vary between repeats for the same
        reasons."""
        cells = self.rows[0]
        return os.path.dirname(cells["path"]), str(cells["machine"]), str(cells["model"])

    def levels(self) -> dict[Any, float]:
        """Return log throughputs by what runs measured at the same time share: their cohort, else their repeat."""
        levels: dict[Any, float] = {}
        for run in self.repeats if self.rates else ():
            key = run.cohort or (os.path.dirname(run.cells["path"]), run.scale.repeat)
            rates = run.round_rates.values() or [self.rates[run.run_id]]
            levels[(key, sum(key == other for other, _ in levels))] = math.fsum(map(math.log, rates)) / len(rates)
        return levels


class Configurations:
    """The configurations of runs that were loaded together, their rows, and ratios between any two of them."""

    def __init__(
        self, runs: Sequence[RunSummary] = (), named: RunSummary | None = None,
        rows: Iterable[Collection[str]] | None = None,
    ) -> None:  # fmt: skip
        """`named`: the run that a user names as a baseline; `rows`: the run_ids of each configuration, by default all
        repeats that `pooled` describes as one."""
        self._runs, self._named, self._baselines = runs, named, Baselines(runs)
        others = find_other_settings((run, run.cells) for run in runs) if rows is None else {}
        self.rows = [run_rows.make_row(run, self._baselines, named) | {"other_settings": others.get(run.fingerprint)}
                     for run in runs]  # of the frame, one for each run  # fmt: skip
        pairs = zip(runs, self.rows, strict=True)
        self._copies = {run.run_id: (run, cells) for run, cells in reversed(list(pairs))}  # each run once

        def key(run_id: str) -> tuple[str, ...]:
            run = self._copies[run_id][0]
            is_measured = run.rate is not None  # others are pooled by their status and reason
            return configuration_key(run) if is_measured else (run.fingerprint, run.status, run.reason or "")

        self._by_run: dict[str, Configuration] = {}
        for run_ids in group_by(self._copies, key).values() if rows is None else rows:
            if self._by_run.keys().isdisjoint(run_ids):  # two sides of a comparison may hold the same run
                self._by_run |= dict.fromkeys(run_ids, self._configure(run_ids))
        self._ratios: dict[tuple[str, str], LogMean] = {}

    @cached_property
    def _tables(self) -> dict[tuple[str, ...], RepeatTable]:
        by_sweep = group_by(dict.fromkeys(self._by_run.values()), lambda configuration: configuration.sweep)
        return {sweep: RepeatTable({id(each): each.levels() for each in of_sweep})
                for sweep, of_sweep in by_sweep.items()}  # fmt: skip

    def _configure(self, run_ids: Iterable[str]) -> Configuration:
        pairs = sorted((self._copies[run_id] for run_id in run_ids), key=lambda pair: pair[0].started)
        return Configuration([run for run, _ in pairs], [cells for _, cells in pairs])

    def make_frame(self) -> pd.DataFrame:
        """Return the frame of `pooled`, in the order of the runs."""
        configurations = list(dict.fromkeys(self._by_run[run.run_id] for run in self._runs))
        return columns.make_frame(list(map(self.make_row, configurations)), [*columns.FRAME_COLUMNS, "repeats"])

    def estimate_ratio(self, row: Mapping[str, Any], base: Mapping[str, Any]) -> LogMean:
        """Return the throughput of a row of the pooled frame over that of another, as `pooled` describes; of unknown
        variance where a row is not of these configurations."""
        pair = row["run_id"], base["run_id"]
        if not self._by_run.keys() >= {*pair}:
            return LogMean(math.log(row["throughput_samples_per_s"] / base["throughput_samples_per_s"]))
        if pair not in self._ratios:  # rankings, advice and saturation look at the same pairs
            self._ratios[pair] = self.divide(self._by_run[pair[0]], self._by_run[pair[1]])
        return self._ratios[pair]

    def select(self, run_ids: Collection[str]) -> Configuration:
        """Return the configuration of these runs, or its part that has only these repeats."""
        first = self._by_run.get(next(iter(run_ids)))
        is_complete = first is not None and {run.run_id for run in first.repeats} == set(run_ids)
        return first if first is not None and is_complete else self._configure(run_ids)

    def list_repeats(self, run_id: str) -> list[str]:
        """Return the run_ids of all repeats of the row with this run_id, in the order of their start."""
        return [run.run_id for run in self._by_run[run_id].repeats]

    def list_folders(self, run_id: str) -> list[Path]:
        """Return the folders of all repeats of the row with this run_id, in the order of their start."""
        return [Path(cells["path"]) for cells in self._by_run[run_id].rows]

    def _mean(self, configuration: Configuration) -> LogMean:
        logs = [math.log(rate) for rate in configuration.rates.values()]
        table = self._tables.get(configuration.sweep)
        return mean_of_logs(logs) if table is None else table.mean(id(configuration), logs)

    def divide(self, configuration: Configuration, base: Configuration) -> LogMean:
        """Return the log ratio of two configurations: the mean of the ratios within repeats, where these were
        interleaved or took turns, else the ratio of the means of independent repeats. Between cohorts of one sweep it
        is the quotient of both ratios to the bare baseline of each, so that what differs between cohorts cancels."""
        if configuration is base:
            return LogMean(0.0)
        pairs = pair_interleaved(configuration.repeats, base.repeats)
        in_rounds = [throughput.ratio_in_rounds(run.round_rates, other.round_rates) for run, other in pairs]
        if None in (in_rounds or [None]) and (quotient := self._divide_by_baselines(configuration, base)) is not None:
            return quotient
        is_one_start = len(configuration.repeats) == len(base.repeats) == 1 or None not in in_rounds
        if not pairs or (len(pairs) < 2 and not is_one_start):
            return self._mean(configuration).minus(self._mean(base))
        logs = [math.log(ratio.value) if (ratio := run_rows.divide_throughputs(*pair)) else math.nan for pair in pairs]
        if configuration.sweep == base.sweep and base.sweep in self._tables:
            mean = self._tables[base.sweep].difference(id(configuration), id(base), logs)
        else:
            mean = mean_of_logs(logs)
        return msgspec.structs.replace(mean, in_rounds=None not in in_rounds)

    def _divide_by_baselines(self, configuration: Configuration, base: Configuration) -> LogMean | None:
        """Return the quotient of the ratios to the bare baseline, with their variances added; None unless both took
        turns with it, in different cohorts of one sweep."""
        cohorts = [{run.cohort for run in each.repeats} for each in (configuration, base)]
        if None in cohorts[0] | cohorts[1] or cohorts[0] & cohorts[1] or configuration.sweep != base.sweep:
            return None
        bare, other = (self._find_baselines(each.repeats[0])["bare"] for each in (configuration, base))
        if bare is None or bare is not other or bare in (configuration, base):
            return None
        own, others = (self.divide(each, bare) for each in (configuration, base))
        both = own.in_rounds and others.in_rounds
        return msgspec.structs.replace(own.minus(others), in_rounds=True) if both else None

    def make_row(self, configuration: Configuration) -> Cells:
        """Return the cells of a row of `pooled`."""
        first, repeats = configuration.repeats[0], len(configuration.repeats)
        against = self._find_baselines(first)
        cells = dict(configuration.rows[0]) if repeats == 1 else _merge_rows(configuration.rows)
        cells["repeats"] = repeats
        for kind, base in against.items():
            cells[f"baseline_{kind}_id"] = None if base is None else base.repeats[0].run_id
        if not configuration.rates:
            return cells
        rate = self._mean(configuration).to_estimate()
        others = [base for base in against.values() if base is not None and len(base.repeats) > 1]
        if repeats == 1 and not others:
            return cells
        efficiencies: list[Estimate] = []
        for kind, base in against.items():
            ratio = self.divide(configuration, base).to_estimate() if base is not None and base.rates else None
            devices = first.scale.gpus / (base.repeats[0].scale.gpus if base is not None else 1)
            cells.update(run_rows.speedup_cells(kind, devices, ratio))
            if ratio is not None and (kind == "self" or (kind == "bare" and first.scale.gpus > 1)):
                efficiencies.append(scale_estimate(ratio, 1 / devices))
        own, bare, ratio = against["self"], against["bare"], None
        if own and bare and own.rates and bare.rates and own.repeats[0].strategy_key != bare.repeats[0].strategy_key:
            ratio = self.divide(own, bare).to_estimate()
        cells.update(run_rows.overhead_cells(ratio))
        if repeats > 1:
            cells.update(columns.interval_cells(columns.RATE, rate))
            cells["interval_over"] = "repeats"
            for name in ("step_s", "epoch_s", "device_hours_per_epoch", "mfu", *columns.TOKEN_RATES):
                values = [row[name] for row in configuration.rows if row.get(name) is not None]
                cells[name] = math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None
        flags = [flag for flag in (cells["flags"] or "").split() if flag not in SINGLE_RUN_FLAGS]
        if cells["throughput_high"] is None and "samples_unknown" not in flags:
            flags.append("no_interval")
        highest = max(efficiencies, key=lambda each: (each.low > 1, each.value), default=None)
        flags += throughput.superlinear_flags(highest, first.scale.device)
        rates = configuration.rates.values()
        flags += ["repeats_differ"] if max(rates) > MAX_REPEAT_RATIO * min(rates) else []
        cells["flags"] = " ".join(flags) or None
        return cells

    def _find_baselines(self, run: RunSummary) -> dict[str, Configuration | None]:
        runs = {"self": self._baselines.find_self(run), "bare": self._baselines.find_bare(run)}
        against = {kind: None if base is None else self._by_run.get(base.run_id) for kind, base in runs.items()}
        if (named := self._named) is not None and is_comparable(run, named):
            against["given"] = self._by_run.get(named.run_id) or Configuration([named], [named.cells])
        return against


def pair_interleaved(
    runs: Iterable[RunSummary], base_runs: Iterable[RunSummary]
) -> list[tuple[RunSummary, RunSummary]]:
    """Return pairs of the same repeat, and of the same cohort where both took turns, in the order of time; none if
    repeats overlap in time. A repeat that both have measured twice gives two pairs."""
    in_order = [sorted(side, key=lambda run: run.started) for side in (runs, base_runs)]

    def pair_by(key: Callable[[RunSummary], Hashable]) -> list[tuple[RunSummary, RunSummary]]:
        first, second = (group_by(side, key) for side in in_order)
        return [pair for each, of_key in first.items() for pair in zip(of_key, second.get(each, ()), strict=False)]

    pairs = pair_by(lambda run: (run.scale.repeat, run.cohort))
    if len(pairs) < 2 and not any(run.cohort for run, _ in pairs):
        pairs = pair_by(lambda run: run.scale.repeat)
    pairs.sort(key=lambda pair: pair[0].started)
    spans = [sorted(run.started for run in pair) for pair in pairs]
    return [] if any(earlier[1] >= later[0] for earlier, later in itertools.pairwise(spans)) else pairs


def _merge_rows(rows: Sequence[Cells]) -> Cells:
    """Return the cells of several repeats as those of one row, without figures that rest on their throughputs."""
    cells: Cells = {}
    for column in columns.COLUMNS:
        name, present = column.name, [row for row in rows if row.get(column.name) is not None]
        if not column.limits:
            cells[name] = pool_values(column.kind, column.pool, [row.get(name) for row in rows])
        elif len(present) == 1 and column.pool != "ratio":
            # Such as the probes, which only the first repeat has: over its blocks.
            cells |= {limit: present[0].get(limit) for limit in (name, *column.limit_names)}
        else:
            values = [row[name] for row in present if column.pool != "ratio"]
            cells |= columns.interval_cells(name, mean_over_repeats(values) if values else None)
    return cells


def pool_values(kind: str, pool: str, values: Sequence[Any]) -> Any:
    """Return one cell for the cells of several repeats."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if pool == "union":
        return " ".join(dict.fromkeys(" ".join(present).split())) or None
    if kind == columns.TRUTH:  # a steady repeat says nothing about one with too few blocks to decide
        return False if False in present else None if len(present) < len(values) else True
    if pool == "first" or present.count(present[0]) == len(present):
        return present[0]
    if pool == "only":
        return None
    if kind == columns.TEXT:
        return " ".join(dict.fromkeys(present))
    if pool in ("min", "max"):
        return (min if pool == "min" else max)(present)
    mean = math.fsum(present) / len(present)
    return round(mean) if kind == columns.COUNT else mean
