"""Fully sharded data parallelism: each process keeps its share of the weights, gradients and optimizer's state.

Which layers of a network are sharded, gathered and freed together.

What FSDP really sends: it is given its own collectives again, which also keep account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from scalebench.strategies.base import LossPart, NotMeasured, Unsupported
from scalebench.strategies.torch import collectives, evaluation, optimizer
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.model import NetworkModule
from scalebench.workloads.source import Source


def units(model: NetworkModule, least_bytes: float) -> list[list[nn.Module]]:
    """Layers with weights in the order of the forward pass, in groups of at least so many bytes of weights; what is
    left at the end goes to the last group. One group of all where layers share a weight."""
    layers = [getattr(model, step.module) for step in model.plan]
    layers = [layer for layer in layers if next(layer.parameters(), None) is not None]
    if sum(len(list(layer.parameters())) for layer in layers) > len(list(model.parameters())):
        return [layers]
    found: list[list[nn.Module]] = []
    open_bytes: float | None = None  # of the last group; None: it is full
    for layer in layers:
        if open_bytes is None:
            found.append([])
            open_bytes = 0.0
        found[-1].append(layer)
        open_bytes += sum(one.numel() * one.element_size() for one in layer.parameters())
        if open_bytes >= least_bytes:
            open_bytes = None
    if open_bytes is not None and len(found) > 1:
        rest = found.pop()
        found[-1] += rest
    return found


Message = tuple[str, int]  # kind of the collective, bytes of its whole


class Account:
    """Messages of one update, in the order in which they were sent."""

    def __init__(self) -> None:
        self.of_update: list[Message] = []  # of the last one that ended
        self._so_far: list[Message] | None = None  # None: none is under way

    @contextmanager
    def update(self) -> Iterator[None]:
        """Around an update: what is sent between two of them is not counted."""
        self._so_far = []
        try:
            yield
        finally:
            self.of_update, self._so_far = self._so_far, None

    def note(self, kind: str, whole: Tensor) -> None:
        if self._so_far is not None:
            self._so_far.append((kind, whole.numel() * whole.element_size()))

    def watch(self, unit: Any) -> None:
        """A module that fully_shard was applied to."""
        unit.set_custom_all_gather(_AllGather(self))
        unit.set_custom_reduce_scatter(_ReduceScatter(self))


class _Noted:
    def __init__(self, account: Account) -> None:
        self.account = account

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Noted):
    """torch's DefaultAllGather."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self.account.note("all_gather", output_tensor)
        return collectives.all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class _ReduceScatter(_Noted):
    """torch's DefaultReduceScatter."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        self.account.note("reduce_scatter", input_tensor)
        return collectives.reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


try:
    from torch.distributed.fsdp import FSDPModule, fully_shard
except ImportError:  # an older PyTorch, which Fsdp says in words
    FSDPModule = fully_shard = None  # type: ignore[assignment,misc]


@dataclass
class FsdpOptions:
    """What is gathered at a time, and for how long."""

    units: str = "layers"  # layers: one group of layers after the other | whole: all weights at once
    unit_mb: float = 1.0  # of layers: MB of weights that a group has at least; 0: each layer is one
    reshard_after_forward: bool = True  # false: gathered weights stay until backward is through with them


class Fsdp(TorchStrategy):
    """torch's fully_shard (FSDP2). A unit's weights are gathered before its forward pass, freed behind it, gathered
    again for its backward pass, and its gradients averaged into shards.

    The last unit stays gathered between its two passes, as fully_shard leaves the root by itself. Weights, messages
    and the optimizer's state are float32 whatever train.precision computes in.
    """

    Options = FsdpOptions
    net: Any

    def group_backend(self) -> str:
        return self.spec.config.strategy.backend or "gloo"

    def setup(self) -> None:
        self._check()
        self._account = Account()
        self._messages: dict[tuple[int, ...], list[Callable[[], None]]] = {}
        super().setup()

    def wrap(self, model: nn.Module) -> nn.Module:
        for tensor in self.model.parameters():
            tensor.data = tensor.data.contiguous()  # kernels that lie channels last cannot be sharded
        mesh = init_device_mesh(self.device.type, (self.spec.processes,))
        if isinstance(self.model, NetworkModule):  # a dense layer over positions gives a view
            nodes = self.model.network.nodes
            self.model.keep_outputs([node.name for node in nodes if node.op == "dense" and len(node.shape) > 1])
        self._freed = self._units()[:-1] if self.options.reshard_after_forward else []
        for unit in self._units():
            fully_shard(unit, mesh=mesh, reshard_after_forward=unit in self._freed)
            self._account.watch(unit[0])
        if not isinstance(model, FSDPModule):
            fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the root, which has no weights left
        train = self.spec.config.train
        self.optimizer = optimizer.optimizer(train, self.model.parameters(), self.spec.learning_rate)  # of the shards
        return model

    def step(self, batch: TorchBatch) -> LossPart | None:
        with self._account.update():
            return super().step(batch)

    def parts(self, batch: TorchBatch) -> list[TorchBatch]:
        """All ranks in as many, since each part is a round of gathering: few samples are computed at once."""
        few = batch.global_samples < self.accumulate * self.spec.processes
        if not few:
            return super().parts(batch)
        asked, self.accumulate = self.accumulate, 1
        try:
            return super().parts(batch)
        finally:
            self.accumulate = asked

    @contextmanager
    def unsent(self) -> Iterator[None]:
        """Whole gradients are kept meanwhile, as large as the weights."""
        self.net.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.net.set_requires_gradient_sync(True)

    def set_gradient_sync(self, on: bool) -> None:
        if not on:
            raise NotMeasured(
                f"{self.spec.config.strategy.name} keeps shards of the weights, which no process can use alone"
            )

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        raise NotMeasured(f"{self.spec.config.strategy.name} gathers weights within each part of an update")

    def message_sizes(self) -> list[int]:
        """Of each gathering the whole that comes together, of each averaging the whole that is shared out, padding
        included; noted as they were sent."""
        return [size for _, size in self._account.of_update]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """One after the other, as they are sent; gathering where the strategy sent nothing of those sizes."""
        assert self.group is not None, "setup comes first"
        key = tuple(sizes)
        if key not in self._messages:
            known = self._account.of_update
            kinds = [kind for kind, _ in known] if sizes == [size for _, size in known] else ["all_gather"] * len(sizes)
            whole = collectives.FLOAT_BYTES * self.spec.processes
            self._messages[key] = [
                collectives.collective(self.group, kind, max(size // whole, 1) * whole)
                for kind, size in zip(kinds, sizes, strict=True)
            ]
        for message in self._messages[key]:
            message()

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        assert self.group is not None, "setup comes first"
        return collectives.collective(self.group, name, size_bytes)

    def backend_used(self) -> str | None:
        """Two more updates under the profiler, which spoil the weights; None where one process has all shards."""
        return self.seen_carrier()

    def evaluate(self, source: Source) -> dict[str, float]:
        """With all weights gathered at once: ranks may have more or fewer batches."""
        assert self.group is not None, "setup comes first"
        # A compiled net has its hooks around the model, and there is nothing to compile for evaluation.
        net = self.model if self.net is not self.model else _Through(self.net)
        with self._peak.paused(self.device), self._gathered(), self.precision.autocast():
            return evaluation.metrics(net, self.spec.config.model, source, self.device, self.group.sum)

    def parameters(self) -> dict[str, Any]:
        """Whole ones, on every rank; all have to ask."""
        with self._gathered():
            return super().parameters()

    def close(self) -> None:
        self._messages = {}
        super().close()

    def _check(self) -> None:
        """Unsupported for what fully_shard cannot do."""
        options, train, name = self.options, self.spec.config.train, self.spec.config.strategy.name
        if fully_shard is None or not hasattr(FSDPModule, "set_custom_reduce_scatter"):
            raise Unsupported(f"{name} needs PyTorch 2.9 or newer, and here is {torch.__version__}")
        if train.compile and options.units != "whole":
            raise Unsupported(
                f"{name} gathers weights between layers, where no compiler gets through: "
                "with train.compile=true take strategy.options.units=whole"
            )

    def _units(self) -> list[list[nn.Module]]:
        """Of a user's own module one: whose weights are used outside of its layers nobody knows."""
        if self.options.units == "whole" or not isinstance(self.model, NetworkModule):
            return [[self.compiled]]
        return units(self.model, self.options.unit_mb * 1e6)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Within all weights are plain and whole, and forward passes exchange nothing."""
        parts = [module for module in self.net.modules() if isinstance(module, FSDPModule)]
        for part in parts:
            part.unshard()
        self.net.set_reshard_after_forward(False)
        try:
            yield
        finally:
            for unit in self._freed:
                unit[0].set_reshard_after_forward(True)
            for part in parts:
                part.reshard()


class _Through(nn.Module):
    """`forward` by way of the call, which FSDP's hooks are around."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)
