"""Processor time of the parent while its workers measure, as a share of the wall time. Wanted: under 2 %."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.measure.progress import Progress
from scalebench.runner.parent import run

WORDS = ["strategy=simulated", "gpus=2", "measure.min_s=8", "measure.max_s=8", "measure.hang_s=60"]


def main() -> None:
    spec = resolve(compose_config(WORDS))
    looks: list[tuple[float, float]] = []

    def on_look(ranks: list[Progress]) -> None:
        if ranks and all(rank.phase == "measure" for rank in ranks):
            looks.append((time.monotonic(), time.process_time()))

    with tempfile.TemporaryDirectory() as name:
        run(spec, Path(name) / "run", on_look)
    (begin_s, begin_cpu_s), (end_s, end_cpu_s) = looks[0], looks[-1]
    share = (end_cpu_s - begin_cpu_s) / (end_s - begin_s)
    print(f"parent while measuring: {share:.2%} of a core, over {end_s - begin_s:.1f} s")
