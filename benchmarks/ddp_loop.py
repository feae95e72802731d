"""ddp_gloo with its default options, on two processes, against DistributedDataParallel in a hand-written loop beside
it. Wanted: never slower, an interval that reaches 1 or lies above.

Same network, batch, data and threads, in the same processes, in turns (loop_worker). `wall` counts what a measured run
does between its blocks, which no hand-written loop does.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks.loop_overhead import WHAT, measure
from benchmarks.spread import ratios

LAUNCHES = int(os.environ.get("BENCHMARK_LAUNCHES", "3"))  # where memory happens to lie differs between them
STRATEGY, GPUS = "ddp_gloo", 2


def main() -> None:
    launches = [found for _ in range(LAUNCHES) if (found := measure(STRATEGY, GPUS))]
    for what in ("blocks", "wall") if launches else ():
        by_hand, ours = (np.concatenate([turns[key] for turns in launches]) for key in ("by_hand", what))
        print(f"{STRATEGY} gpus={GPUS}: {WHAT[what]}: {ratios(by_hand, ours)}", flush=True)
