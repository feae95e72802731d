"""Errors of predictions on published scaling curves, each source predicted without having calibrated on it.

The tables of docs/guides/predicting.md. Fails where a mean has grown by a tenth. SERIES=FILE reads other curves, in the
columns of scalebench/analysis/prediction/published_series.csv.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.published_series import PROTOCOLS, SERIES_FILE, PublishedSeries, Trial, list_trials, load_series
from scalebench.analysis.prediction.step_model import ErrorLimits, MeasuredStep, load_limits

HALF_BATCHES = np.arange(0.0, 41.0, 2.5)
QUANTILES = (0.025, 0.975)
MAX_GROWTH = 1.1
# Mean errors, in per cent, of the release: the model over all sources.
MEAN_ERRORS = {"P1": 4.3, "P2": 3.4, "P2b": 3.9, "P3": 3.2}
Predict = Callable[[Trial], Sequence[float]]  # seconds of a step at the unseen points


class Residual(NamedTuple):
    protocol: str
    source: str
    strong: bool
    log: float  # of measured over predicted seconds
    scale: float

    @property
    def error(self) -> float:
        return abs(np.expm1(self.log))


def main() -> None:
    path = Path(os.environ.get("SERIES", SERIES_FILE))
    trials = [trial for series in with_half_batches(load_series(path)) for trial in list_trials(series)]
    residuals = [residual for trial in trials for residual in list_residuals(trial)]
    covered, shipped = cover_by_source(residuals), cover_with(residuals, load_limits())
    print("errors of throughput in %; within: share in 95 % intervals of the other sources' errors; shipped: of all")
    print_row("protocol", "source", "curves", "points", "mean", "median", "p90", "worst", "within", "shipped")
    print_row(*["---"] * 10)
    for protocol in PROTOCOLS:
        for source in [*sorted({each.source for each in residuals if each.protocol == protocol}), "all"]:
            chosen = [i for i, each in enumerate(residuals)
                      if each.protocol == protocol and source in ("all", each.source)]  # fmt: skip
            curves = sum(trial.protocol == protocol and source in ("all", trial.series.source) for trial in trials)
            shares = [np.mean([hits[i] for i in chosen]) for hits in (covered, shipped)]
            figures = format_errors([residuals[i].error for i in chosen])
            print_row(protocol, source, str(curves), str(len(chosen)), *figures, *(f"{share:.2f}" for share in shares))
    strong = [each.error for each in residuals if each.protocol == "P2" and each.strong]
    if strong:
        print(f"\nstrong scaling from one node: mean {100 * np.mean(strong):.1f} % of {len(strong)} points")
    print("\nmean / median of the same points")
    print_row("model", *PROTOCOLS)
    print_row(*["---"] * 5)
    for name, predict in {"scalebench": predict_model, **BASELINES}.items():
        print_row(name, *(format_baseline(trials, protocol, predict) for protocol in PROTOCOLS))
    print(f"\nlimits that these curves give: {format_limits(residuals)}; shipped: {load_limits()}")
    if path == SERIES_FILE:
        fail_if_grown(residuals)


def with_half_batches(all_series: Sequence[PublishedSeries]) -> list[PublishedSeries]:
    """Return the curves with the half batch that is best for the other types of GPU of their source."""

    def choose(series: PublishedSeries) -> float:
        others = [each for each in all_series
                  if each.source == series.source and each.gpu != series.gpu and each.is_strong]  # fmt: skip
        errors = [
            np.mean([residual.error for each in others for trial in list_trials(replace(each, half_batch=half_batch))
                     if trial.protocol == "P2" for residual in list_residuals(trial)] or [0.0])
            for half_batch in HALF_BATCHES
        ]  # fmt: skip
        return float(HALF_BATCHES[int(np.argmin(errors))])

    chosen: dict[tuple[str, str], float] = {}
    for series in all_series:
        if series.is_strong and (series.source, series.gpu) not in chosen:
            chosen[series.source, series.gpu] = choose(series)
    return [replace(each, half_batch=chosen[each.source, each.gpu]) if each.is_strong else each for each in all_series]


def list_residuals(trial: Trial) -> list[Residual]:
    extrapolation, series = trial.extrapolate(), trial.series
    devices, batches, measured_s = (np.array(values, float) for values in zip(*trial.unseen, strict=True))
    logs = np.log(measured_s / extrapolation.step_s(devices, batches))
    scales = extrapolation.error_scale(devices, batches)
    return [Residual(trial.protocol, series.source, series.is_strong, float(log), float(scale))
            for log, scale in zip(logs, scales, strict=True)]  # fmt: skip


def fit_limits(residuals: Sequence[Residual]) -> tuple[float, float]:
    """Return the widest of the sources' quantiles: the next source may be as bad."""
    ends = [np.quantile([each.log / each.scale for each in residuals if each.source == source], QUANTILES)
            for source in {each.source for each in residuals}]  # fmt: skip
    return min(low for low, _ in ends), max(high for _, high in ends)


def cover_by_source(residuals: Sequence[Residual]) -> list[bool]:
    """Return whether each residual is within the limits that the other sources give."""
    limits = {}
    for source in {each.source for each in residuals}:
        others = [each for each in residuals if each.source != source]
        limits[source] = fit_limits(others or residuals)
    return [limits[each.source][0] <= each.log / each.scale <= limits[each.source][1] for each in residuals]


def cover_with(residuals: Sequence[Residual], limits: ErrorLimits) -> list[bool]:
    kinds = {"P1": "one_point", "P2": "one_node", "P2b": "several_nodes", "P3": "one_node"}
    return [limits[kinds[each.protocol]][0] <= each.log / each.scale <= limits[kinds[each.protocol]][1]
            for each in residuals]  # fmt: skip


def format_limits(residuals: Sequence[Residual]) -> str:
    return ", ".join(f"{limit:.2f}" for limit in fit_limits(residuals))


def format_errors(errors: Sequence[float]) -> list[str]:
    figures = [np.mean(errors), np.median(errors), np.quantile(errors, 0.9), np.max(errors)]
    return [f"{100 * figure:.1f}" for figure in figures]


def format_baseline(trials: Sequence[Trial], protocol: str, predict: Predict) -> str:
    errors = [abs(point.step_s / seconds - 1) for trial in trials if trial.protocol == protocol
              for point, seconds in zip(trial.unseen, predict(trial), strict=True)]  # fmt: skip
    return f"{100 * np.mean(errors):.1f} / {100 * np.median(errors):.1f}" if errors else ""


def predict_model(trial: Trial) -> Sequence[float]:
    return [float(trial.extrapolate().step_s(point.devices, point.batch)) for point in trial.unseen]


def predict_perfect(trial: Trial) -> Sequence[float]:
    last = trial.seen[-1]
    return [last.step_s * point.batch / last.batch for point in trial.unseen]


def predict_linear(columns: Callable[[np.ndarray], list[np.ndarray]]) -> Predict:
    """Return a model of seconds per sample that is linear in its `columns`, fitted with coefficients of at least 0."""

    def predict(trial: Trial) -> Sequence[float]:
        from scipy.optimize import nnls

        if len(trial.seen) < 2:
            return predict_perfect(trial)
        devices, rates = (np.array([value(point) for point in trial.seen]) for value in (get_devices, get_rate))
        weights = rates[:, None]  # relative errors
        coefficients, _ = nnls(np.stack(columns(devices), 1) * weights, np.ones(len(rates)))
        unseen = np.array([point.devices for point in trial.unseen], float)
        seconds = np.stack(columns(unseen), 1) @ coefficients
        return [point.devices * point.batch * each for point, each in zip(trial.unseen, seconds, strict=True)]

    return predict


def get_devices(point: MeasuredStep) -> float:
    return float(point.devices)


def get_rate(point: MeasuredStep) -> float:
    return point.devices * point.batch / point.step_s


BASELINES: dict[str, Predict] = {
    "perfect scaling": predict_perfect,
    # Amdahl 1967; Gunther 1993 (USL), (1 + a (n - 1) + b n (n - 1)) / n; Venkataraman et al. 2016 (Ernest).
    "Amdahl": predict_linear(lambda n: [1 / n, 1 - 1 / n]),
    "USL": predict_linear(lambda n: [1 / n, 1 - 1 / n, n - 1]),
    "Ernest": predict_linear(lambda n: [1 / n, np.log(n) / n, np.ones_like(n)]),
}


def fail_if_grown(residuals: Sequence[Residual]) -> None:
    for protocol, limit in MEAN_ERRORS.items():
        mean = 100 * np.mean([each.error for each in residuals if each.protocol == protocol])
        if mean > MAX_GROWTH * limit:
            sys.exit(f"{protocol}: a mean error of {mean:.1f} %, above {limit} % by more than a tenth")


def print_row(*cells: str) -> None:
    print(f"|{'|'.join(cells)}|")
