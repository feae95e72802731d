"""Training by pytorch_lightning.Trainer with a callback that averages gradients through Horovod.

hvd.DistributedOptimizer is not used: under Lightning's automatic optimization its hooks do not run as it assumes, and
replicas drift apart without an error. Lightning 2.0 has dropped its own Horovod strategy.
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import pytorch_lightning as pl
from pytorch_lightning.strategies import SingleDeviceStrategy

from scalebench.core.spec import RunSpec
from scalebench.strategies.horovod.torch import HorovodStrategy
from scalebench.strategies.torch.lightning.trainer import LauncherEnvironment, TrainerStrategy, choose_trainer_devices


class LightningHorovod(TrainerStrategy, HorovodStrategy):
    """For Lightning each process trains on a single device; gradients are averaged between the backward pass and the
    optimizer."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.sync_on = True

    def trainer_arguments(self) -> dict[str, Any]:
        # The number of the GPU in this process, which may see no other: that of its node would then be refused.
        devices = choose_trainer_devices(self.device.type, [self.device.index or 0])
        return {**devices, "strategy": SingleDeviceStrategy(device=self.device)}

    def plugins(self) -> list[Any]:
        return [*super().plugins(), LauncherEnvironment()]

    def callbacks(self) -> list[pl.Callback]:
        return [_AverageGradients(self)]

    def set_gradient_sync(self, on: bool) -> None:
        self.sync_on = on


class _AverageGradients(pl.Callback):
    """Averages all gradients of a step at once after the backward pass of its last part."""

    def __init__(self, strategy: LightningHorovod) -> None:
        self._strategy, self._compressor = strategy, strategy.compressor

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not (self._strategy.sync_on and pl_module.is_last_part):
            return
        parameters = [parameter for parameter in pl_module.parameters() if parameter.grad is not None]
        sent, contexts = zip(*(self._compressor.compress(parameter.grad) for parameter in parameters), strict=True)
        averages = hvd.grouped_allreduce_(list(sent), op=hvd.Average, name="gradients")
        for parameter, average, context in zip(parameters, averages, contexts, strict=True):
            parameter.grad = self._compressor.decompress(average, context)
