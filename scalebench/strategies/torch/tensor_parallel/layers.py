"""Splitting the layers of a plan over processes through DTensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
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


class ShardedDropout(nn.Module):
    """Dropout of an activation that is sharded over the devices.

    Every device draws for the full activation, as one device would, and uses the part for its shard, so that all random
    generators stay in the same state.
    """

    def __init__(self, rate: float, mesh: DeviceMesh) -> None:
        super().__init__()
        self.rate, self.mesh = rate, mesh

    def forward(self, x: DTensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        mask = functional.dropout(torch.ones(x.shape, dtype=x.dtype, device=x.device), self.rate)
        return x * distribute_tensor(mask, self.mesh, x.placements, src_data_rank=None)


def split_layers(model: NetworkModule, splits: Sequence[Split], mesh: DeviceMesh) -> None:
    """Replace the parameters of those layers by shards over the processes of a mesh, which have the same weights."""
    for split in splits:
        for name in split.between:
            if isinstance(module := getattr(model, name, None), nn.Dropout):  # an activation is none
                setattr(model, name, ShardedDropout(module.p, mesh))
    styles = {split.layer: _parallel_style(split) for split in splits}
    # Query, key and value read one tensor, whose gradient is summed up over the devices once.
    shared = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False)
    styles |= {split.shared: shared for split in splits if split.shared is not None}
    parallelize_module(model, mesh, styles, src_data_rank=None)


def _parallel_style(split: Split) -> ParallelStyle:
    if split.by == COLUMNS and split.paired:
        # Otherwise a DTensor, which knows its full width: shards may be unequal, but for those of an attention.
        return ColwiseParallel(use_local_output=split.shared is not None)
    if split.by == COLUMNS:
        return ColwiseParallel(output_layouts=Replicate())
    return RowwiseParallel() if split.paired else RowwiseParallel(input_layouts=Replicate())
