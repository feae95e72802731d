"""ddp_gloo with its default options, on two processes, against DistributedDataParallel in a hand-written loop.

Target: never slower, so that the interval includes 1 or is above it. Same network, weights, batch, data and threads, in
the same processes, alternating (loop_worker). The time between blocks is work of a measured run that a hand-written
loop lacks.
"""

from __future__ import annotations

from benchmarks.loop_overhead import compare


def main() -> None:
    compare("ddp_gloo gpus=2", "ddp_gloo", 2)
