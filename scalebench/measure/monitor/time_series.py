"""The series while it grows: one row per figure, kept small. Layer 2.

No numpy and no pyarrow before the end: what samples must be up at once, and take little from those it watches.

The series of a run, read again: figures over a stretch of time. None is what cannot be told. Layer 2.
"""

from __future__ import annotations

import math
import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Names:
    """Numbers for names, in the order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.column = array("i")

    def add(self, name: str) -> None:
        self.column.append(self.numbers.setdefault(name, len(self.numbers)))


class Rows:
    """(time_s, source, quantity, value), 24 bytes each."""

    def __init__(self) -> None:
        self._sources, self._quantities = Names(), Names()
        self._time_s, self._values = array("d"), array("d")

    def __len__(self) -> int:
        return len(self._values)

    def add(self, time_s: float, source: str, quantity: str, value: float | None) -> None:
        """One figure; none where it could not be measured."""
        if value is None or not math.isfinite(value):
            return
        self._sources.add(source)
        self._quantities.add(quantity)
        self._time_s.append(time_s)
        self._values.append(value)

    def write(self, path: Path) -> None:
        """As a parquet file, whole or not at all; OSError when the folder is full or gone."""
        import pyarrow as pa
        from pyarrow import parquet

        def plain(kind: Any, column: array[Any]) -> Any:
            return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])

        def words(names: Names) -> Any:
            return pa.DictionaryArray.from_arrays(plain(pa.int32(), names.column), pa.array(names.numbers, pa.string()))

        columns = {
            "time_s": plain(pa.float64(), self._time_s),
            "source": words(self._sources),
            "quantity": words(self._quantities),
            "value": plain(pa.float64(), self._values),
        }
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            parquet.write_table(pa.table(columns), temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


COVERED = 0.9  # of a stretch: a counter that was seen for less of it does not speak for it


@dataclass(frozen=True)
class Window:
    """A stretch of time, in seconds since the epoch, without the `gaps` in it: (begin, end) in their order."""

    begin_s: float
    end_s: float
    gaps: tuple[tuple[float, float], ...] = ()

    @property
    def seconds(self) -> float:
        return sum(end_s - begin_s for begin_s, end_s in self.pieces)

    @property
    def pieces(self) -> list[tuple[float, float]]:
        """What the gaps leave of it."""
        begin_s, found = self.begin_s, []
        for gap_begin_s, gap_end_s in self.gaps:
            found.append((begin_s, min(gap_begin_s, self.end_s)))
            begin_s = max(begin_s, gap_end_s)
        return [(begin, end) for begin, end in [*found, (begin_s, self.end_s)] if begin < end]


class Series:
    """Times and values by (source, quantity), in the order of time."""

    def __init__(self, columns: dict[tuple[str, str], tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]) -> None:
        self._columns = columns

    @property
    def names(self) -> list[tuple[str, str]]:
        return sorted(self._columns)

    def sources(self, prefix: str) -> list[str]:
        return sorted({source for source, _ in self._columns if source.startswith(prefix)})

    def times_s(self, source: str, quantity: str, window: Window | None = None) -> list[float]:
        """When it was seen, within `window` or at any time."""
        return [time_s for time_s, _ in self._points(source, quantity, window)]

    def values(self, source: str, quantity: str, window: Window | None = None) -> list[float]:
        return [value for _, value in self._points(source, quantity, window)]

    def mean(self, source: str, quantity: str, window: Window) -> float | None:
        values = self.values(source, quantity, window)
        return sum(values) / len(values) if values else None

    def largest(self, source: str, quantity: str, window: Window) -> float | None:
        return max(self.values(source, quantity, window), default=None)

    def smallest(self, source: str, quantity: str, window: Window) -> float | None:
        return min(self.values(source, quantity, window), default=None)

    def counted(self, source: str, quantity: str, window: Window) -> float | None:
        """By how much a counter grew in `window`, linear between its samples; None where it was set back."""
        import numpy as np

        times_s, values = self._columns.get((source, quantity), (np.empty(0), np.empty(0)))
        seen = _seen(times_s, window)
        if seen is None or np.any(np.diff(values) < 0):
            return None
        borders = np.interp(np.array(seen.pieces), times_s, values)
        return float(np.sum(np.diff(borders))) * window.seconds / seen.seconds

    def integral(self, source: str, quantity: str, window: Window) -> float | None:
        """Of a figure over `window`, linear between its samples."""
        import numpy as np

        times_s, values = self._columns.get((source, quantity), (np.empty(0), np.empty(0)))
        seen = _seen(times_s, window)
        if seen is None:
            return None
        area = 0.0
        for begin_s, end_s in seen.pieces:
            within = times_s[(times_s > begin_s) & (times_s < end_s)]
            at_s = np.concatenate([[begin_s], within, [end_s]])
            heights = np.interp(at_s, times_s, values)
            area += float(np.sum(np.diff(at_s) * (heights[1:] + heights[:-1]) / 2))
        return area * window.seconds / seen.seconds

    def _points(self, source: str, quantity: str, window: Window | None) -> list[tuple[float, float]]:
        import numpy as np

        if (source, quantity) not in self._columns:
            return []
        times_s, values = self._columns[source, quantity]
        if window is not None:
            within = np.zeros(len(times_s), dtype=bool)
            for begin_s, end_s in window.pieces:
                within |= (begin_s <= times_s) & (times_s <= end_s)
            times_s, values = times_s[within], values[within]
        return list(zip(times_s.tolist(), values.tolist(), strict=True))


def _seen(times_s: npt.NDArray[np.float64], window: Window) -> Window | None:
    """The part of `window` that the samples reach over, if that is most of it."""
    if len(times_s) < 2 or window.seconds <= 0:
        return None
    seen = Window(max(window.begin_s, float(times_s[0])), min(window.end_s, float(times_s[-1])), window.gaps)
    return seen if seen.seconds > 0 and seen.seconds >= COVERED * window.seconds else None


def read_series(path: Path) -> Series:
    """The series of a run; OSError or ValueError where there is none or only half of one."""
    import numpy as np
    from pyarrow import parquet

    with parquet.ParquetFile(path, read_dictionary=["source", "quantity"]) as file:  # read_table would load pandas
        table = file.read().combine_chunks()
    words, codes = [], []
    for name in ("source", "quantity"):
        column = table[name].combine_chunks()
        words.append(column.dictionary.to_pylist())
        codes.append(_plain(column.indices, np.int32).astype(np.int64))
    times_s, values = (_plain(table[name].combine_chunks(), np.float64) for name in ("time_s", "value"))
    key = codes[0] * max(1, len(words[1])) + codes[1]
    order = np.lexsort((times_s, key))
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    parts = np.split(order, starts[1:]) if len(order) else []
    return Series({(words[0][codes[0][p[0]]], words[1][codes[1][p[0]]]): (times_s[p], values[p]) for p in parts})


def _plain(column: Any, kind: type[np.generic]) -> npt.NDArray[Any]:
    """An Arrow array without nulls as numpy sees it: its own to_numpy would load pandas."""
    import numpy as np

    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]
