"""DeepSpeed's ZeRO, stages 1 to 3, in processes that scalebench started: its engine owns model, gradients and steps."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from scalebench.strategies.base import LossPart, check_group, never_measured
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group_strategy import GroupStrategy


class DeepSpeedZero(GroupStrategy):
    """deepspeed.initialize with an optimizer of PyTorch, which then steps each process's part of the weights. Weights
    and gradients are float32.

    The group exists before DeepSpeed, which uses it.
    """

    stage: ClassVar[int]
    communicates_in_parts = True
    net: Any

    def wrap(self, model: nn.Module) -> nn.Module:
        self.check_optimizer_divisible()
        deepspeed = import_deepspeed(self.device)
        self._parameter_count = super().num_params()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.contiguous()  # as it will be as a slice of the engine's flat buffer
        deepspeed.init_distributed(dist_backend=self.group.backend, auto_mpi_discovery=False, verbose=False)
        position = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
        check_group(self.spec, self.place.rank, "DeepSpeed", position)
        if self.builds_on_host:
            for buffer in model.buffers():
                buffer.data = buffer.data.to(self.device)
            # Moves each parameter to the device, and leaves this process's part of it there.
            deepspeed.zero.Init(module=model, config_dict_or_path=self.engine_config())
            self.optimizer = self.build_optimizer()
        engine, self.optimizer, *_ = deepspeed.initialize(
            args=choose_engine_arguments(self.device),
            model=model,
            model_parameters=[each for each in model.parameters() if each.requires_grad],
            optimizer=self.optimizer,
            config=self.engine_config(),
        )
        self.precision.leave_to(engine.backward, lambda optimizer: engine.step())
        return engine

    def engine_config(self) -> dict[str, Any]:
        """Return DeepSpeed's configuration of this run."""
        bucket = max(min(self.options.bucket_elements, self._parameter_count), 1)  # a larger one would never be full
        zero = {
            "stage": self.stage,
            "overlap_comm": self.options.overlap_comm,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket + bucket % 2,  # DeepSpeed requires an even number
        }
        if self.stage == 3:
            zero["stage3_param_persistence_threshold"] = self.options.persistent_elements
        return {
            "train_micro_batch_size_per_gpu": self.spec.batch_per_device,  # without effect on what a step computes
            "zero_optimization": zero,
            "gradient_clipping": self.spec.config.train.clip_norm or 0.0,  # by default it clips their norm to 1
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "torch_autocast": {"enabled": self.spec.config.train.precision == "bfloat16", "dtype": "bfloat16"},
            "steps_per_print": 1 << 60,
        }

    def step(self, batch: TorchBatch) -> LossPart | None:
        part = self.accumulate_gradients(batch)
        self.precision.step_optimizer(self.optimizer)  # which also frees the gradients
        self.advance_schedulers()
        return part

    @contextmanager
    def without_sync(self) -> Iterator[None]:
        self.net.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self.net.set_gradient_accumulation_boundary(True)

    set_gradient_sync = never_measured("divides the optimizer among the processes, each of which needs the others")
    partial_step = never_measured("synchronizes in DeepSpeed's engine, within the parts of a step")

    def num_params(self) -> int:
        return self._parameter_count if hasattr(self, "_parameter_count") else super().num_params()

    def parameters(self) -> dict[str, Any]:
        """Return the complete weights on every rank; all ranks have to call this."""
        if self.stage < 3 or "net" not in self.__dict__:
            return super().parameters()
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(self.model.parameters())):
            return super().parameters()

    def state_bytes(self) -> list[int | None]:
        """Return the bytes of weights, this process's parts of them that are stepped, gradients and optimizer state.

        Of stage 3 these are the parts, and the tensors that stay complete because they are small.
        """
        complete = list(self.model.parameters())  # empty where only a part is there
        weights = [*complete, *(each.ds_tensor for each in complete if hasattr(each, "ds_tensor"))]
        stepped = [each for group in self.optimizer.param_groups for each in group["params"]]
        states = [value for state in self.optimizer_state().values() for value in state.values()]
        gradients = [each.grad for each in (*complete, *stepped)]
        tensors = [
            each
            for each in (*weights, *stepped, *states, *gradients, *self.model.buffers())
            if isinstance(each, Tensor) and each.numel() and each.device == self.device
        ]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        return [sum(storages.values())]

    def optimizer_state(self) -> Any:
        return self.optimizer.optimizer.state

    def versions(self) -> dict[str, str]:
        import deepspeed

        return {**super().versions(), "deepspeed": deepspeed.__version__}

    def close(self) -> None:
        engine = self.__dict__.pop("net", None)
        if engine is not None and hasattr(engine, "destroy"):
            engine.destroy()
        deepspeed = sys.modules.get("deepspeed")
        if deepspeed is not None:
            deepspeed.comm.comm.cdb = None  # its group ends here
        super().close()


class DeepSpeedZero1(DeepSpeedZero):
    """Each process keeps its part of the optimizer state."""

    stage = 1


class DeepSpeedZero2(DeepSpeedZero):
    """Each process keeps its part of gradients and optimizer state."""

    stage = 2


class DeepSpeedZero3(DeepSpeedZero):
    """Each process keeps its part of weights, gradients and optimizer state. A parameter is moved to the device when it
    is divided, so that no device ever has to hold the complete model."""

    stage = 3
    builds_on_host = is_sharded = True


def import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for a kind of device, which it chooses once and by what it finds."""
    os.environ["DS_ACCELERATOR"] = device.type
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # it writes a page about its configuration
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # again, since its import sets it
    # None of its compiled operations: on a CPU it would compile one for messages within a node, which takes minutes
    # and is of no use to training.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def choose_engine_arguments(device: torch.device) -> SimpleNamespace | None:
    """Return the arguments by which the engine takes this GPU; None on a CPU.

    By itself it takes the GPU with the number LOCAL_RANK, which is another one with hardware.device_ids, and none where
    each process sees a single GPU.
    """
    return SimpleNamespace(device_rank=device.index) if device.type == "cuda" else None
