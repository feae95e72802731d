"""One rank of a model under contract: `python -m scalebench.testing.model_worker FOLDER` builds and trains a network.

After a few steps it records its observations in model.json, start.npz and end.npz.

If the folder has given.npz, the weights of the same network in PyTorch, a Keras network starts from those; if it has
only_build, nothing is trained. Both frameworks keep weights in the order in which layers were made, a kernel before its
bias. Keras' kernels have their axes in another order; everything else is copied as it is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure.progress import ProgressFile
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import FORWARD, Strategy
from scalebench.testing.strategy_worker import CountedLoop, has_batch_normalization
from scalebench.workloads import datasets

# A kernel's number of axes -> torch's axes in Keras' order.
KERAS_KERNEL_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")


class UnmappableWeights(Exception):
    """The weights of the two networks do not correspond; the message names the first that differs."""


def map_torch_weights(torch_weights: Mapping[str, Any], variables: Sequence[tuple[str, tuple[int, ...]]]) -> list[Any]:
    """Return PyTorch's arrays for the trainable variables (name, shape) of Keras, in their order."""
    arrays = [(name, array) for name, array in torch_weights.items() if not name.endswith(STATISTICS)]
    if len(arrays) != len(variables):
        raise UnmappableWeights(f"PyTorch's network has {len(arrays)} trained arrays and Keras' has {len(variables)}")
    mapped = []
    for number, ((torch_name, array), (keras_name, shape)) in enumerate(zip(arrays, variables, strict=True), start=1):
        axes = KERAS_KERNEL_AXES.get(array.ndim) if _is_kernel(keras_name) else None
        turned = array if axes is None else array.transpose(axes)
        if turned.shape != shape:
            raise UnmappableWeights(
                f"weights are mapped by their order, and number {number} is {torch_name} {array.shape} in PyTorch, "
                f"which would be {turned.shape} in Keras, where {keras_name} is {shape}; "
                "make the layers in the same order"
            )
        mapped.append(np.ascontiguousarray(turned))
    return mapped


def _is_kernel(name: str) -> bool:
    return name.rpartition("/")[2].partition(":")[0].endswith("kernel")


STEPS = 2
START_WEIGHTS_FILE, CHECKS_FILE, ONLY_BUILD_FILE = "given.npz", "model.json", "only_build"
# "module:function" that takes an action and returns the floating point operations that the framework counts in it.
FLOP_COUNTERS = {"torch": "scalebench.strategies.torch.profiling:count_flops"}


@dataclass
class NetworkChecks:
    """The observations of a network in one framework."""

    params: int | None = None
    has_batch_normalization: bool = False
    losses: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    forward_flops: float | None = None  # of one sample, as the framework counts
    cannot_map: str | None = None  # why it could not start from PyTorch's weights


def examine_network(
    folder: Path, spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile
) -> None:
    strategy.setup()
    checks = NetworkChecks(strategy.num_params(), has_batch_normalization(strategy))
    _load_start_weights(strategy, folder / START_WEIGHTS_FILE, checks)
    _save_parameters(strategy, folder / "start.npz")
    if not (folder / ONLY_BUILD_FILE).exists():
        _train_steps(spec, strategy, checks, folder)
    strategy.close()
    write_json(folder / CHECKS_FILE, checks)


def _train_steps(spec: RunSpec, strategy: Strategy, checks: NetworkChecks, folder: Path) -> None:
    train, validation = datasets.open_sources(spec, *strategy.shard())
    batches = iter(strategy.feed(train))
    loop = CountedLoop(batches, STEPS)
    strategy.train(loop)
    strategy.synchronize()
    checks.losses = [float(part.loss_sum) / part.samples for part in loop.parts if part is not None]
    _save_parameters(strategy, folder / "end.npz")
    if validation is not None:
        checks.metrics = strategy.evaluate(validation)
    batch, samples = next(batches), spec.global_batch
    count = _find_flop_counter(spec.config.strategy.framework)
    if count is not None:
        checks.forward_flops = count(lambda: strategy.partial_step(batch, FORWARD)) / samples


def _load_start_weights(strategy: Any, path: Path, checks: NetworkChecks) -> None:
    if not path.exists():
        return
    variables = strategy.model.trainable_variables
    with np.load(path, allow_pickle=False) as arrays:
        torch_weights = dict(arrays)
    try:
        names = [(str(getattr(v, "path", v.name)), tuple(v.shape)) for v in variables]
        for variable, array in zip(variables, map_torch_weights(torch_weights, names), strict=True):
            variable.assign(array)
    except UnmappableWeights as reason:
        checks.cannot_map = str(reason)


def _save_parameters(strategy: Strategy, path: Path) -> None:
    np.savez(path, **strategy.parameters())


def _find_flop_counter(framework: str) -> Callable[[Callable[[], None]], float] | None:
    if framework not in FLOP_COUNTERS:
        return None
    module, _, function = FLOP_COUNTERS[framework].partition(":")
    counter: Callable[[Callable[[], None]], float] = getattr(importlib.import_module(module), function)
    return counter


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    return run_rank(folder, partial(examine_network, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
