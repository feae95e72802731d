"""Anonymous memory of a rank with a small and a large data set, whose files all ranks share. Target: the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.runner.parent import run_spec
from scalebench.workloads import datasets

SIZES = (5_000, 100_000)
OVERRIDES = ["strategy=bare_torch", "gpus=1", "measure.max_s=4", "measure.min_s=4"]


def main() -> None:
    peaks = {size: _peak_bytes(size) for size in SIZES}
    for size, (anonymous, resident) in peaks.items():
        print(f"dataset.size={size}: anonymous {anonymous / 2**20:.0f} MiB, resident {resident / 2**20:.0f} MiB")
    small, large = (peaks[size][0] for size in SIZES)
    grown = 2408 * (SIZES[1] - SIZES[0])
    print(f"growth of anonymous memory: {(large - small) / 2**20:+.1f} MiB for {grown / 2**20:.0f} MiB more data")


def _peak_bytes(size: int) -> tuple[int, int]:
    spec = resolve(compose_config([*OVERRIDES, f"dataset.size={size}"]))
    datasets.prepare(spec.config)
    with tempfile.TemporaryDirectory() as name:
        (rank,) = run_spec(spec, Path(name) / "run").ranks
    return rank.rss_anon_peak_bytes or 0, rank.rss_peak_bytes or 0
