"""Errors of predictions on published scaling curves, each source predicted without having calibrated on it.

The tables of docs/guides/predicting.md. Fails where a mean has grown by a tenth. SERIES=FILE reads other curves, in the
columns of scalebench/analysis/prediction/published_series.csv, whose sources are in the YAML beside it.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from scalebench.analysis.prediction.step_model import (
    LIMITS_FILE,
    SYNC_KINDS,
    Extrapolation,
    MeasuredStep,
    StepModel,
    extrapolate,
    load_limits,
    make_links,
)

SERIES_FILE = LIMITS_FILE.with_suffix(".csv")
# Messages are not published: buckets as in PyTorch's DistributedDataParallel, or as many as a network has layers.
BUCKET_BYTES, MAX_MESSAGES = 25e6, 50
# P1: one device is known, where batches are equal. P2: all counts on one node, and those on more are predicted. P2b:
# all on one and two nodes. P3: the first two counts. With the limits that the program ships for such measurements.
PROTOCOLS = {"P1": "one_point", "P2": "one_node", "P2b": "several_nodes", "P3": "one_node"}
HALF_BATCHES = np.arange(0.0, 41.0, 2.5)
QUANTILES = (0.025, 0.975)
MAX_GROWTH = 1.1
# Mean errors, in per cent, of the release: the model over all sources.
MEAN_ERRORS = {"P1": 4.3, "P2": 3.4, "P2b": 3.9, "P3": 3.2}
Points = Sequence[MeasuredStep]


class Curve(NamedTuple):
    """One published scaling curve, whose model has pass_s: the samples that take as long as the fixed part of a
    pass."""

    source: str
    gpu: str
    model: StepModel
    points: Points

    @property
    def is_strong(self) -> bool:
        """True if the batch of a device changes with the number of devices."""
        return len({point.batch for point in self.points}) > 1

    def list_trials(self) -> Iterator[tuple[str, Points, Points]]:
        """Yield each protocol that suits, the points that it knows, and those that it predicts."""
        nodes = [int(self.model.links.count_nodes(point.devices)) for point in self.points]
        counts = {
            "P1": int(self.points[0].devices == 1 and not self.is_strong),
            "P2": nodes.count(1),
            "P2b": sum(count <= 2 for count in nodes) if {1, 2} <= {*nodes} else 0,
            "P3": 2 if len(self.points) > 2 else 0,
        }
        for protocol, count in counts.items():
            if 0 < count < len(self.points):
                yield protocol, self.points[:count], self.points[count:]


def main() -> None:
    path = Path(os.environ.get("SERIES", SERIES_FILE))
    frame = predict_curves(with_half_batches(load_curves(path)))
    limits = frame.ratio.groupby(frame.source).quantile(list(QUANTILES)).unstack()
    others = {source: rest if len(rest := limits.drop(source)) else limits for source in limits.index}
    frame["within"] = [others[row.source].iloc[:, 0].min() <= row.ratio <= others[row.source].iloc[:, 1].max()
                       for row in frame.itertuples()]  # fmt: skip
    shipped = {protocol: load_limits()[measured] for protocol, measured in PROTOCOLS.items()}
    frame["shipped"] = [shipped[row.protocol][0] <= row.ratio <= shipped[row.protocol][1] for row in frame.itertuples()]
    print("errors of throughput in %; within: share in 95 % intervals of the other sources' errors; shipped: of all")
    print_row("protocol", "source", "curves", "points", "mean", "median", "p90", "worst", "within", "shipped")
    print_row(*["---"] * 10)
    for protocol, of_protocol in frame.groupby("protocol", sort=False):
        for source, rows in [*of_protocol.groupby("source"), ("all", of_protocol)]:
            errors = 100 * rows.scalebench
            figures = (errors.mean(), errors.median(), errors.quantile(0.9), errors.max())
            shares = (f"{rows.within.mean():.2f}", f"{rows.shipped.mean():.2f}")
            print_row(protocol, source, rows.curve.nunique(), len(rows), *(f"{each:.1f}" for each in figures), *shares)
    strong = frame[(frame.protocol == "P2") & frame.strong].scalebench
    if len(strong):
        print(f"\nstrong scaling from one node: mean {100 * strong.mean():.1f} % of {len(strong)} points")
    print("\nmean / median of the same points")
    print_row("model", *PROTOCOLS)
    print_row(*["---"] * 5)
    for name in MODELS:
        errors = 100 * frame[name].groupby(frame.protocol).agg(["mean", "median"]).reindex(PROTOCOLS)
        print_row(name, *(f"{row.mean:.1f} / {row.median:.1f}" for row in errors.itertuples()))
    widest = f"{limits.iloc[:, 0].min():.2f}, {limits.iloc[:, 1].max():.2f}"  # the next source may be as bad
    print(f"\nlimits that these curves give: {widest}; shipped: {load_limits()}")
    means = 100 * frame.scalebench.groupby(frame.protocol).mean()
    for protocol, limit in MEAN_ERRORS.items() if path == SERIES_FILE else ():
        if means[protocol] > MAX_GROWTH * limit:
            sys.exit(f"{protocol}: a mean error of {means[protocol]:.1f} %, above {limit} % by more than a tenth")


def print_row(*cells: object) -> None:
    print(f"|{'|'.join(map(str, cells))}|")


def load_curves(path: Path) -> list[Curve]:
    with path.open(encoding="utf-8", newline="") as file:
        return [read_curve(row) for row in csv.DictReader(file)]


def read_curve(row: dict[str, str]) -> Curve:
    points = []
    for scale, rate in (text.split("=") for text in row["points"].split()):
        devices, batch = scale.split("x")
        points.append(MeasuredStep(int(devices), float(batch), int(devices) * float(batch) / float(rate)))
    rates = (float(row[name]) if row[name] else None for name in ("intra_node_bytes_per_s", "inter_node_bytes_per_s"))
    gradient_bytes = float(row["gradient_bytes"] or 0)
    if row["sync"] not in SYNC_KINDS:
        sys.exit(f"{row['source']}, {row['series']}: sync {row['sync']}, which is none of {', '.join(SYNC_KINDS)}")
    messages = min(MAX_MESSAGES, max(1, round(gradient_bytes / BUCKET_BYTES)))
    links = make_links(int(row["gpus_per_node"]), row["link"], *rates)
    return Curve(
        row["source"], row["gpu"], StepModel(1.0, links, row["sync"], gradient_bytes, messages), sorted(points)
    )


def with_half_batches(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves with the half batch that is best for the other types of GPU of their source."""

    def assume(curve: Curve, half_batch: float) -> Curve:
        return curve._replace(model=replace(curve.model, pass_s=half_batch))

    def mean_error(others: Sequence[Curve], half_batch: float) -> float:
        frame = predict_curves([assume(each, half_batch) for each in others], {"scalebench": predict_model})
        return float(frame[frame.protocol == "P2"].scalebench.mean()) if others else 0.0

    chosen: dict[tuple[str, str], float] = {}
    for curve in (each for each in curves if each.is_strong):
        if (curve.source, curve.gpu) not in chosen:
            others = [each for each in curves
                      if each.source == curve.source and each.gpu != curve.gpu and each.is_strong]  # fmt: skip
            errors = [mean_error(others, half_batch) for half_batch in HALF_BATCHES]
            chosen[curve.source, curve.gpu] = float(HALF_BATCHES[int(np.argmin(errors))])
    return [assume(each, chosen[each.source, each.gpu]) if each.is_strong else each for each in curves]


Predict = Callable[[Extrapolation, Points], Sequence[float]]  # seconds of a step at the unseen points


def predict_curves(curves: Sequence[Curve], models: dict[str, Predict] | None = None) -> pd.DataFrame:
    """Return a row for each predicted point: its protocol and curve, the error of each model, and how far ours is off
    in logarithms of seconds, over the scale of its error."""
    rows: list[dict[str, Any]] = []
    for number, curve in enumerate(curves):
        for protocol, seen, unseen in curve.list_trials():
            ours = extrapolate(curve.model, seen)
            scales = ours.error_scale([point.devices for point in unseen], [point.batch for point in unseen])
            predicted = {name: predict(ours, unseen) for name, predict in (models or MODELS).items()}
            for at, point in enumerate(unseen):
                errors = {name: abs(point.step_s / seconds[at] - 1) for name, seconds in predicted.items()}
                ratio = np.log(point.step_s / predicted["scalebench"][at]) / scales[at]
                rows.append({"protocol": protocol, "source": curve.source, "curve": number, "strong": curve.is_strong,
                             "ratio": ratio, **errors})  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame if frame.empty else frame.sort_values("protocol", key=lambda names: names.map([*PROTOCOLS].index))


def predict_model(ours: Extrapolation, unseen: Points) -> Sequence[float]:
    return [float(ours.step_s(point.devices, point.batch)) for point in unseen]


def predict_perfect(ours: Extrapolation, unseen: Points) -> Sequence[float]:
    return [ours.last.step_s * point.batch / ours.last.batch for point in unseen]


def predict_linear(columns: Callable[[np.ndarray], list[np.ndarray]]) -> Predict:
    """Return a model of seconds per sample that is linear in its `columns`, fitted with coefficients of at least 0."""

    def predict(ours: Extrapolation, unseen: Points) -> Sequence[float]:
        if len(ours.points) < 2:
            return predict_perfect(ours, unseen)
        seen = np.array([point.devices for point in ours.points], float)
        rates = np.array([point.devices * point.batch / point.step_s for point in ours.points])
        coefficients, _ = nnls(np.stack(columns(seen), 1) * rates[:, None], np.ones(len(rates)))  # relative errors
        sample_s = np.stack(columns(np.array([point.devices for point in unseen], float)), 1) @ coefficients
        return [point.devices * point.batch * each for point, each in zip(unseen, sample_s, strict=True)]

    return predict


MODELS: dict[str, Predict] = {
    "scalebench": predict_model,
    "perfect scaling": predict_perfect,
    # Amdahl 1967; Gunther 1993 (USL), (1 + a (n - 1) + b n (n - 1)) / n; Venkataraman et al. 2016 (Ernest).
    "Amdahl": predict_linear(lambda n: [1 / n, 1 - 1 / n]),
    "USL": predict_linear(lambda n: [1 / n, 1 - 1 / n, n - 1]),
    "Ernest": predict_linear(lambda n: [1 / n, np.log(n) / n, np.ones_like(n)]),
}
