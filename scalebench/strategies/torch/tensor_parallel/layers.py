"""The layers of a plan of tensor_plan, split over processes through DTensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

from scalebench.strategies.torch.model import NetworkModule
from scalebench.strategies.torch.tensor_parallel.plan import COLUMNS, Split


class PartOfDropout(nn.Module):
    """Dropout of an activation of which each device has a part. All draw for all of it, as one device would, so that
    their generators stay alike, and keep what is of their part."""

    def __init__(self, rate: float, mesh: DeviceMesh) -> None:
        super().__init__()
        self.rate, self.mesh = rate, mesh

    def forward(self, x: DTensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        kept = functional.dropout(torch.ones(x.shape, dtype=x.dtype, device=x.device), self.rate)
        return x * distribute_tensor(kept, self.mesh, x.placements, src_data_rank=None)


class Inputs:
    """Types of what comes into split layers, by their names; noted once."""

    def __init__(self, model: NetworkModule, splits: Sequence[Split]) -> None:
        self.of: dict[str, torch.dtype] = {}
        self._hooks = {
            one.layer: getattr(model, one.layer).register_forward_pre_hook(partial(self._note, one.layer))
            for one in splits
        }

    def _note(self, layer: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.of[layer] = inputs[0].dtype
        self._hooks.pop(layer).remove()


def split(model: NetworkModule, splits: Sequence[Split], device: str) -> None:
    """The parameters of those layers become parts of themselves, over all processes of the group, each of which has a
    device of that type. All have the same weights so far."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for one in splits:
        for name in one.between:
            if isinstance(module := getattr(model, name), nn.Dropout):
                setattr(model, name, PartOfDropout(module.p, mesh))
    # What leaves a split layer as a plain tensor is a view that autograd lets nobody overwrite.
    plain = {one.layer for one in splits if _output_is_plain(one)}
    model.keep_outputs(plain)
    styles = {one.layer: _style(one) for one in splits}
    # Of one tensor for query, key and value the gradient is summed up over the devices once.
    whole = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False)
    styles |= {one.shared: whole for one in splits if one.shared is not None}
    parallelize_module(model, mesh, styles, src_data_rank=None)


def _output_is_plain(one: Split) -> bool:
    """Between the layers of a pair the activation stays a DTensor, which knows how wide the whole of it is: parts need
    not be equal. Those of an attention are, and it works on plain tensors."""
    return one.by != COLUMNS or not one.paired or one.shared is not None


def _style(one: Split) -> ParallelStyle:
    if one.by == COLUMNS and not one.paired:
        return ColwiseParallel(output_layouts=Replicate())
    if one.by == COLUMNS:
        return ColwiseParallel(use_local_output=_output_is_plain(one))
    return RowwiseParallel() if one.paired else RowwiseParallel(input_layouts=Replicate())
