"""Artificial time series, whose figures are known."""

import numpy as np

from scalebench.measure.monitor.time_series import TimeSeries, TimeWindow

BEGIN_S = 1_800_000_000.0  # some moment in seconds since the epoch
WINDOW = TimeWindow(BEGIN_S + 10.0, BEGIN_S + 20.0)


def series(columns, begin_s=0.0, end_s=30.0, every_s=0.1):
    """Return a series sampled in [begin_s, end_s]: `source/quantity` -> a constant, or a function of the seconds since
    BEGIN_S."""
    at_s = np.arange(round((end_s - begin_s) / every_s) + 1) * every_s + begin_s
    by_name = {}
    for name, curve in columns.items():
        source, _, quantity = name.rpartition("/")
        values = [curve(t) if callable(curve) else curve for t in at_s.tolist()]
        by_name[source, quantity] = (BEGIN_S + at_s, np.asarray(values, float))
    return TimeSeries(by_name)


def join(*parts):
    return TimeSeries({key: column for part in parts for key, column in part._columns.items()})
