"""The rate at which curves of the data set `materials` are generated, against drawing as many random numbers. Target:
40,000/s."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.spread import format_ratios
from scalebench.workloads.datasets import materials

CURVES = materials.CHUNK
TURNS = 10


def main() -> None:
    generated_s, drawn_s = [], []
    rng = np.random.default_rng(0)
    for turn in range(TURNS):
        begin_s = time.process_time()
        materials.make_curves(turn, 0, CURVES)
        generated_s.append(time.process_time() - begin_s)
        begin_s = time.process_time()
        rng.standard_normal((CURVES, *materials.INPUT_SHAPE), np.float32)
        drawn_s.append(time.process_time() - begin_s)
    rate = CURVES / sorted(generated_s)[TURNS // 2]
    print(f"{rate:,.0f} curves/s per core; time / drawing as many normals: {format_ratios(generated_s, drawn_s)}")
