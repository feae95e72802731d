"""ddp_gloo with its default options, on two processes, against DistributedDataParallel in a hand-written loop.

Target: never slower, so that the interval includes 1 or is above it. Same network, batch, data and threads, in the same
processes, alternating (loop_worker). `wall` includes the work between the blocks of a measured run, which a
hand-written loop does not have.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks.loop_overhead import LABELS, measure
from benchmarks.spread import format_ratios

LAUNCHES = int(os.environ.get("BENCHMARK_LAUNCHES", "3"))  # the layout of memory differs between them
STRATEGY, GPUS = "ddp_gloo", 2


def main() -> None:
    launches = [turns for _ in range(LAUNCHES) if (turns := measure(STRATEGY, GPUS))]
    for kind in ("blocks", "wall") if launches else ():
        by_hand, measured = (np.concatenate([turns[key] for turns in launches]) for key in ("by_hand", kind))
        print(f"{STRATEGY} gpus={GPUS}: {LABELS[kind]}: {format_ratios(by_hand, measured)}", flush=True)
