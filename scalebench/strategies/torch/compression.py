"""Gradients that are sent in fewer bytes: PyTorch's communication hooks of DistributedDataParallel."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.ddp import Ddp, SendBucket

HALF_PRECISION_HOOKS = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
POWERSGD_START_STEP = 2  # DistributedDataParallel rebuilds its buckets after the first step
MIN_COMPRESSION_RATE = 2.0  # a matrix whose factors save less is sent uncompressed: PyTorch's default
# Added to the norm of each column before the division by it: a dead layer has only gradients of 0.
ORTHOGONALIZATION_EPSILON = 1e-12


class CompressedDdp(Ddp):
    """DistributedDataParallel, whose buckets may be compressed.

    With bf16 and fp16 each rank rounds a bucket, and the all-reduce sums in that type. With PowerSGD (Vogels et al.
    2019) each gradient matrix is sent as two factors P and Q; what they leave out is added to the next step's gradient.
    """

    def setup(self) -> None:
        hook = HALF_PRECISION_HOOKS.get(self.options.comm_hook)
        self._send: SendBucket | None = None if hook is None else lambda bucket: hook(dist.group.WORLD, bucket)
        if self.options.comm_hook == "powersgd":
            self._send = self._build_powersgd()
        super().setup()

    def register_hook(self, net: DistributedDataParallel) -> None:
        if self._send is None or not self.options.overlap:
            return super().register_hook(net)
        net.register_comm_hook(None, lambda _, bucket: self.send_bucket(bucket))

    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        return super().send_bucket(bucket) if self._send is None else self._send(bucket)

    @property
    def sends_at_once(self) -> bool:
        return self.options.comm_hook != "powersgd"

    def _build_powersgd(self) -> SendBucket:
        if self.spec.device == "cpu" and torch.cuda.is_available():
            raise Unsupported(
                "PyTorch's PowerSGD waits for a GPU wherever there is one, also with gradients on the CPU: set "
                "CUDA_VISIBLE_DEVICES= before the command, or take strategy.options.comm_hook=bf16"
            )
        self._state = PowerSGDState(
            None,
            matrix_approximation_rank=self.options.powersgd_rank,
            start_powerSGD_iter=POWERSGD_START_STEP,
            min_compression_rate=MIN_COMPRESSION_RATE,
            orthogonalization_epsilon=ORTHOGONALIZATION_EPSILON,
            random_seed=self.spec.config.seed,
        )

        def send(bucket: dist.GradBucket) -> Future[Tensor]:
            done = powerSGD_hook(self._state, MatrixBucket(bucket))
            if self.group.backend == "gloo":
                # A thread of Gloo sends Ps and Qs when the previous message has arrived. With several buckets in
                # flight, all threads would wait at the same time, and ranks would send in different orders.
                done.wait()
            return done

        return send


class MatrixBucket:
    """A bucket for PyTorch's PowerSGD, which uses the first axis of each gradient as rows of a matrix, and fails for a
    scalar parameter, which has no axis."""

    def __init__(self, bucket: dist.GradBucket) -> None:
        self._bucket = bucket
        self.index, self.is_last, self.buffer = bucket.index, bucket.is_last, bucket.buffer

    def gradients(self) -> list[Tensor]:
        """Return the gradients in memory order, also for kernels in channels-last layout, which permutes columns."""
        return [gradient if gradient.dim() else gradient.view(1) for gradient in self._bucket.gradients()]
