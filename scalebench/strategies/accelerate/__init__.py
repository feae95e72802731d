"""Hugging Face Accelerate in processes that scalebench started: Accelerator prepares model and optimizer."""

from __future__ import annotations

import os
from functools import partial

import accelerate
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from scalebench.strategies.base import check_group
from scalebench.strategies.torch.ddp import ARGUMENTS, Ddp
from scalebench.strategies.torch.optimizer import list_parameters

MIXED_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


class Accelerate(Ddp):
    """Accelerator wraps the model in DistributedDataParallel, and puts its own steps around forward pass, backward pass
    and optimizer.

    The group exists before the Accelerator, which joins it.
    """

    accelerator: Accelerator

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.device.type == "cuda":  # it would take the GPU with the number of the process
            os.environ["ACCELERATE_TORCH_DEVICE"] = str(self.device)
            os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
        reset_state()
        train = self.spec.config.train
        arguments = {name: getattr(self.options, name) for name in ARGUMENTS}  # by which Accelerate calls them, too
        self.accelerator = Accelerator(
            cpu=self.device.type == "cpu",
            mixed_precision=MIXED_PRECISIONS.get(train.precision, "no"),
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),  # a number loses against a variable
            kwargs_handlers=[DistributedDataParallelKwargs(**arguments)],
        )
        position = self.accelerator.process_index, self.accelerator.num_processes
        check_group(self.spec, self.place.rank, "Accelerate", position)
        self.precision.autocast, self.precision.scaler = self.accelerator.autocast, self.accelerator.scaler
        self.precision.leave_to(self.accelerator.backward, partial(step_optimizer, self.accelerator, train.clip_norm))
        net, self.optimizer = self.accelerator.prepare(model, self.optimizer)
        if isinstance(net, DistributedDataParallel):
            self.register_hook(net)
        return net

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "accelerate": accelerate.__version__}

    def close(self) -> None:
        self.__dict__.pop("accelerator", None)
        super().close()
        reset_state()


def step_optimizer(accelerator: Accelerator, clip_norm: float | None, optimizer: Optimizer) -> None:
    """Step an optimizer that was prepared, which scales the loss itself."""
    if clip_norm is not None:
        accelerator.clip_grad_norm_(list_parameters(optimizer), clip_norm)
    optimizer.step()


def reset_state() -> None:
    """Forget the state that Accelerate keeps for the process, so that another Accelerator can have other settings."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
