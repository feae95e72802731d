"""Tensor parallelism: dense layers split over the devices through DTensor, each process with a part of a layer."""

from __future__ import annotations

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import LossPart, Unsupported, never_measured
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group_strategy import GroupStrategy
from scalebench.strategies.torch.model import NetworkModule
from scalebench.strategies.torch.step_module import StepModule
from scalebench.strategies.torch.tensor_parallel.plan import Split, plan_splits


class TensorParallel(GroupStrategy):
    """One process per device, all on the same samples. Activations are communicated within both passes; gradients are
    not synchronized, since all processes compute the same ones for the weights that are not split."""

    min_torch = (2, 7)  # from here on parallelize_module takes each shard from the process's own full weights

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.splits: list[Split] = []

    def axes(self) -> dict[str, int]:
        return {"layer": self.spec.processes}

    def step(self, batch: TorchBatch) -> LossPart | None:
        """Train one step; ranks that share layers have the same loss, which the first of them returns."""
        loss_part = super().step(batch)
        return loss_part if self.place.rank % self.axes()["layer"] == 0 else None

    set_gradient_sync = never_measured("has no output of a split layer without communication")
    partial_step = never_measured("communicates within its passes: no part of a step is without")

    def _build_model(self) -> StepModule:
        from scalebench.strategies.torch.tensor_parallel import layers  # imports DTensor, which takes seconds

        model = super()._build_model()
        module = model.module
        assert isinstance(module, NetworkModule), "setup refuses others"
        devices = self.axes()["layer"]
        self.splits = plan_splits(module.network, devices, self.options.layers == "all")
        if not self.splits:
            raise Unsupported(
                f"{self.spec.config.model.name} has no dense layer that {devices} devices could share under "
                f"strategy.options.layers={self.options.layers}, and no others are split"
            )
        layers.split_layers(module, self.splits, self.mesh["layer"])
        return model
