"""Processor time of the parent while its workers measure, as a share of the wall time. Target: under 2 %."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.measure.progress import RankProgress
from scalebench.runner.parent import run_spec

OVERRIDES = ["strategy=simulated", "gpus=2", "measure.min_s=8", "measure.max_s=8", "measure.hang_s=60"]


def main() -> None:
    spec = resolve(compose_config(OVERRIDES))
    samples: list[tuple[float, float]] = []

    def on_progress(ranks: list[RankProgress]) -> None:
        if ranks and all(rank.phase == "measure" for rank in ranks):
            samples.append((time.monotonic(), time.process_time()))

    with tempfile.TemporaryDirectory() as name:
        run_spec(spec, Path(name) / "run", on_progress)
    (begin_s, begin_cpu_s), (end_s, end_cpu_s) = samples[0], samples[-1]
    share = (end_cpu_s - begin_cpu_s) / (end_s - begin_s)
    print(f"parent while measuring: {share:.2%} of a core, over {end_s - begin_s:.1f} s")
