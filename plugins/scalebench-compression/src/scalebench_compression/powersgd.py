"""PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019): each gradient matrix is sent as two factors of low rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from scalebench.plugin_api import InputError, Unsupported
from scalebench.strategies.torch import DdpOptions
from scalebench_compression.compressed import Buffers, CompressedDdp

MIN_START_ITER = 2  # DistributedDataParallel rebuilds its buckets after the first step
# Added to the norm of each column before the division by it: a dead layer has only gradients of 0.
ORTHOGONALIZATION_EPSILON = 1e-12


@dataclass
class PowerSgdOptions(DdpOptions):
    """Options of torch.distributed's PowerSGDState and of DistributedDataParallel."""

    rank: int = 4  # of the two factors: number of columns of P and of Q
    start_iter: int = MIN_START_ITER  # number of steps before the first compressed one
    min_compression_rate: float = 2.0  # matrices whose factors save less than this are sent uncompressed
    error_feedback: bool = True  # adds what the factors leave out to the gradients of the next step
    warm_start: bool = True  # each step starts with the factors of the previous one

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"strategy.options.rank={self.rank} should be at least 1: a factor has so many columns")
        minimum = MIN_START_ITER if self.error_feedback or self.warm_start else 0
        if self.start_iter < minimum:
            raise InputError(
                f"strategy.options.start_iter={self.start_iter} should be at least {minimum}: "
                f"buckets are made anew after the first step, and what was kept of them would not fit"
                if minimum
                else f"strategy.options.start_iter={self.start_iter} should not be negative"
            )
        if self.min_compression_rate < 0:
            raise InputError(
                f"strategy.options.min_compression_rate={self.min_compression_rate:g} should not be negative"
            )


class MatrixBucket:
    """A bucket for torch's hook, which uses the first axis of each gradient as rows of a matrix, and fails for a scalar
    parameter, which has no axis."""

    def __init__(self, bucket: dist.GradBucket) -> None:
        self._bucket = bucket
        self.index, self.is_last, self.buffer = bucket.index, bucket.is_last, bucket.buffer

    def gradients(self) -> list[Tensor]:
        """Return the gradients in memory order, also for kernels in channels-last layout, which permutes columns."""
        return [gradient if gradient.dim() else gradient.view(1) for gradient in self._bucket.gradients()]


class DdpPowerSgd(CompressedDdp):
    """DistributedDataParallel with torch's PowerSGD hook, which all-reduces for each bucket first the uncompressed
    gradients, then all Ps, then all Qs."""

    Options = PowerSgdOptions

    def setup(self) -> None:
        options = self.options
        if options.error_feedback:
            self.refuse_scaled_loss()
        if self.spec.device == "cpu" and torch.cuda.is_available():
            raise Unsupported(
                "torch's PowerSGD waits for a GPU wherever there is one, also with gradients on the CPU: "
                "set CUDA_VISIBLE_DEVICES= before the command, or take ddp_topk or ddp_fp16"
            )
        self.state = PowerSGDState(
            None,
            matrix_approximation_rank=options.rank,
            start_powerSGD_iter=options.start_iter,
            min_compression_rate=options.min_compression_rate,
            use_error_feedback=options.error_feedback,
            warm_start=options.warm_start,
            orthogonalization_epsilon=ORTHOGONALIZATION_EPSILON,
            random_seed=self.spec.config.seed,
        )
        super().setup()

    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        compresses = self.state.iter >= self.state.start_powerSGD_iter
        self.messages.record(self._sizes(bucket) if compresses else [_bytes(bucket.buffer())], bucket.is_last())
        done = powerSGD_hook(self.state, MatrixBucket(bucket))
        if self.group is not None and self.group.backend == "gloo":
            # A thread of Gloo sends Ps and Qs when the previous message has arrived. With several buckets in flight,
            # all threads would wait at the same time, and ranks would send in different orders.
            done.wait()
        return done

    def empty_message(self, size_bytes: int) -> Buffers:
        return (self.zeros(size_bytes, torch.float32),)

    def replay(self, buffers: Buffers) -> dist.Work | None:
        """Send and wait, since Q is computed from the sum of P."""
        dist.all_reduce(*buffers)
        return None

    def _sizes(self, bucket: dist.GradBucket) -> list[int]:
        """Return the bytes of [uncompressed gradients, Ps, Qs] of a bucket."""
        element_bytes = bucket.buffer().element_size()
        uncompressed = p = q = 0
        for gradient in MatrixBucket(bucket).gradients():
            rows, columns = gradient.shape[0], gradient[0].numel()
            rank = min(rows, columns, self.options.rank)
            if (rows + columns) * rank * self.options.min_compression_rate < rows * columns:
                p, q = p + rows * rank, q + columns * rank
            else:
                uncompressed += rows * columns
        return [count * element_bytes for count in (uncompressed, p, q)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
