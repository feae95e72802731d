"""Runs for comparisons: one for each figure, a side after the other in the session of a day."""

import dataclasses
from pathlib import Path

from scalebench.analysis.comparison.rows import make_compared_run
from tests.builders.runs import MACHINE, record, simulated_config
from tests.builders.sweeps import write_results

MINUTES = {"a": 0, "b": 15, "c": 30}  # of the first repeat of a side; a repeat starts each minute


def make_results(side, block_s, strategy="ddp", gpus=1, options=None, day=1, **changes):
    """Make a repeat for each of `block_s`, the seconds of its blocks of 20 samples per device; each day is a session.

    `options` are those of the strategy, `changes` as for `record`.
    """
    results = [
        record(
            strategy, gpus, each, baseline=None,
            **{"repeat": number, "run_id": f"{side}-{strategy}-{gpus}-{number}" + f"-{day}" * (day > 1),
               "started_at": f"2026-01-{day:02d}T00:{MINUTES[side] + number:02d}:{gpus:02d}.000+00:00", **changes},
        )
        for number, each in enumerate(block_s)
    ]  # fmt: skip
    for result in results:
        result.spec["strategy"]["options"] = options or {}
        result.scale.device = "cuda"  # whose speedups may be above their number; CPUs' are errors and carry no verdict
    return results


def make_runs(side, block_s, strategy="ddp", gpus=1, **changes):
    """Make runs as a comparison takes them."""
    results = make_results(side, block_s, strategy, gpus, **changes)
    return [make_compared_run(result, Path(side, result.run_id)) for result in results]


def write_folder(folder, block_s, strategy="ddp", gpus=1, side="", **changes):
    """Write runs of `side`, by default that with the name of the folder, to <folder>/<n>, after the existing ones."""
    write_results(Path(folder), make_results(side or folder, block_s, strategy, gpus, **changes))
    return Path(folder)


def make_failed_run(side, status="failed", strategy="ddp", gpus=1, **changes):
    """Make a failed run as a comparison takes it."""
    run_id = f"{side}-{strategy}-{gpus}-{status}"
    failed = record(strategy, gpus, None, status=status, **{"baseline": None, "run_id": run_id, **changes})
    failed.scale.device = "cuda"
    made = make_compared_run(dataclasses.replace(failed, reason="failed"), Path(side, run_id))
    return dataclasses.replace(made, record=dataclasses.replace(made.record, reason=failed.reason))  # with any text


def train_settings(**settings):
    """Return fields of Config with these settings of training."""
    return {"train": dataclasses.replace(simulated_config().train, **settings)}


def machine_settings(**changes):
    """Return a field of Result: the default machine with some changes."""
    return {"machine": dataclasses.replace(MACHINE, **changes)}
