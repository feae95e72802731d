"""What devices, processes and the machine did during a run: a process of its own that samples, and what is made of it.

`python -m scalebench.measure.monitor FOLDER [NODE]` (sampling) leaves one series; keeper.py starts and ends it,
series.py, summary.py and guards.py make figures and flags of it, together.py of those of several nodes. Layer 2.
"""

from __future__ import annotations

from pathlib import Path

SERIES_FILE = "monitor.parquet"  # long: time_s (seconds since the epoch), source, quantity (unit in its name), value


def series_path(folder: Path, node: int = 0) -> Path:
    """The series of a node of the run in `folder`; that of the first, or of the only one, has the plain name."""
    return folder / (SERIES_FILE if node == 0 else SERIES_FILE.replace(".", f"{node}."))
