"""One rank under ModelContract: `python -m scalebench.testing.model_worker FOLDER` builds the network, trains it for a
few updates, and leaves what it saw in model.json, start.npz and end.npz. Layer 3.

Where the folder has given.npz, the weights of the other framework, it starts from those; where it has only_build, it
trains nothing.

The weights of a PyTorch network for the same network in Keras: by their order and kind. Layer 3.

Both frameworks keep weights in the order in which layers were made, a kernel before its bias. What Keras calls a kernel
has its axes the other way round; everything else goes over as it is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure.progress import ProgressFile
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import FORWARD, Strategy, probes_of
from scalebench.testing.strategy_worker import CountedLoop, normalises
from scalebench.workloads import datasets

# A kernel's number of axes -> torch's axes in Keras' order.
AXES = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")


class CannotMap(Exception):
    """The weights do not go over one by one; the message says at which the two part."""


def mapped(given: Mapping[str, Any], wanted: Sequence[tuple[str, tuple[int, ...]]]) -> list[Any]:
    """Arrays for the trainable variables `wanted` (name, shape) of Keras, from PyTorch's by name, in order."""
    arrays = [(name, array) for name, array in given.items() if not name.endswith(STATISTICS)]
    if len(arrays) != len(wanted):
        raise CannotMap(f"PyTorch's network has {len(arrays)} trained arrays and Keras' has {len(wanted)}")
    found = []
    for number, ((theirs, array), (ours, shape)) in enumerate(zip(arrays, wanted, strict=True), start=1):
        turned = array.transpose(AXES[array.ndim]) if _is_kernel(ours) and array.ndim in AXES else array
        if turned.shape != shape:
            raise CannotMap(
                f"weights go over by their order, and number {number} is {theirs} {array.shape} in PyTorch, which "
                f"would be {turned.shape} in Keras, where {ours} is {shape}; make the layers in the same order"
            )
        found.append(np.ascontiguousarray(turned))
    return found


def _is_kernel(name: str) -> bool:
    return name.rpartition("/")[2].partition(":")[0].endswith("kernel")


UPDATES = 2
GIVEN, FOUND, ONLY_BUILD = "given.npz", "model.json", "only_build"
# What a framework itself counts: "module:function", which takes an action and returns its floating point operations.
FLOP_COUNTERS = {"torch": "scalebench.strategies.torch.profiling:counted"}


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
