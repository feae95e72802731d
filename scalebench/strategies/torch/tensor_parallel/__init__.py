"""Tensor parallelism: dense layers split over the devices through DTensor, each process with a part of a layer."""

from __future__ import annotations

from scalebench.strategies.base import LossPart, Unsupported, never_measured
from scalebench.strategies.torch import user_errors
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group_strategy import GroupStrategy
from scalebench.strategies.torch.model import NetworkModule
from scalebench.strategies.torch.step_module import StepModule
from scalebench.strategies.torch.tensor_parallel.plan import plan_splits


class TensorParallel(GroupStrategy):
    """One process per device, all on the same samples. Activations are communicated within both passes; gradients are
    not synchronized, since all processes compute the same ones for the weights that are not split."""

    min_torch = (2, 7)  # from here on parallelize_module takes each shard from the process's own full weights

    def axes(self) -> dict[str, int]:
        return {"layer": self.spec.processes}

    def step(self, batch: TorchBatch) -> LossPart | None:
        """Train one step; ranks that share layers have the same loss, which the first of them returns."""
        loss_part = super().step(batch)
        return loss_part if self.place.rank % self.axes()["layer"] == 0 else None

    set_gradient_sync = never_measured("has no output of a split layer without communication")
    partial_step = never_measured("communicates within its passes: no part of a step is without")

    def _build_model(self) -> StepModule:
        from scalebench.strategies.torch.tensor_parallel import layers, user_layers  # DTensor's import takes seconds

        model, devices, setting = super()._build_model(), self.axes()["layer"], self.options.layers
        if isinstance(module := model.module, NetworkModule):
            what, splits = self.spec.config.model.name, plan_splits(module.network, devices, setting == "all")
            count = len(splits)
            if splits:
                layers.split_layers(module, splits, self.mesh["layer"])
        else:
            what = user_errors.function_label(self.spec.config.model)
            with user_errors.attribute_errors_to_wrapping(self.spec.config):
                if model.user_optimizer is not None:
                    model.user_optimizer.check_divisible()
                count = user_layers.split_user_layers(module, self.mesh["layer"], setting == "all")
        if not count:
            raise Unsupported(
                f"{what} has no dense layer that {devices} devices could share under strategy.options.layers="
                f"{setting}, and no others are split"
            )
        return model
