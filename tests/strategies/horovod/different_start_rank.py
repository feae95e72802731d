"""A rank with different initial weights, or one that ends before rank 0's broadcast, according to start.json."""

import os
import sys
from pathlib import Path

import numpy as np

from scalebench.core.json_files import read_json
from scalebench.measure.session import Session
from scalebench.runner.worker import exit_without_cleanup, run_rank


def body(spec, strategy, record, progress):
    start = read_json(progress.folder / "start.json")
    build = strategy._build_model

    def build_differently(*arguments):
        if start == "ends" and record.rank == 1:
            os._exit(7)
        spec.config.seed += record.rank  # seeds the weights; the samples are assigned already
        return build(*arguments)

    strategy._build_model = build_differently
    if start == "ends":
        Session(spec, strategy, record, progress).run()
        return
    strategy.setup()
    np.savez(progress.folder / f"weights{record.rank}.npz", **strategy.parameters())


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
