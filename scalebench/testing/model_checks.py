"""One rank under ModelContract: `python -m scalebench.testing.model_checks FOLDER` builds the network, trains it for a
few updates, and leaves what it saw in model.json, start.npz and end.npz. Layer 3.

Where the folder has given.npz, the weights of the other framework, it starts from those; where it has only_build, it
trains nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.measure.progress import ProgressFile
from scalebench.records import write_json
from scalebench.results import RankRecord
from scalebench.spec import RunSpec
from scalebench.strategy import FORWARD, Strategy, probes_of
from scalebench.testing.checks import CountedLoop, normalises
from scalebench.testing.mapping import CannotMap, mapped
from scalebench.worker import exit_without_cleanup, run_rank
from scalebench.workloads import datasets

UPDATES = 2
GIVEN, FOUND, ONLY_BUILD = "given.npz", "model.json", "only_build"
# What a framework itself counts: "module:function", which takes an action and returns its floating point operations.
FLOP_COUNTERS = {"torch": "scalebench.adapters.torch.flop_count:counted"}


@dataclass
class Found:
    """What the rank saw of the network."""

    params: int | None = None
    normalises: bool = False
    losses: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    forward_flops: float | None = None  # of one sample, as the framework counts
    cannot_map: str | None = None  # why it could not start from the given weights


def examine(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile, folder: Path) -> None:
    strategy.setup()
    found = Found(probes_of(strategy).num_params(), normalises(strategy))
    _start_from_given(strategy, folder / GIVEN, found)
    _keep(strategy, folder / "start.npz")
    if not (folder / ONLY_BUILD).exists():
        _train(spec, strategy, found, folder)
    strategy.close()
    write_json(folder / FOUND, found)


def _train(spec: RunSpec, strategy: Strategy, found: Found, folder: Path) -> None:
    train, validation = datasets.open_sources(spec, *strategy.shard())
    batches = iter(strategy.feed(train))
    loop = CountedLoop(batches, UPDATES)
    strategy.train(loop)
    strategy.synchronize()
    found.losses = [float(part.loss_sum) / part.samples for part in loop.parts if part is not None]
    _keep(strategy, folder / "end.npz")
    if validation is not None:
        found.metrics = strategy.evaluate(validation)
    batch, samples = next(batches), spec.global_batch
    count = _counter(spec.config.strategy.framework)
    if count is not None:
        found.forward_flops = count(lambda: probes_of(strategy).partial_step(batch, FORWARD)) / samples


def _start_from_given(strategy: Any, path: Path, found: Found) -> None:
    if not path.exists():
        return
    variables = strategy.model.trainable_variables
    with np.load(path, allow_pickle=False) as arrays:
        given = dict(arrays)
    try:
        names = [(str(getattr(v, "path", v.name)), tuple(v.shape)) for v in variables]
        for variable, array in zip(variables, mapped(given, names), strict=True):
            variable.assign(array)
    except CannotMap as reason:
        found.cannot_map = str(reason)


def _keep(strategy: Strategy, path: Path) -> None:
    np.savez(path, **probes_of(strategy).parameters())


def _counter(framework: str) -> Callable[[Callable[[], None]], float] | None:
    if framework not in FLOP_COUNTERS:
        return None
    module, _, function = FLOP_COUNTERS[framework].partition(":")
    counter: Callable[[Callable[[], None]], float] = getattr(importlib.import_module(module), function)
    return counter


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    return run_rank(folder, lambda *parts: examine(*parts, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
