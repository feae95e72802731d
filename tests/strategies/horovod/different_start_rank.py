"""A rank that has other initial weights than rank 0 until it is set up, and writes those that it has then."""

import sys
from pathlib import Path

import numpy as np

from scalebench.runner.worker import exit_without_cleanup, run_rank


def body(spec, strategy, record, progress):
    build = strategy._build_model

    def build_differently(*arguments):
        spec.config.seed += record.rank  # seeds the weights; the samples are assigned already
        return build(*arguments)

    strategy._build_model = build_differently
    strategy.setup()
    np.savez(progress.folder / f"weights{record.rank}.npz", **strategy.parameters())


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
