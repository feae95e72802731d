"""What a model that is cut into stages cannot do, told before processes meet: all of them find the same."""

from __future__ import annotations

import inspect

import torch
from torch.distributed.pipelining import ScheduleGPipe

from scalebench.spec import RunSpec
from scalebench.strategy import Unsupported
from scalebench.workloads import user_code


def refuse(spec: RunSpec, backend: str, schedule: str, stages: int, micro_batches: int) -> None:
    """Raises Unsupported with the first reason."""
    train, name = spec.config.train, spec.config.strategy.name
    if user_code.is_user_model(spec.config.model):
        raise Unsupported(
            f"{name} cuts the networks of scalebench, and a module of one's own does not say where it can be cut"
        )
    if train.accumulate > 1:
        raise Unsupported(f"{name} adds gradients up over micro-batches, not over parts: leave out train.accumulate")
    if train.precision == "float16":
        raise Unsupported(f"{name} does not scale its loss, as train.precision=float16 asks for: take bfloat16")
    if train.compile:
        raise Unsupported(f"{name} does not compile its stages: leave out train.compile")
    if spec.device == "cuda" and backend == "gloo":
        raise Unsupported("Gloo sends no tensors of GPUs from process to process: leave out strategy.backend")
    if schedule == "1f1b" and micro_batches < stages:
        raise Unsupported(
            f"1F1B needs at least as many micro-batches as stages, and there are {micro_batches} for {stages}: raise "
            f"strategy.options.micro_batches"
        )
    if "return_outputs" not in inspect.signature(ScheduleGPipe.step).parameters:
        raise Unsupported(f"{name} needs newer pipelines than those of PyTorch {torch.__version__}: update torch")
