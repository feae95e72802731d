"""What devices, processes and the machine did during a run: a process of its own that samples, and what is made of it.

`python -m scalebench.measure.monitor FOLDER` (sampling) leaves one series; keeper.py starts and ends it, series.py,
summary.py and guards.py make figures and flags of it. Layer 2.
"""

from __future__ import annotations

SERIES_FILE = "monitor.parquet"  # long: time_s (seconds since the epoch), source, quantity (unit in its name), value
