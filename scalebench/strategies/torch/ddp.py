"""DistributedDataParallel in a plain loop, with gradient synchronization during the backward pass or after it, and
gradients that PyTorch's communication hooks send in half the bytes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group_strategy import GroupStrategy
from scalebench.strategies.torch.profiling import ALL_REDUCE

SendBucket = Callable[[dist.GradBucket], "Future[Tensor]"]
BUCKET_HOOKS = {"none": allreduce_hook, "bf16": bf16_compress_hook, "fp16": fp16_compress_hook}


class SyncAfterBackward:
    """A communication hook that holds the buckets of a step until the last one is full, when the backward pass has
    computed its last gradient, and then sends all of them at once, in their order.

    On a GPU, where all of this is only queued, communication waits for the kernels that fill the last bucket.
    """

    def __init__(self, send: SendBucket) -> None:
        """`send` starts the synchronization of a bucket; its future holds the bucket's own buffer."""
        self._send = send
        self._held: list[dist.GradBucket] = []

    def __call__(self, bucket: dist.GradBucket) -> Future[Tensor]:
        self._held.append(bucket)
        if bucket.is_last():
            held, self._held = self._held, []
            for pending in [self._send(each) for each in held]:
                pending.wait()
        return _completed_future(bucket.buffer())


def _completed_future(buffer: Tensor) -> Future[Tensor]:
    """Return a future that is done already: the reducer reads no bucket's buffer before the last one's future."""
    future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
    future.set_result(buffer)
    return future


# DistributedDataParallel takes these. Its own default of broadcast_buffers is true: rank 0's moving statistics go to
# all before each forward pass. Here each replica keeps its own, as under MirroredStrategy, and message_sizes covers
# all of it.
ARGUMENTS = ("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers")


class Ddp(GroupStrategy):
    """One process per device. Gradients are averaged bucket by bucket during the backward pass, or with overlap=false
    after it.

    With the option comm_hook (bf16, fp16) each rank rounds a bucket, and the all-reduce sums in that type.
    """

    sends_at_once = True

    @property
    def comm_hook(self) -> str:
        return getattr(self.options, "comm_hook", "none")

    def ddp_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of DistributedDataParallel except the device; subclasses may have more
        options."""
        arguments = {name: getattr(self.options, name) for name in ARGUMENTS}
        accepted = inspect.signature(DistributedDataParallel).parameters
        if "forward_sync_buffers" in accepted:  # the name in newer PyTorch, which warns about the old one
            arguments["forward_sync_buffers"] = arguments.pop("broadcast_buffers")
        return arguments

    def wrap(self, model: nn.Module) -> nn.Module:
        net = DistributedDataParallel(model, device_ids=choose_device_ids(self.device), **self.ddp_arguments())
        self.register_hook(net)
        return net

    def register_hook(self, net: DistributedDataParallel) -> None:
        """Register a communication hook where buckets are sent differently from DistributedDataParallel's way."""
        if not self.options.overlap or self.comm_hook != "none":
            hook = self.send_bucket if self.options.overlap else SyncAfterBackward(self.send_bucket)
            net.register_comm_hook(None, lambda _, bucket: hook(bucket))  # torch checks a hook's annotations, if any

    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start the synchronization of a bucket for a communication hook; the future holds the bucket's own buffer.

        Uncompressed it is averaged over the ranks in place, as DistributedDataParallel does without a hook."""
        return BUCKET_HOOKS[self.comm_hook](dist.group.WORLD, bucket)

    @property
    def is_wrapped(self) -> bool:
        """Return whether there is something to synchronize: Accelerate wraps nothing in the only process."""
        return isinstance(self.net, DistributedDataParallel)

    def set_gradient_sync(self, on: bool) -> None:
        if self.is_wrapped:
            switch_sync(self.net, on)

    def without_sync(self) -> AbstractContextManager[Any]:
        return skip_sync(self.net) if self.is_wrapped else nullcontext()

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        """Train up to one part of a step without synchronization, even where it is on.

        Otherwise a forward pass would make the reducer wait for its backward pass.
        """
        if not self.is_wrapped:
            return super().partial_step(batch, until)
        self.net.require_forward_param_sync = False  # the first pass would still broadcast moving statistics
        with self.net.no_sync():
            super().partial_step(batch, until)
        forget_used_parameters(self.net)

    def backend_used(self) -> str | None:
        return self.observe_backend(ALL_REDUCE)

    def close(self) -> None:
        """Drop the wrapper before the group: holding the last reference to the group, it would wait for the group's
        threads, and these for the interpreter lock."""
        self.__dict__.pop("net", None)
        super().close()


def choose_device_ids(device: torch.device) -> list[int] | None:
    """Return DistributedDataParallel's argument of that name: the GPU that inputs are moved to, and None on a CPU."""
    return [device.index] if device.type == "cuda" else None


def skip_sync(net: DistributedDataParallel) -> AbstractContextManager[Any]:
    """Return a context without synchronization, except for the first pass with static_graph.

    torch records the graph in that pass, and fails if it does not synchronize in it. Averages to which other parts'
    gradients are added are the same on all replicas, and stay the same.
    """
    if net.static_graph and not net._static_graph_delay_allreduce_enqueued:
        return nullcontext()
    return net.no_sync()


def switch_sync(net: DistributedDataParallel, on: bool) -> None:
    """Switch gradient synchronization on or off for all passes that follow."""
    net.require_backward_grad_sync = on
    forget_used_parameters(net)


def forget_used_parameters(net: DistributedDataParallel) -> None:
    """Forget what steps without synchronization have used.

    With find_unused_parameters the reducer adds up the parameters that were used since the last synchronization, and
    fails in the next one where a parameter of an earlier step, whose gradient is gone, is not used again.
    """
    if net.find_unused_parameters:
        net.reducer._reset_state()
