"""`python -m tests.truth.sleeping_worker FOLDER`: scalebench.runner.worker, whose simulated strategy sleeps with known
noise and leaves word of how long it really slept: slept<rank>.json, seconds by what it was to be.

A sleep always lasts longer than asked for, by how much depends on the machine. The noise makes intervals that are wide
beside what the harness itself takes, which no sleep knows of. That of an exchange is common to all ranks.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from scalebench.core.json_files import read_json, write_json
from scalebench.core.spec import read_spec
from scalebench.runner import worker
from scalebench.strategies import simulated

SYNC_S, WIDTH = 0.035, 0.25  # like no other duration, by which it is known


class Sleeping:
    """Stands for the module `time`."""

    def __init__(self, seed, rank):
        self.slept_s = {}
        self._alone, self._common = np.random.default_rng([seed, rank]), np.random.default_rng([seed, 99])

    def __getattr__(self, name):
        return getattr(time, name)

    def sleep(self, seconds):
        rng = self._common if seconds == SYNC_S else self._alone
        factor = max(0.1, 1 + WIDTH * rng.standard_normal())
        start_s = time.perf_counter()
        time.sleep(seconds * factor)
        self.slept_s.setdefault(f"{seconds:.6f}", []).append(time.perf_counter() - start_s)


class Slept:
    """The sleeps of all trials of a run together, drawn anew for each of many steps."""

    def __init__(self, folder, trials):
        self._folder, self._trials, self._rng = folder, trials, np.random.default_rng(0)

    def __call__(self, name, rank, nominal_s):
        records = [read_json(self._folder / f"{name}{trial}/slept{rank}.json") for trial in range(self._trials)]
        return self._rng.choice(np.concatenate([record[f"{nominal_s:.6f}"] for record in records]), 100_000)


def main(arguments):
    folder, rank = Path(arguments[0]), int(os.environ["RANK"])
    sleeping = Sleeping(read_spec(folder).config.seed, rank)
    simulated.time = sleeping
    status = worker.main(arguments)
    write_json(folder / f"slept{rank}.json", sleeping.slept_s)
    return status


if __name__ == "__main__":
    worker.exit_without_cleanup(main(sys.argv[1:]))
