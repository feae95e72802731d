"""Tensor parallelism: dense layers split over the devices through DTensor, each process with a part of a layer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import LossPart, Unsupported, never_measured
from scalebench.strategies.torch.base import GroupStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.model import NetworkModule
from scalebench.strategies.torch.profiling import SentTensor
from scalebench.strategies.torch.step_module import StepModule
from scalebench.strategies.torch.tensor_parallel.plan import Split, plan_splits

MIN_TORCH_VERSION = (2, 7)  # from here on parallelize_module takes each shard from the process's own full weights


class TensorParallel(GroupStrategy):
    """One process per device, all on the same samples. Activations are communicated within both passes; gradients are
    not synchronized, since all processes compute the same ones for the weights that are not split."""

    _layer_mesh: DeviceMesh

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.splits: list[Split] = []

    @property
    def layer_devices(self) -> int:
        """The number of processes that share each split layer, and read the same samples."""
        return self.spec.processes

    def build_layer_mesh(self) -> DeviceMesh:
        """Return the processes that share each split layer."""
        return DeviceMesh.from_group(dist.group.WORLD, self.device.type)  # the group itself, whatever its backend

    def shard(self) -> tuple[int, int]:
        return self.place.rank // self.layer_devices, self.spec.processes // self.layer_devices

    def setup(self) -> None:
        name = self.spec.config.strategy.name
        if tuple(map(int, torch.__version__.split(".")[:2])) < MIN_TORCH_VERSION:
            raise Unsupported(f"{name} needs PyTorch 2.7 or newer, and here is {torch.__version__}")
        super().setup()

    def step(self, batch: TorchBatch) -> LossPart | None:
        """Train one step; ranks that share layers have the same loss, which the first of them returns."""
        loss_part = super().step(batch)
        return loss_part if self.place.rank % self.layer_devices == 0 else None

    set_gradient_sync = never_measured("has no output of a split layer without communication")
    partial_step = never_measured("communicates within its passes: no part of a step is without")

    def group_of(self, sent: SentTensor) -> dist.ProcessGroup:
        group: dist.ProcessGroup = self._layer_mesh.get_group()
        return group

    def _build_model(self) -> StepModule:
        from scalebench.strategies.torch.tensor_parallel import layers  # imports DTensor, which takes seconds

        model = super()._build_model()
        module = model.module
        assert isinstance(module, NetworkModule), "setup refuses others"
        self.splits = plan_splits(module.network, self.layer_devices, self.options.layers == "all")
        if not self.splits:
            raise Unsupported(
                f"{self.spec.config.model.name} has no dense layer that {self.layer_devices} devices could share under "
                f"strategy.options.layers={self.options.layers}, and no others are split"
            )
        self._layer_mesh = self.build_layer_mesh()
        layers.split_layers(module, self.splits, self._layer_mesh)
        return model
