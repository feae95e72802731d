"""PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019): each gradient matrix travels as two factors of low rank."""

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

FIRST = 2  # update that may be compressed: DistributedDataParallel makes its buckets anew after the first one
# Added to the length of each column before it is divided by it: a layer that is dead has gradients of nothing but 0.
TINY = 1e-12


@dataclass
class PowerSgdOptions(DdpOptions):
    """Those of torch.distributed's PowerSGDState, beside DistributedDataParallel's."""

    rank: int = 4  # of the two factors: columns of P and of Q
    start_iter: int = FIRST  # updates before the first compressed one
    min_compression_rate: float = 2.0  # matrices whose factors save less than this travel whole
    error_feedback: bool = True  # what the factors leave out is added to the next update's gradients
    warm_start: bool = True  # each update begins with the factors of the one before

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"strategy.options.rank={self.rank} should be at least 1: a factor has so many columns")
        least = FIRST if self.error_feedback or self.warm_start else 0
        if self.start_iter < least:
            raise InputError(
                f"strategy.options.start_iter={self.start_iter} should be at least {least}: "
                f"buckets are made anew after the first update, and what was kept of them would not fit"
                if least
                else f"strategy.options.start_iter={self.start_iter} should not be negative"
            )
        if self.min_compression_rate < 0:
            raise InputError(
                f"strategy.options.min_compression_rate={self.min_compression_rate:g} should not be negative"
            )


class OfMatrices:
    """A bucket for torch's hook, which takes the first axis of each gradient for the rows of a matrix, and fails where
    a parameter is a single number and has none."""

    def __init__(self, bucket: dist.GradBucket) -> None:
        self._bucket = bucket
        self.index, self.is_last, self.buffer = bucket.index, bucket.is_last, bucket.buffer

    def gradients(self) -> list[Tensor]:
        """In the order in which they lie in memory, also of kernels that lie channels last: columns change places."""
        return [one if one.dim() else one.view(1) for one in self._bucket.gradients()]


class DdpPowerSgd(CompressedDdp):
    """torch's hook: of each bucket first what is not compressed, then all Ps, then all Qs are all-reduced."""

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
            orthogonalization_epsilon=TINY,
            random_seed=self.spec.config.seed,
        )
        super().setup()

    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        compresses = self.state.iter >= self.state.start_powerSGD_iter
        self.account.note(self._sizes(bucket) if compresses else [_bytes(bucket.buffer())], bucket.is_last())
        done = powerSGD_hook(self.state, OfMatrices(bucket))
        if self.group is not None and self.group.backend == "gloo":
            # The Ps and Qs are sent when what went before has arrived, by a thread of Gloo that waits for them. With
            # several buckets under way all threads wait at once, and ranks would send in different orders.
            done.wait()
        return done

    def empty_message(self, size_bytes: int) -> Buffers:
        return (self.zeros(size_bytes, torch.float32),)

    def replay(self, buffers: Buffers) -> dist.Work | None:
        """One after the other: Q is computed from the sum of P."""
        dist.all_reduce(*buffers)
        return None

    def _sizes(self, bucket: dist.GradBucket) -> list[int]:
        """Bytes of [what is not compressed, Ps, Qs] of a bucket."""
        element_bytes = bucket.buffer().element_size()
        whole = p = q = 0
        for gradient in OfMatrices(bucket).gradients():
            rows, columns = gradient.shape[0], gradient[0].numel()
            rank = min(rows, columns, self.options.rank)
            if (rows + columns) * rank * self.options.min_compression_rate < rows * columns:
                p, q = p + rows * rank, q + columns * rank
            else:
                whole += rows * columns
        return [count * element_bytes for count in (whole, p, q)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
