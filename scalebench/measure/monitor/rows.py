"""The series while it grows: one row per figure, kept small. Layer 2.

No numpy and no pyarrow before the end: what samples must be up at once, and take little from those it watches.
"""

from __future__ import annotations

import math
import os
from array import array
from pathlib import Path
from typing import Any


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
