"""DistributedDataParallel in a plain loop, with gradient synchronization during the backward pass or after it, and
gradients that PyTorch's communication hooks send in fewer bytes."""

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
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group_strategy import GroupStrategy
from scalebench.strategies.torch.profiling import ALL_REDUCE
from scalebench.strategies.torch.user_errors import UserProblem, summarize_names

SENT_TYPES = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool, torch.complex64, torch.complex128,
}  # fmt: skip  # by DistributedDataParallel over Gloo and NCCL
SendBucket = Callable[[dist.GradBucket], "Future[Tensor]"]
BUCKET_HOOKS = {"none": allreduce_hook, "bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
POWERSGD_START_STEP = 2  # DistributedDataParallel rebuilds its buckets after the first step
MIN_COMPRESSION_RATE = 2.0  # a matrix whose factors save less is sent uncompressed: PyTorch's default
# Added to the norm of each column before the division by it: a dead layer has only gradients of 0.
ORTHOGONALIZATION_EPSILON = 1e-12


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

    The buckets of those with the option comm_hook may be compressed. With bf16 and fp16 each rank rounds a bucket, and
    the all-reduce sums in that type. With PowerSGD (Vogels et al. 2019) each gradient matrix is sent as two factors P
    and Q; what they leave out is added to the next step's gradient.
    """

    _powersgd: PowerSGDState | None = None

    @property
    def comm_hook(self) -> str:
        return getattr(self.options, "comm_hook", "none")

    def setup(self) -> None:
        if self.comm_hook == "powersgd":
            if self.spec.device == "cpu" and torch.cuda.is_available():
                raise Unsupported(
                    "PyTorch's PowerSGD waits for a GPU wherever there is one, also with gradients on the CPU: set "
                    "CUDA_VISIBLE_DEVICES= before the command, or take strategy.options.comm_hook=bf16"
                )
            self._powersgd = PowerSGDState(
                None,
                matrix_approximation_rank=self.options.powersgd_rank,
                start_powerSGD_iter=POWERSGD_START_STEP,
                min_compression_rate=MIN_COMPRESSION_RATE,
                orthogonalization_epsilon=ORTHOGONALIZATION_EPSILON,
                random_seed=self.spec.config.seed,
            )
        super().setup()

    def ddp_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of DistributedDataParallel except the device; subclasses may have more
        options."""
        arguments = {name: getattr(self.options, name) for name in ARGUMENTS}
        accepted = inspect.signature(DistributedDataParallel).parameters
        if "forward_sync_buffers" in accepted:  # the name in newer PyTorch, which warns about the old one
            arguments["forward_sync_buffers"] = arguments.pop("broadcast_buffers")
        return arguments

    def wrap(self, model: nn.Module) -> nn.Module:
        self.leave_out_unsendable(model)
        net = DistributedDataParallel(model, device_ids=choose_device_ids(self.device), **self.ddp_arguments())
        self.register_hook(net)
        return net

    def leave_out_unsendable(self, model: nn.Module) -> None:
        """Have DistributedDataParallel leave out what the backend cannot send: all ranks have built the same. Raises
        UserProblem where it would send it in each step."""
        frozen = [(name, each) for name, each in model.named_parameters() if not each.requires_grad]
        constants = [*frozen, *model.named_buffers()]
        names = [name for name, each in constants if each.layout != torch.strided or each.dtype not in SENT_TYPES]
        if names and self.options.broadcast_buffers:
            raise UserProblem(
                f"has buffers that {self.requested_backend()} cannot broadcast ({summarize_names(names)}): "
                "leave strategy.options.broadcast_buffers at false, or give them a type of 32 bits"
            )
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)

    def register_hook(self, net: DistributedDataParallel) -> None:
        """Register a communication hook where buckets are sent differently from DistributedDataParallel's way."""
        if not self.options.overlap or self.comm_hook != "none":
            hook = self.send_bucket if self.options.overlap else SyncAfterBackward(self.send_bucket)
            net.register_comm_hook(None, lambda _, bucket: hook(bucket))  # torch checks a hook's annotations, if any

    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start the synchronization of a bucket for a communication hook; the future holds the bucket's own buffer.

        Uncompressed it is averaged over the ranks in place, as DistributedDataParallel does without a hook."""
        if self._powersgd is None:
            return BUCKET_HOOKS[self.comm_hook](dist.group.WORLD, bucket)
        done = powerSGD_hook(self._powersgd, MatrixBucket(bucket))
        if self.group.backend == "gloo":
            # A thread of Gloo sends Ps and Qs when the previous message has arrived. With several buckets in flight,
            # all threads would wait at the same time, and ranks would send in different orders.
            done.wait()
        return done

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

    @property
    def sends_at_once(self) -> bool:
        return self._powersgd is None

    def backend_used(self) -> str | None:
        return self.observe_backend(ALL_REDUCE)

    def close(self) -> None:
        """Drop the wrapper before the group: holding the last reference to the group, it would wait for the group's
        threads, and these for the interpreter lock."""
        self.__dict__.pop("net", None)
        super().close()


class MatrixBucket:
    """A bucket for PyTorch's PowerSGD, which uses the first axis of each gradient as rows of a matrix, and fails for a
    scalar parameter, which has no axis."""

    def __init__(self, bucket: dist.GradBucket) -> None:
        self._bucket = bucket
        self.index, self.is_last, self.buffer = bucket.index, bucket.is_last, bucket.buffer

    def gradients(self) -> list[Tensor]:
        """Return the gradients in memory order, also for kernels in channels-last layout, which permutes columns."""
        return [gradient if gradient.dim() else gradient.view(1) for gradient in self._bucket.gradients()]


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
