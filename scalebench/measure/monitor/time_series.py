"""The time series of a monitor: rows while it samples, a parquet file, figures over a window when read again.

SampleRows needs neither numpy nor pyarrow before the end: a monitor must be up at once, and take little from the ranks.
A figure is None where the series does not give it.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

Reduction = Callable[[list[float]], float]
MONITOR, RESUMED = "monitor", "resumed"  # a row at the start of each slot that is sampled, of a run that takes turns
MIN_COVERED_SHARE = 0.9  # of a window: a counter sampled for less of it does not represent it


class SampleRows:
    """Samples of (time_s, value) by source and quantity, 16 bytes each."""

    def __init__(self) -> None:
        self.columns: dict[tuple[str, str], tuple[array[float], array[float]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, time_s: float, source: str, quantity: str, value: float | None) -> None:
        """Add one figure; no row where it could not be measured."""
        if value is not None and math.isfinite(value):
            times_s, values = self.columns.setdefault((source, quantity), (array("d"), array("d")))
            times_s.append(time_s)
            values.append(value)
            self._count += 1

    def write(self, path: Path) -> None:
        """Write all rows as a parquet file, complete or not at all; raise OSError when the folder is full or gone."""
        import numpy as np
        import pyarrow as pa
        from pyarrow import parquet

        columns = list(self.columns.values())
        codes = np.repeat(np.arange(len(columns), dtype=np.int32), [len(values) for _, values in columns])
        sources, quantities = ([key[part] for key in self.columns] for part in range(2))
        times_s, values = (np.concatenate([[], *(column[part] for column in columns)]) for part in range(2))
        table = pa.table({
            "time_s": times_s,
            "source": pa.DictionaryArray.from_arrays(codes, pa.array(sources, pa.string())),
            "quantity": pa.DictionaryArray.from_arrays(codes, pa.array(quantities, pa.string())),
            "value": values,
        })  # fmt: skip
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            parquet.write_table(table, temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class TimeWindow:
    """A span of time, in seconds since the epoch, without the `gaps` in it: (begin, end) in their order.

    What a window contains stands for `scale` times as many seconds, where only some slots of a run were sampled.
    """

    begin_s: float
    end_s: float
    gaps: tuple[tuple[float, float], ...] = ()
    scale: float = 1.0

    @property
    def seconds(self) -> float:
        return sum(end_s - begin_s for begin_s, end_s in self.pieces)

    @property
    def pieces(self) -> list[tuple[float, float]]:
        """Return the spans between the gaps, as (begin, end)."""
        begin_s, pieces = self.begin_s, []
        for gap_begin_s, gap_end_s in self.gaps:
            pieces.append((begin_s, min(gap_begin_s, self.end_s)))
            begin_s = max(begin_s, gap_end_s)
        return [(begin, end) for begin, end in [*pieces, (begin_s, self.end_s)] if begin < end]


class TimeSeries:
    """Times and values by (source, quantity), in order of time."""

    def __init__(self, columns: dict[tuple[str, str], tuple[FloatArray, FloatArray]]) -> None:
        self._columns = columns

    @property
    def names(self) -> list[tuple[str, str]]:
        return sorted(self._columns)

    def sources(self, prefix: str) -> list[str]:
        return sorted({source for source, _ in self._columns if source.startswith(prefix)})

    def times_s(self, source: str, quantity: str, window: TimeWindow | None = None) -> list[float]:
        """Return the times of its samples, within `window` or all."""
        return list(map(float, self._cut(source, quantity, window)[0]))

    def values(self, source: str, quantity: str, window: TimeWindow | None = None) -> list[float]:
        return list(map(float, self._cut(source, quantity, window)[1]))

    def first(self, source: str, quantity: str) -> float | None:
        """Return the first value of all, as of a figure that does not change."""
        return next(iter(self.values(source, quantity)), None)

    def reduce(self, source: str, quantity: str, window: TimeWindow, reduction: Reduction) -> float | None:
        """Return the mean, the largest or the smallest value of a figure in `window`."""
        values = self.values(source, quantity, window)
        return reduction(values) if values else None

    def growth(self, source: str, quantity: str, window: TimeWindow) -> float | None:
        """Return the growth of a counter in `window`, linear between its samples; None where it was reset."""
        import numpy as np

        times_s, values = self._cut(source, quantity)
        covered = _covered_window(times_s, window)
        if covered is None or np.any(np.diff(values) < 0):
            return None
        grown = np.diff(np.interp(np.array(covered.pieces), times_s, values))
        return float(np.sum(grown)) * window.seconds / covered.seconds * window.scale

    def rate(self, source: str, quantity: str, window: TimeWindow) -> float | None:
        """Return the growth of a counter per second of `window`."""
        growth = self.growth(source, quantity, window)
        return None if growth is None else growth / (window.seconds * window.scale)

    def integral(self, source: str, quantity: str, window: TimeWindow) -> float | None:
        """Return the integral of a figure over `window`, linear between its samples."""
        import numpy as np

        times_s, values = self._cut(source, quantity)
        covered = _covered_window(times_s, window)
        if covered is None:
            return None
        area = 0.0
        for begin_s, end_s in covered.pieces:
            at_s = np.array([begin_s, *times_s[(times_s > begin_s) & (times_s < end_s)], end_s])
            heights = np.interp(at_s, times_s, values)
            area += float(np.sum(np.diff(at_s) * (heights[1:] + heights[:-1]) / 2))
        return area * window.seconds / covered.seconds * window.scale

    def _cut(self, source: str, quantity: str, window: TimeWindow | None = None) -> tuple[FloatArray, FloatArray]:
        import numpy as np

        times_s, values = self._columns.get((source, quantity), (np.empty(0), np.empty(0)))
        if window is None:
            return times_s, values
        within = np.zeros(len(times_s), dtype=bool)
        for begin_s, end_s in window.pieces:
            within |= (begin_s <= times_s) & (times_s <= end_s)
        return times_s[within], values[within]


def _covered_window(times_s: FloatArray, window: TimeWindow) -> TimeWindow | None:
    """Return the part of `window` that the samples cover, if that is most of it."""
    if len(times_s) < 2 or window.seconds <= 0:
        return None
    covered = TimeWindow(max(window.begin_s, float(times_s[0])), min(window.end_s, float(times_s[-1])), window.gaps)
    return covered if covered.seconds > 0 and covered.seconds >= MIN_COVERED_SHARE * window.seconds else None


def read_series(path: Path) -> TimeSeries:
    """Read the series of a run; raise OSError or ValueError where it is missing or incomplete."""
    import numpy as np
    from pyarrow import parquet

    with parquet.ParquetFile(path, read_dictionary=["source", "quantity"]) as file:  # read_table would load pandas
        table = file.read().combine_chunks()
    names, codes = [], []
    for name in ("source", "quantity"):
        column = table[name].combine_chunks()
        names.append(column.dictionary.to_pylist())
        codes.append(np.from_dlpack(column.indices).astype(np.int64))  # its own to_numpy would load pandas
    columns = (np.from_dlpack(table[name].combine_chunks()) for name in ("time_s", "value"))
    times_s, values = (np.asarray(column, np.float64) for column in columns)
    key = codes[0] * max(1, len(names[1])) + codes[1]
    order = np.lexsort((times_s, key))
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    parts = np.split(order, starts[1:]) if len(order) else []
    return TimeSeries({(names[0][codes[0][p[0]]], names[1][codes[1][p[0]]]): (times_s[p], values[p]) for p in parts})
