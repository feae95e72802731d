"""Published scaling curves, whose errors of prediction calibrate the intervals of ours.

The package ships them, and their sources in published_series.yaml. A file of the same columns with other curves is
read, too.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scalebench.analysis.prediction.step_model import (
    LIMITS_FILE,
    LINK_EFFICIENCIES,
    SYNC_KINDS,
    Extrapolation,
    Links,
    MeasuredStep,
    StepModel,
    extrapolate,
    make_links,
)
from scalebench.core.errors import InputError

SERIES_FILE = LIMITS_FILE.with_suffix(".csv")
# Messages are not published: buckets as in PyTorch's DistributedDataParallel, or as many as a network has layers.
BUCKET_BYTES, MAX_MESSAGES = 25e6, 50
PROTOCOLS = ("P1", "P2", "P2b", "P3")


@dataclass(frozen=True)
class PublishedSeries:
    """One published scaling curve. `half_batch` are the samples that take as long as the fixed part of a pass."""

    source: str
    name: str
    gpu: str
    sync: str
    gradient_bytes: float
    links: Links
    points: tuple[MeasuredStep, ...]
    half_batch: float = 0.0

    @property
    def is_strong(self) -> bool:
        """True if the batch of a device changes with the number of devices."""
        return len({point.batch for point in self.points}) > 1

    def make_model(self) -> StepModel:
        messages = min(MAX_MESSAGES, max(1, round(self.gradient_bytes / BUCKET_BYTES)))
        return StepModel(1.0, self.links, self.sync, self.gradient_bytes, messages, pass_s=self.half_batch)


class Trial(NamedTuple):
    """The points that a protocol predicts, and those that it knows."""

    protocol: str
    series: PublishedSeries
    seen: tuple[MeasuredStep, ...]
    unseen: tuple[MeasuredStep, ...]

    def extrapolate(self) -> Extrapolation:
        return extrapolate(self.series.make_model(), self.seen)


def list_trials(series: PublishedSeries) -> Iterator[Trial]:
    """Yield the trials of a curve. P1: one device is known, where batches are equal. P2: all counts on one node, and
    those on more are predicted. P2b: all on one and two nodes. P3: the first two counts."""
    points = series.points
    nodes = [-(-point.devices // series.links.devices_per_node) for point in points]

    def split(protocol: str, count: int) -> Iterator[Trial]:
        if 0 < count < len(points):
            yield Trial(protocol, series, points[:count], points[count:])

    if points[0].devices == 1 and not series.is_strong:
        yield from split("P1", 1)
    if nodes[0] == 1:
        yield from split("P2", nodes.count(1))
        if 2 in nodes:
            yield from split("P2b", sum(count <= 2 for count in nodes))
    if len(points) > 2:
        yield from split("P3", 2)


@cache
def load_series(path: Path = SERIES_FILE) -> tuple[PublishedSeries, ...]:
    """Read curves. InputError names the file and the line of a row that cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    series = []
    for line, row in enumerate(rows, 2):
        try:
            series.append(_parse_row(row))
        except (KeyError, ValueError, TypeError, ArithmeticError) as error:
            raise InputError(
                f"{path}:{line} is not a scaling curve ({error}); its columns: those of {SERIES_FILE}"
            ) from error
    return tuple(series)


def _parse_row(row: dict[str, Any]) -> PublishedSeries:
    points = []
    for text in row["points"].split():
        scale, rate = text.split("=")
        devices, batch = scale.split("x")
        points.append(MeasuredStep(int(devices), float(batch), int(devices) * float(batch) / float(rate)))
    if row["sync"] not in SYNC_KINDS or row["link"] not in LINK_EFFICIENCIES:
        raise ValueError(f"sync {row['sync']}, link {row['link']}")
    if any(after.devices <= before.devices for before, after in itertools.pairwise(points)) or not points:
        raise ValueError("points in no ascending order")
    rates = (float(row[name]) if row[name] else None for name in ("intra_node_bytes_per_s", "inter_node_bytes_per_s"))
    links = make_links(int(row["gpus_per_node"]), row["link"], *rates)
    name = f"{row['series']}, {row['model']}"
    return PublishedSeries(
        row["source"], name, row["gpu"], row["sync"], float(row["gradient_bytes"] or 0), links, tuple(points)
    )
