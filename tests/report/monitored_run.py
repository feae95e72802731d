"""A run with a monitor series of fixed figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalebench.core.result import DeviceMonitorRecord, MonitorRecord, Result, write_result
from scalebench.measure.monitor.time_series import SampleRows
from tests.builders.sweeps import run

BEGIN_S = 1_800_000_000.0  # of the measured phase; it lasts 10 s, and warm-up 5 s before it
DIP_S = 3.35  # when the clock of GPU 1 dips, for one sample


def write_monitored_run(folder: Path, gpus: int = 2, strategy: str = "ddp_gloo", **changes: Any) -> Result:
    """Write a run with its series into `folder`."""
    monitor = MonitorRecord("monitor.parquet", devices=[DeviceMonitorRecord(index) for index in range(gpus)])
    result = run(strategy, gpus, **{"monitor": monitor, **changes})
    for rank in result.ranks:
        rank.marks_s = {"setup": BEGIN_S - 8, "warmup": BEGIN_S - 5, "measure": BEGIN_S, "probes": BEGIN_S + 10}
    folder.mkdir(parents=True)
    write_result(result, folder)
    rows = SampleRows()
    rows.add(BEGIN_S - 8, "cpu", "cores", 4)
    for number in range(-80, 130):
        since_s = number / 10 + 0.05
        for gpu in range(gpus):
            dips = gpu == 1 and abs(since_s - DIP_S) < 0.01
            rows.add(BEGIN_S + since_s, f"gpu{gpu}", "sm_clock_mhz", 210.0 if dips else 1400.0 + number % 3)
            rows.add(BEGIN_S + since_s, f"gpu{gpu}", "util_share", 0.5)
        if number % 5 == 0:
            rows.add(BEGIN_S + since_s, "cpu", "busy_s", 100 + 3 * since_s)
            rows.add(BEGIN_S + since_s, "ours", "cpu_s", 50 + 2 * since_s)
            for rank in range(gpus):
                rows.add(BEGIN_S + since_s, f"process:{rank}", "rss_bytes", 2e9 + rank)
    rows.write(folder / "monitor.parquet")
    return result
