"""Lightning's ModelParallelStrategy, whose module is sharded by fully_shard (FSDP2)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor

from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.lightning.trainer import GroupTrainerStrategy
from scalebench.strategies.torch.sharded.fsdp import Fsdp


class LightningFsdp(GroupTrainerStrategy, Fsdp):
    """Lightning's ModelParallelStrategy, with all processes along its data-parallel axis.

    Its FSDPStrategy wraps the older FullyShardedDataParallel, which needs GPUs.
    """

    def lightning_strategy(self) -> ModelParallelStrategy:
        return _AccumulatingFsdp(self, **self.group_arguments())

    def split_batch(self, batch: TorchBatch) -> list[TorchBatch]:
        """Split a batch; one that stays in one part comes after empty ones, since Lightning counts parts."""
        parts = super().split_batch(batch)
        empty = batch.map(lambda tensor: tensor[:0])._replace(share=0.0, last=False)
        return [empty] * (self.accumulate - len(parts)) + parts

    def empty_loss(self) -> Tensor:
        """Return a loss that depends on no weight, since none of them is gathered for an empty part."""
        return torch.zeros((), device=self.device, requires_grad=True)


class _AccumulatingFsdp(ModelParallelStrategy):
    """Lightning's strategy, which synchronizes in the last part of a step only."""

    def __init__(self, adapter: LightningFsdp, **arguments: Any) -> None:
        super().__init__(data_parallel_size=adapter.spec.processes, tensor_parallel_size=1, **arguments)
        self._adapter = adapter

    def model_to_device(self) -> None:
        """Leave the weights where sharding put them: autograd refuses to replace them after a recorded pass."""

    def block_backward_sync(self) -> AbstractContextManager[Any]:
        return self._adapter.without_sync()
