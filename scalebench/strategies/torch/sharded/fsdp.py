"""Fully sharded data parallelism: each process keeps its shards of weights, gradients and optimizer state.

Layers are sharded, gathered and freed in groups. FSDP's collectives are replaced by equal ones that can be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import create_on_all_ranks, never_measured
from scalebench.strategies.torch.group import all_gather, reduce_scatter
from scalebench.strategies.torch.group_strategy import GroupStrategy
from scalebench.strategies.torch.model import BatchNorm, Lstm, NetworkModule
from scalebench.strategies.torch.precision import HALF_DTYPES
from scalebench.strategies.torch.tensor_parallel import TensorParallel
from scalebench.strategies.torch.user_errors import UserProblem
from scalebench.strategies.torch.user_module import find_lightning_class
from scalebench.workloads.source import Source

# Their kernels take weights of float32 alone, whatever autocast makes of their inputs.
FLOAT32_LAYERS = (nn.modules.batchnorm._BatchNorm, nn.RNNBase, BatchNorm, Lstm)


def find_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a user's module, in the order of its children, none within another one.

    These are the modules of the classes that one of Hugging Face's names in `_no_split_modules`. Else they are the
    members of each ModuleList or Sequential that has two or more of one class, apart from layers such as Linear, whose
    weights a module may use without calling them. There are none where a weight is also used outside of its block.
    """
    names = {name for each in module.modules() for name in getattr(each, "_no_split_modules", None) or ()}

    def walk(parent: nn.Module) -> Iterator[nn.Module]:
        kinds = {type(child) for child in parent.children() if next(child.parameters(), None) is not None}
        is_list = isinstance(parent, (nn.ModuleList, nn.Sequential)) and len(kinds) == 1 and len(parent) > 1
        for child in parent.children():
            is_block = type(child).__name__ in names if names else is_list and any(child.children())
            yield from [child] if is_block else walk(child)

    blocks = list(walk(module))
    owner = {layer: block for block in blocks for layer in block.modules()}
    owners: dict[nn.Parameter, set[nn.Module | None]] = {}
    for layer in module.modules():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(parameter, set()).add(owner.get(layer))
    return blocks if all(len(several) == 1 for several in owners.values()) else []


def group_layers(layers: list[nn.Module], min_bytes: float) -> list[list[nn.Module]]:
    """Group layers, in forward order, until each group has at least `min_bytes` of weights.

    The rest at the end joins the last group. Where layers share a weight there is one group of all.
    """
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    if len(parameters) > len(set(parameters)):
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


def find_unsharded(model: nn.Module) -> set[nn.Parameter]:
    """Return the frozen parameters that fully_shard cannot shard: numbers, and those of other types than floats.

    Raises UserProblem for a number that is trained.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dim() == 0:
            raise UserProblem(
                f"has the scalar parameter '{name.removeprefix('module.')}', which fully_shard cannot shard: give it "
                "the shape (1,), or take a strategy that leaves weights whole, such as ddp"
            )
    return {each for each in model.parameters() if each.dim() == 0 or not each.is_floating_point()}


class _Collective:
    """One of FSDP's, which may be left out."""

    def __init__(self, strategy: Fsdp) -> None:
        self.strategy = strategy

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Collective):
    """torch's DefaultAllGather, and a frozen copy of the weights that takes its place when it is left out.

    FSDP copies the weights from its result into the parameters in any case. So the frozen copy is the result itself.
    """

    _frozen: Tensor | None = None
    _is_filled = False
    _allocate: Callable[[], Tensor] | None = None  # as for the last all-gather

    def allocate_frozen(self) -> Tensor | None:
        """Return the frozen copy, which the next all-gather fills; None before the first step."""
        if self._frozen is None and self._allocate is not None:
            self._frozen = self._allocate()
        return self._frozen

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self._frozen is not None and not self.strategy.syncs_gradients:
            return self._frozen
        self._allocate = partial(super().allocate, size, dtype=dtype, device=device)
        return self._allocate()

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if self._frozen is not None and not self.strategy.syncs_gradients:
            if self._is_filled:
                return None
            self._is_filled = True
        return all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class _ReduceScatter(_Collective):
    """torch's DefaultReduceScatter, in whose place each process keeps its own gradients of its shard."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        if not self.strategy.syncs_gradients:
            output_tensor.copy_(input_tensor.view(-1, output_tensor.numel())[dist.get_rank(group)])
            return None
        return reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


try:
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
except ImportError:  # an older PyTorch, which setup refuses
    FSDPModule = MixedPrecisionPolicy = fully_shard = None  # type: ignore[assignment,misc]


class Fsdp(GroupStrategy):
    """torch's fully_shard (FSDP2). A unit's weights are gathered before its forward pass, freed after it, gathered
    again for its backward pass, and its gradients are averaged into shards.

    The units of a user's module are its repeated blocks, and the last one is what lies outside of them. The last unit
    stays gathered between its two passes, as fully_shard leaves the root by default. In bfloat16 and float16 weights
    are gathered in that type, while shards, reduced gradients and optimizer state stay float32.

    A unit is moved to the device when it is sharded, so that no device ever has to hold the complete model.
    """

    net: Any
    min_torch = (2, 9)  # whose collectives can be replaced
    builds_on_host = is_sharded = communicates_in_parts = True  # each part gathers the weights
    syncs_gradients = True

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._all_gathers: list[_AllGather] = []

    def wrap(self, model: nn.Module) -> nn.Module:
        self.check_optimizer_divisible()
        user, ignored = self.model.user_optimizer, find_unsharded(self.model)
        for tensor in ignored:
            tensor.data = tensor.data.to(self.device)
        mesh = self.mesh[tuple(axis for axis in self.axes() if axis != "layer")]
        module = self.model.module
        *first, last = self._units()
        for unit in [*first, last]:
            for tensor in (each for layer in unit for each in layer.parameters()):
                tensor.data = tensor.data.contiguous()  # channels-last kernels cannot be sharded
            fully_shard(
                unit, mesh=mesh, ignored_params=ignored,
                reshard_after_forward=self.options.reshard_after_forward and unit is not last,
                mp_policy=self._choose_precision(unit),
            )  # fmt: skip
            self._all_gathers.append(gather := _AllGather(self))
            unit[0].set_custom_all_gather(gather)
            unit[0].set_custom_reduce_scatter(_ReduceScatter(self))
            if user is not None:  # its optimizer lets go of the complete weights
                user.follow_parameters(module)
        if not isinstance(model, FSDPModule):
            fully_shard(
                model, mesh=mesh, reshard_after_forward=False, ignored_params=ignored
            )  # the root, which has no weights left
        if find_lightning_class(module) is not None:
            module.to(self.device)  # already there; a LightningModule learns its device from the call
        self.optimizer = self.build_optimizer()  # of the shards
        return model

    @contextmanager
    def without_sync(self) -> Iterator[None]:
        """Keep unsharded gradients, as large as the weights, until the last part is synchronized."""
        self.net.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.net.set_requires_gradient_sync(True)

    def set_gradient_sync(self, on: bool) -> None:
        """Leave out all-gathers, whose results are frozen copies of the weights, and reduce-scatters, in whose place
        each process keeps its own gradients of its shard."""
        if not on and "copy" in self.axes():
            raise self.not_measured(
                "averages gradients between copies of the weights within PyTorch, which has no step without that"
            )
        if not on:
            create_on_all_ranks(
                lambda: [gather.allocate_frozen() for gather in self._all_gathers],
                self.group.sum,
                (RuntimeError,),
                "a full copy of the weights does not fit into the memory that training left",
            )
        self.syncs_gradients = on

    partial_step = never_measured("gathers weights within each part of a step")

    def evaluate(self, source: Source) -> dict[str, float]:
        """Evaluate with one unit gathered at a time, as in training."""
        metrics = super().evaluate(source)
        if hasattr(self.net, "reset_iter_state"):  # or the next backward pass would prefetch as if it followed this one
            self.net.reset_iter_state()
        for module in self.net.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # the last unit, which stays gathered until a backward pass
        return metrics

    def _choose_precision(self, unit: list[nn.Module]) -> MixedPrecisionPolicy:
        """Return the types of a unit's gathered weights and of its reduced gradients. Autocast, as under every other
        strategy, has the inputs of operations in the type of the weights."""
        half = HALF_DTYPES.get(self.spec.config.train.precision)
        if half is None or any(isinstance(layer, FLOAT32_LAYERS) for module in unit for layer in module.modules()):
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        return MixedPrecisionPolicy(half, torch.float32, cast_forward_inputs=False)

    def _units(self) -> list[list[nn.Module]]:
        """Return the units to shard, in forward order; of a user's module without repeated blocks it is one."""
        if self.options.units == "whole":
            return [[self.compiled]]
        min_bytes = self.options.unit_mb * 1e6
        if isinstance(self.model.module, NetworkModule):
            layers = [each for each in self.model.module.children() if next(each.parameters(), None) is not None]
            return group_layers(layers, min_bytes)
        blocks = find_blocks(self.model.module)
        within = {parameter for block in blocks for parameter in block.parameters()}
        rest = [] if within.issuperset(self.model.parameters()) else [[self.compiled]]
        return group_layers(blocks, min_bytes) + rest

    def model_remarks(self) -> dict[str, str]:
        remarks = super().model_remarks()
        if self.options.units == "whole" or isinstance(self.model.module, NetworkModule) or len(self._all_gathers) > 1:
            return remarks
        return remarks | {"one_unit": f"{self.model.module.__class__.__name__} has no repeated blocks: it is one unit"}


class Hsdp(Fsdp):
    """fully_shard over a mesh of two axes: the processes along one share a copy of weights, gradients and optimizer
    state as under Fsdp; those along the other have the same shard, and average its gradients."""

    def axes(self) -> dict[str, int]:
        processes = self.spec.processes
        shards = self.options.shards or default_shards(processes, self.spec.nodes)
        # A single copy needs no averages: they would be messages to oneself.
        return {"shard": shards} if shards == processes else {"copy": processes // shards, "shard": shards}


class FsdpTensorParallel(TensorParallel, Fsdp):
    """fully_shard of split layers: neighbours on a node have parts of each layer, as under TensorParallel, and train on
    the same samples; processes with the same parts shard them among each other, as under Fsdp."""

    min_torch = Fsdp.min_torch

    def axes(self) -> dict[str, int]:
        layer = 1 if self.spec.processes == 1 else int(self.options.tensor_parallel)  # one device is its own baseline
        return {"shard": self.spec.processes // layer, "layer": layer}


def default_shards(processes: int, nodes: int) -> int:
    """Return how many processes share one copy: those of a node, whose links are fast, and on one node half of them.

    All processes share one where that does not divide, or would leave each process a copy of its own.
    """
    shards = processes // (nodes if nodes > 1 else 2)
    return shards if shards > 1 and processes % shards == 0 else processes
