"""Batches that a user's function gives in each rank: a DataLoader, or any other iterable, which is read in the step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalebench.core import plugins
from scalebench.core.errors import PluginError
from scalebench.core.spec import ModelSpec, RunSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.script import batches
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.workloads import networks, user_code


class UserLoader:
    """Draws batches without end: what the function returns is begun again when it is over, as the next epoch.

    The function is called with (rank, world_size, batch, seed, **dataset.options), and once more where what it returns
    can be read only once, as a generator. The first batch is drawn here, and compared with what the run asks for.
    """

    def __init__(self, spec: RunSpec, replica: int, replicas: int) -> None:
        """Raises PluginError where the function or its batches cannot be used, and Unsupported where several processes
        have to draw the same batch, which nothing ensures."""
        config = spec.config
        if replicas != spec.processes:
            raise Unsupported(
                f"ranks of {config.strategy.name} train on the same samples, and dataset.loader gives each its own: "
                "use dataset.builder, or a data-parallel strategy"
            )
        self._config, self._replicas = config, replicas
        self._label = f"dataset.loader={config.dataset.loader}"
        self._network = None if user_code.is_user_model(config.model) else config.model
        self._is_mse = config.model.loss == "mse"
        self._count_at: int | None = None  # where among a batch's counts its samples stand; None: its first axis
        self.steps_per_epoch = 0  # 0: not known yet
        self._epoch = self._drawn = 0  # epochs that are over, and batches of this one
        self._iterable: Any = None
        self._iterator: Iterator[Any] | None = None
        batch = spec.global_batch // replicas + (replica < spec.global_batch % replicas)
        with self._attribute_errors():
            function = user_code.load_function(str(config.dataset.loader), "dataset.loader")
            arguments, options = (replica, replicas, batch, config.seed), config.dataset.options
            call = f"(rank, world_size, batch, seed, **{options})"
            user_code.check_call(function, self._label, "returns the batches", call, options, *arguments)
            random.seed(config.seed + replica)  # a function that shuffles by itself does so in its own way in each rank
            np.random.seed((config.seed + replica) % 2**32)
            torch.manual_seed(config.seed + replica)
            self._call: Callable[[], Any] = lambda: function(*arguments, **options)
        self.first = self._draw()
        self._is_first_left = True
        leaves: list[Any] = []
        batches.map_leaves(leaves.append, self.first[:2])
        counts = _list_counts(*self.first[:2])
        if any(hasattr(leaf, "to") and getattr(leaf, "shape", ())[:1] != (batch,) for leaf in leaves):
            # Graphs, or images of different sizes.
            if config.train.accumulate > 1:
                raise PluginError(
                    f"{self._label} gives batches of which not all parts have an axis of samples, and which "
                    "train.accumulate therefore cannot divide: leave it at 1"
                )
            self._count_at = counts.index(batch) if batch in counts else None
            self.first = self._count(self.first)
        if self.first.samples != batch:
            raise PluginError(
                f"{self._label} gives a first batch of {self.first.samples} samples, and {batch} are asked for: use "
                "its argument `batch`, or set train.batch_per_device"
            )
        self._checksum = float(batches.checksum(self.first[:2]))

    def __iter__(self) -> Iterator[TorchBatch]:
        while True:
            is_first, self._is_first_left = self._is_first_left, False
            yield self.first if is_first else self._draw()

    def compare_ranks(self, broadcast: Callable[[float], float], rank: int) -> dict[str, str]:
        """Return the flag of ranks that draw the same samples; called on all ranks."""
        advice = f"draw the same samples from {self._label}: choose them by rank and world_size (DistributedSampler)"
        return batches.remark_same(self._checksum, broadcast, rank, advice)

    def close(self) -> None:
        """End the workers of a DataLoader, and a generator."""
        iterator, self._iterator, self._iterable = self._iterator, None, None
        for name in ("_shutdown_workers", "close"):
            if callable(end := getattr(iterator, name, None)):
                with suppress(Exception):  # it may be running in a thread that was left
                    end()

    def _draw(self) -> TorchBatch:
        with self._attribute_errors():
            while True:
                if self._iterator is None:
                    self._iterator = self._begin_epoch()
                try:
                    batch = next(self._iterator)
                except StopIteration:
                    if not self._drawn:
                        raise PluginError(
                            f"{self._label} ends without a batch in epoch {self._epoch + 1}: it has fewer samples than "
                            "a batch, or gives an iterator that is used up"
                        ) from None
                    self.steps_per_epoch, self._drawn, self._iterator = self._drawn, 0, None
                    self._epoch += 1
                else:
                    self._drawn += 1
                    return self._convert(batch)

    def _begin_epoch(self) -> Iterator[Any]:
        if self._iterable is None or hasattr(self._iterable, "__next__"):  # a generator is over after one epoch
            self._iterable = self._call()
            if not hasattr(self._iterable, "__iter__") or isinstance(self._iterable, (str, bytes, dict, Tensor)):
                kind = "None" if self._iterable is None else f"a {type(self._iterable).__name__}"
                raise PluginError(f"{self._label} gives {kind}: return a DataLoader, or another iterable of batches")
            with suppress(TypeError, NotImplementedError):  # without a length, the first epoch shows it
                self.steps_per_epoch = len(self._iterable)
        sampler = getattr(self._iterable, "sampler", None)
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(self._epoch)
        return iter(self._iterable)

    def _convert(self, batch: Any) -> TorchBatch:
        """Return the batch as tensors: (inputs, targets) of a pair, else inputs that hold their targets, too."""
        is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        inputs, targets = (batches.map_leaves(_to_tensor, part) for part in (batch if is_pair else (batch, None)))
        inputs, targets = (tuple(part) if type(part) is list else part for part in (inputs, targets))
        if self._is_mse and isinstance(targets, Tensor) and targets.is_floating_point() and targets.dim() == 1:
            targets = targets[:, None]  # one quantity is a vector of one
        if self._network is not None:
            inputs = self._fit_network(self._network, inputs, targets)
        counted = self._count(TorchBatch(inputs, targets, 0))
        if not counted.samples:
            raise PluginError(f"{self._label} gives a batch without samples: {_describe(batch)}")
        return counted

    def _count(self, batch: TorchBatch) -> TorchBatch:
        """Return the batch with the number of its samples. A tuple with one part for each is one argument: a list."""
        if self._count_at is not None:
            inputs = list(batch.inputs) if self._count_at == 0 and type(batch.inputs) is tuple else batch.inputs
            size = _list_counts(*batch[:2])[self._count_at]
            batch = batch._replace(inputs=inputs, size=size)
        # Each rank's mean counts alike, as in a loop of the user's own.
        return batch._replace(global_samples=batch.samples * self._replicas)

    def _fit_network(self, model: ModelSpec, inputs: Any, targets: Any) -> Tensor:
        """Return inputs for a network of scalebench, channels last. Raises PluginError where shapes or types differ."""
        shape, target_shape = tuple(model.input_shape), tuple(model.target_shape)
        are_tensors = isinstance(inputs, Tensor) and isinstance(targets, Tensor)
        if are_tensors and inputs.shape[1:] != shape and inputs.dim() > 2 and inputs.movedim(1, -1).shape[1:] == shape:
            inputs = inputs.movedim(1, -1)  # channels first, as PyTorch has them
        takes_tokens, has_classes = networks.takes_tokens(model), not self._is_mse
        fits = (
            are_tensors
            and (inputs.shape[1:], targets.shape[1:]) == (shape, target_shape)
            and inputs.is_floating_point() == (not takes_tokens and inputs.dtype != torch.uint8)
            and targets.is_floating_point() != has_classes
        )
        if not fits:
            kinds = "tokens" if takes_tokens else "floats", "classes" if has_classes else "floats"
            raise PluginError(
                f"{self._label} gives {_describe((inputs, targets))}; model={model.name} takes {kinds[0]} "
                f"{('n', *shape)} and {kinds[1]} {('n', *target_shape)}".replace("'n'", "n").replace("(n,)", "(n)")
            )
        if has_classes and int(targets.max()) >= model.outputs:
            raise PluginError(
                f"{self._label} has class {int(targets.max())}, and model={model.name} has {model.outputs} outputs: "
                "set model.outputs"
            )
        return inputs

    def _attribute_errors(self) -> AbstractContextManager[None]:
        """Name the user's function in errors of its code, those of a DataLoader's workers included."""
        return plugins.attribute_errors(self._label, Unsupported, MemoryError)


def _list_counts(inputs: Any, targets: Any) -> list[int]:
    return [*batches.list_counts(inputs), *batches.list_counts(targets)]


def _to_tensor(leaf: Any) -> Any:
    """Return an array as a tensor, wider floats as float32 like all that is trained; anything else as it is."""
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiub":
        leaf = torch.from_numpy(np.ascontiguousarray(leaf))
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype == torch.float64 else leaf


def _describe(batch: Any) -> str:
    """Return the shapes of the parts of a batch for a message: `float32 (64, 3, 32, 32) and int64 (64,)`."""
    parts = [batch[key] for key in batch] if isinstance(batch, dict) else batch
    parts = parts if isinstance(parts, (tuple, list)) else [parts]
    return " and ".join(
        f"{str(part.dtype).removeprefix('torch.')} {tuple(part.shape)}"
        if hasattr(part, "shape")
        else type(part).__name__
        for part in parts
    )
