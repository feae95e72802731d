"""A rank of Horovod's that starts from weights of its own, or dies before it gets rank 0's, as odd.json says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.core.json_files import read_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure.session import Session
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import Strategy


def body(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: Any) -> None:
    told = read_json(progress.folder / "odd.json")
    build = strategy._build

    def build_otherwise(*words: Any) -> Any:
        if told == "dies" and record.rank == 1:
            os._exit(7)
        spec.config.seed += record.rank  # of the weights; those of the samples are dealt out already
        return build(*words)

    strategy._build = build_otherwise
    if told == "dies":
        Session(spec, strategy, record, progress).run()
        return
    strategy.setup()
    np.savez(progress.folder / f"weights{record.rank}.npz", **strategy.parameters())


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
