"""Launches made by hand, for comparisons: as many as there are figures, on a day of their own for each side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.analysis.comparison.pairing import ComparedRun, make_compared_run
from scalebench.core.result import Result
from tests.builders.runs import MACHINE, record, simulated_config
from tests.builders.sweeps import write_results

DAYS = {"a": 1, "b": 2, "c": 3}


def make_results(
    side: str,
    block_s: Sequence[float],
    strategy: str = "ddp",
    gpus: int = 1,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> list[Result]:
    """A launch for each of `block_s`, the seconds of its blocks: 20 samples a device and block. `options` are of the
    strategy, `changes` as for helpers.record."""
    found = [
        record(
            strategy, gpus, each, baseline=None,
            **{"repeat": number, "run_id": f"{side}-{strategy}-{gpus}-{number}",
               "started_at": f"2026-01-{DAYS[side]:02d}T{number:02d}:{gpus:02d}:00.000+00:00", **changes},
        )
        for number, each in enumerate(block_s)
    ]  # fmt: skip
    for result in found:
        result.spec["strategy"]["options"] = options or {}
    return found


def make_runs(side: str, block_s: Sequence[float], strategy: str = "ddp", gpus: int = 1, **changes: Any) -> list[ComparedRun]:
    """As launches."""
    return [make_compared_run(result) for result in make_results(side, block_s, strategy, gpus, **changes)]


def write_folder(side: str, block_s: Sequence[float], strategy: str = "ddp", gpus: int = 1, **changes: Any) -> Path:
    """In <side>/<n>, after what is there."""
    write_results(Path(side), make_results(side, block_s, strategy, gpus, **changes))
    return Path(side)


def make_failed_run(side: str, status: str = "failed", strategy: str = "ddp", gpus: int = 1, **changes: Any) -> ComparedRun:
    """One that went wrong."""
    run_id = f"{side}-{strategy}-{gpus}-{status}"
    return make_compared_run(record(strategy, gpus, None, status=status, **{"baseline": None, "run_id": run_id, **changes}))


def train_settings(**settings: Any) -> dict[str, Any]:
    """Fields of Config with these settings of training."""
    return {"train": dataclasses.replace(simulated_config().train, **settings)}


def machine_settings(**changes: Any) -> dict[str, Any]:
    """A field of Result: the usual machine with some differences."""
    return {"machine": dataclasses.replace(MACHINE, **changes)}
