"""Series made by hand, with known truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scalebench.measure.monitor.time_series import Series, Window

BEGIN_S = 1_800_000_000.0  # some moment in seconds since the epoch
WINDOW = Window(BEGIN_S + 10.0, BEGIN_S + 20.0)
Curve = float | Callable[[float], float]


def series(columns: dict[str, Curve], begin_s: float = 0.0, end_s: float = 30.0, every_s: float = 0.1) -> Series:
    """`source/quantity` -> a constant, or a function of the seconds since BEGIN_S, sampled in [begin_s, end_s]."""
    at_s = np.arange(round((end_s - begin_s) / every_s) + 1) * every_s + begin_s
    made = {}
    for name, curve in columns.items():
        source, _, quantity = name.rpartition("/")
        values = [curve(t) if callable(curve) else curve for t in at_s.tolist()]
        made[source, quantity] = (BEGIN_S + at_s, np.asarray(values, float))
    return Series(made)


def joined(*parts: Series) -> Series:
    """Several with different columns, as one."""
    return Series({key: column for part in parts for key, column in part._columns.items()})
