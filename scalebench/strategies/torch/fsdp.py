"""Fully sharded data parallelism: each process keeps its shards of weights, gradients and optimizer state.

Layers are sharded, gathered and freed in groups, and FSDP's collectives are replaced by equal ones that log their
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from scalebench.core.result import SYNC_PARTS
from scalebench.strategies import refusals
from scalebench.strategies.base import (
    GRADIENTS_IN,
    INPUT,
    OUTPUT,
    WEIGHTS_OUT,
    LossPart,
    NotMeasured,
    Unsupported,
    create_on_all_ranks,
)
from scalebench.strategies.torch import evaluation, optimizer
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group import FLOAT_BYTES, all_gather, build_torch_collective, reduce_scatter
from scalebench.strategies.torch.model import NetworkModule
from scalebench.workloads.source import Source


def group_layers(model: NetworkModule, min_bytes: float) -> list[list[nn.Module]]:
    """Group the layers that have weights, in forward order, until each group has at least `min_bytes` of weights.

    The rest at the end joins the last group. Where layers share a weight there is one group of all.
    """
    layers = [getattr(model, step.module) for step in model.plan]
    layers = [layer for layer in layers if next(layer.parameters(), None) is not None]
    if sum(len(list(layer.parameters())) for layer in layers) > len(list(model.parameters())):
        return [layers]
    groups: list[list[nn.Module]] = []
    open_bytes: float | None = None  # bytes of the last group; None: it is full
    for layer in layers:
        if open_bytes is None:
            groups.append([])
            open_bytes = 0.0
        groups[-1].append(layer)
        open_bytes += sum(parameter.numel() * parameter.element_size() for parameter in layer.parameters())
        if open_bytes >= min_bytes:
            open_bytes = None
    if open_bytes is not None and len(groups) > 1:
        rest = groups.pop()
        groups[-1] += rest
    return groups


LoggedMessage = tuple[str, int]  # kind of the collective, bytes of its full tensor
KIND_OF_PART = {WEIGHTS_OUT: "all_gather", GRADIENTS_IN: "reduce_scatter"}


class MessageLog:
    """The messages of one step in the order of sending, and which kinds are left out of steps."""

    def __init__(self) -> None:
        self.left_out: set[str] = set()  # kinds that are logged without being sent
        self.all_gathers: list[_LoggedAllGather] = []
        self.last_step: list[LoggedMessage] = []
        self._current: list[LoggedMessage] | None = None  # None: no step is running

    @contextmanager
    def record_step(self) -> Iterator[None]:
        """Record the messages sent within this context, which is one step; others are not recorded."""
        self._current = []
        try:
            yield
        finally:
            self.last_step, self._current = self._current, None

    def add(self, kind: str, full: Tensor) -> None:
        if self._current is not None:
            self._current.append((kind, full.numel() * full.element_size()))

    def attach(self, unit: Any) -> None:
        """Log the messages of a module to which fully_shard was applied."""
        self.all_gathers.append(_LoggedAllGather(self))
        unit.set_custom_all_gather(self.all_gathers[-1])
        unit.set_custom_reduce_scatter(_LoggedReduceScatter(self))


class _LoggedCollective:
    def __init__(self, log: MessageLog) -> None:
        self.log = log

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _LoggedAllGather(_LoggedCollective):
    """torch's DefaultAllGather with a log, and a frozen copy of the weights that takes its place when it is left out.

    FSDP copies the weights from its result into the parameters in any case. So the frozen copy is the result itself.
    """

    _frozen: Tensor | None = None
    _is_filled = False
    _allocate: Callable[[], Tensor] | None = None  # as for the last all-gather

    @property
    def _is_left_out(self) -> bool:
        return "all_gather" in self.log.left_out

    def allocate_frozen(self) -> None:
        """Allocate the frozen copy, which the next all-gather fills."""
        if self._frozen is None and self._allocate is not None:
            self._frozen = self._allocate()

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self._frozen is not None and self._is_left_out:
            return self._frozen
        self._allocate = partial(super().allocate, size, dtype=dtype, device=device)
        return self._allocate()

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self.log.add("all_gather", output_tensor)
        if self._frozen is not None and self._is_left_out:
            if self._is_filled:
                return None
            self._is_filled = True
        return all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class _LoggedReduceScatter(_LoggedCollective):
    """torch's DefaultReduceScatter with a log."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        self.log.add("reduce_scatter", input_tensor)
        if "reduce_scatter" in self.log.left_out:
            output_tensor.copy_(input_tensor.view(-1, output_tensor.numel())[dist.get_rank(group)])
            return None
        return reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


try:
    from torch.distributed.fsdp import FSDPModule, fully_shard
except ImportError:  # an older PyTorch, for which Fsdp.setup raises Unsupported
    FSDPModule = fully_shard = None  # type: ignore[assignment,misc]


@dataclass
class FsdpOptions:
    """Options for the units that are gathered at a time, and for how long they stay gathered."""

    units: str = "layers"  # layers: one group of layers after the other | whole: all weights at once
    unit_mb: float = 1.0  # with layers: each group has at least this many MB of weights; 0: each layer is a group
    reshard_after_forward: bool = True  # false: gathered weights stay until the backward pass has used them


class Fsdp(TorchStrategy):
    """torch's fully_shard (FSDP2). A unit's weights are gathered before its forward pass, freed after it, gathered
    again for its backward pass, and its gradients are averaged into shards.

    The last unit stays gathered between its two passes, as fully_shard leaves the root by default. Weights, messages
    and optimizer state are float32 in every train.precision.
    """

    Options = FsdpOptions
    net: Any

    def group_backend(self) -> str:
        return self.requested_backend()

    def setup(self) -> None:
        self._check_supported()
        self._log = MessageLog()
        self._collectives: dict[tuple[int, ...], list[Callable[[], None]]] = {}
        super().setup()

    def wrap(self, model: nn.Module) -> nn.Module:
        for tensor in self.model.parameters():
            tensor.data = tensor.data.contiguous()  # channels-last kernels cannot be sharded
        mesh = init_device_mesh(self.device.type, (self.spec.processes,))
        if isinstance(self.model, NetworkModule):  # the output of a dense layer over positions is a view
            nodes = self.model.network.nodes
            self.model.protect_outputs([node.name for node in nodes if node.op == "dense" and len(node.shape) > 1])
        self._resharded_units = self._units()[:-1] if self.options.reshard_after_forward else []
        for unit in self._units():
            fully_shard(unit, mesh=mesh, reshard_after_forward=unit in self._resharded_units)
            self._log.attach(unit[0])
        if not isinstance(model, FSDPModule):
            fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the root, which has no weights left
        train = self.spec.config.train
        self.optimizer = optimizer.build_optimizer(
            train, self.model.parameters(), self.spec.learning_rate
        )  # of the shards
        return model

    def step(self, batch: TorchBatch) -> LossPart | None:
        with self._log.record_step():
            return super().step(batch)

    def split_batch(self, batch: TorchBatch) -> list[TorchBatch]:
        """Split a batch into the same number of parts on all ranks, since each part gathers the weights.

        A batch with too few samples for all parts of all ranks is not split.
        """
        if batch.global_samples >= self.accumulate * self.spec.processes:
            return super().split_batch(batch)
        accumulate, self.accumulate = self.accumulate, 1
        try:
            return super().split_batch(batch)
        finally:
            self.accumulate = accumulate

    @contextmanager
    def without_sync(self) -> Iterator[None]:
        """Keep unsharded gradients, as large as the weights, until the last part is synchronized."""
        self.net.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.net.set_requires_gradient_sync(True)

    def set_gradient_sync(self, on: bool) -> None:
        self.leave_out_sync_parts(() if on else SYNC_PARTS)

    def inseparable_sync_parts(self) -> dict[str, str]:
        return dict.fromkeys((INPUT, OUTPUT), "each process reads its own samples and computes their loss")

    def leave_out_sync_parts(self, parts: tuple[str, ...]) -> None:
        """Leave out all-gathers, whose results are frozen copies of the weights, or reduce-scatters, in whose place
        each process keeps its own gradients of its shard."""
        assert self.group is not None, "setup comes first"
        if parts:
            create_on_all_ranks(
                lambda: [gather.allocate_frozen() for gather in self._log.all_gathers],
                self.group.sum,
                (RuntimeError,),
                "a full copy of the weights does not fit into the memory that training left",
            )
        self._log.left_out = {KIND_OF_PART[part] for part in parts if part in KIND_OF_PART}

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        raise NotMeasured(f"{self.spec.config.strategy.name} gathers weights within each part of a step")

    def message_sizes(self) -> list[int]:
        """Return the logged sizes: of each all-gather the full output, of each reduce-scatter the full input,
        including padding."""
        return [size for _, size in self._log.last_step]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """Send the messages one after the other, as in a step; as all-gathers if the sizes are not those of a step."""
        assert self.group is not None, "setup comes first"
        key = tuple(sizes)
        if key not in self._collectives:
            sent = self._log.last_step
            kinds = [kind for kind, _ in sent] if sizes == [size for _, size in sent] else ["all_gather"] * len(sizes)
            unit_bytes = FLOAT_BYTES * self.spec.processes
            self._collectives[key] = [
                build_torch_collective(self.group, kind, max(size // unit_bytes, 1) * unit_bytes)
                for kind, size in zip(kinds, sizes, strict=True)
            ]
        for collective in self._collectives[key]:
            collective()

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        assert self.group is not None, "setup comes first"
        return build_torch_collective(self.group, name, size_bytes)

    def backend_used(self) -> str | None:
        """Observe the backend in two more steps, which spoil the weights; None where one process has all shards."""
        return self.observe_backend()

    def evaluate(self, source: Source) -> dict[str, float]:
        """Evaluate with all weights gathered at once, since ranks may have different numbers of batches."""
        assert self.group is not None, "setup comes first"
        # A compiled net has its hooks around the model, and evaluation is not compiled.
        net = self.model if self.net is not self.model else _CallForward(self.net)
        with self._peak.paused(self.device), self._gathered_weights(), self.precision.autocast():
            return evaluation.compute_metrics(net, self.spec.config.model, source, self.device, self.group.sum)

    def parameters(self) -> dict[str, Any]:
        """Return the unsharded weights on every rank; all ranks have to call this."""
        with self._gathered_weights():
            return super().parameters()

    def close(self) -> None:
        self._collectives = {}
        super().close()

    def _check_supported(self) -> None:
        """Raise Unsupported for settings that fully_shard cannot handle."""
        name = self.spec.config.strategy.name
        if fully_shard is None or not hasattr(FSDPModule, "set_custom_reduce_scatter"):
            raise Unsupported(f"{name} needs PyTorch 2.9 or newer, and here is {torch.__version__}")
        refusals.refuse(refusals.fsdp_rule(self.spec, self.options))

    def _units(self) -> list[list[nn.Module]]:
        """Return the units to shard; a user's module is one unit, since it may use weights outside of its layers."""
        if self.options.units == "whole" or not isinstance(self.model, NetworkModule):
            return [[self.compiled]]
        return group_layers(self.model, self.options.unit_mb * 1e6)

    @contextmanager
    def _gathered_weights(self) -> Iterator[None]:
        """Gather all weights into plain tensors, so that forward passes within this context need no communication."""
        modules = [module for module in self.net.modules() if isinstance(module, FSDPModule)]
        for module in modules:
            module.unshard()
        self.net.set_reshard_after_forward(False)
        try:
            yield
        finally:
            for unit in self._resharded_units:
                unit[0].set_reshard_after_forward(True)
            for module in modules:
                module.reshard()


class _CallForward(nn.Module):
    """Runs `forward` as a call of the module, which runs FSDP's hooks."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)
