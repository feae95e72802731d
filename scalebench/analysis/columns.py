"""The columns of the frame, which do not depend on its rows: columns.csv lists them in the order of
docs/reference/results.md."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.stats.estimates import Estimate

if TYPE_CHECKING:
    import pandas as pd

DTYPES = ("nullable", "numpy")
RATE = "throughput_samples_per_s"
TOKEN_RATES = ("tokens_per_s", "tokens_per_s_per_device")
TEXT, COUNT, NUMBER, TRUTH = "string", "Int64", "Float64", "boolean"  # kinds of values in pandas


@dataclass(frozen=True)
class Column:
    """A column of the frame; its unit stands at the end of its name.

    Repeats that differ become the mean of numbers, all texts, or true where all are. `pool` names another way: the
    first one, each word once (union), null unless there is only one value, the smallest or the largest, and what is
    computed from the throughputs of all repeats (ratio).
    """

    name: str
    kind: str
    limits: bool  # it has two more columns with its 95 % interval
    pool: str
    head: str  # in tables of a report
    about: str  # in docs/reference/results.md

    @property
    def limit_names(self) -> tuple[str, ...]:
        return limit_names(self.name) if self.limits else ()


def select_heads(names: str) -> dict[str, str]:
    """Return the heads that these columns have in tables, by their names."""
    return {name: HEADS[name] for name in names.split()}


def limit_names(name: str) -> tuple[str, str]:
    """Return the names of the columns with the 95 % interval of a figure."""
    stem = name.removesuffix("_samples_per_s")
    return f"{stem}_low", f"{stem}_high"


with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    COLUMNS = tuple(Column(row["name"], row["kind"], bool(row["limits"]), row["pool"], row["head"], row["about"])
                    for row in csv.DictReader(_file))  # fmt: skip
HEADS = {column.name: column.head for column in COLUMNS}
FRAME_COLUMNS = [name for column in COLUMNS for name in (column.name, *column.limit_names)]
COLUMN_KINDS = {column.name: column.kind for column in COLUMNS} | {"repeats": COUNT}  # limits are numbers


def interval_cells(name: str, estimate: Estimate | None) -> dict[str, Any]:
    """Return the columns of a figure and its limits; an infinite one, which the data do not give, is null."""
    figures = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    cells = (None if figure is None or math.isinf(figure) else figure for figure in figures)
    return dict(zip((name, *limit_names(name)), cells, strict=True))


def estimate_of(row: Mapping[str, Any], name: str) -> Estimate | None:
    """Return the figure of such columns; a limit that is null there, or has no column, is infinite."""
    value, low, high = (row.get(column) for column in (name, *limit_names(name)))
    limits = -math.inf if low is None else low, math.inf if high is None else high
    return None if value is None else Estimate(value, *limits)


def make_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], **more_kinds: str) -> pd.DataFrame:
    """Return these rows as a frame with the types of COLUMNS, those without a kind numbers; a cell that a row lacks is
    null."""
    import pandas as pd

    cells, kinds = {name: [row.get(name) for row in rows] for name in columns}, COLUMN_KINDS | more_kinds
    return pd.DataFrame({name: pd.array(values, dtype=kinds.get(name, NUMBER)) for name, values in cells.items()})


def convert_types(frame: pd.DataFrame, dtypes: str = "nullable") -> pd.DataFrame:
    """Return a frame for programs: `started_at` as datetimes in UTC, `flags` as lists, and with dtypes="numpy" plain
    numpy columns, whose missing numbers are NaN. Raise InputError for other dtypes."""
    import pandas as pd

    if dtypes not in DTYPES:
        raise InputError(f"dtypes={dtypes!r}: {unknown_name_message('kind of columns', dtypes, DTYPES)}")
    columns = {str(name): frame[name] for name in frame.columns}
    if dtypes == "numpy":
        columns = {name: _to_numpy(column) for name, column in columns.items()}
    if "started_at" in columns:
        times = frame["started_at"].astype(object)
        columns["started_at"] = pd.to_datetime(times, utc=True, format="ISO8601", errors="coerce")
    if "flags" in columns:
        words = [[] if pd.isna(text) else text.split() for text in frame["flags"]]
        columns["flags"] = pd.Series(words, frame.index, dtype=object)
    return pd.DataFrame(columns, index=frame.index)


def _to_numpy(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return numbers as int64 where none is missing, else as float64; texts, and truth values with gaps, as objects
    with None."""
    import pandas as pd

    kind, has_gaps = str(column.dtype), bool(column.isna().any())
    if kind in ("Float64", "Int64"):
        return column.astype("float64" if has_gaps or kind == "Float64" else "int64")
    if kind == "boolean" and not has_gaps:
        return column.astype("bool")
    return pd.Series(column.to_numpy(dtype=object, na_value=None), column.index, dtype=object)
