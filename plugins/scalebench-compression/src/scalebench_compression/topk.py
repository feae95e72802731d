"""Top-k compression: the largest gradients of each bucket are sent with their indices, the others kept for later."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalebench.plugin_api import InputError, RunSpec, Unsupported
from scalebench.strategies.torch import Ddp, Message
from scalebench_compression import sparse

# As newer PyTorch calls it, which warns of the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
ALL_GATHER = re.compile(r"all_?gather", re.IGNORECASE)
DISTRIBUTION = "scalebench-compression"


class DdpTopK(Ddp):
    """DistributedDataParallel with a hook in which each rank sends its largest entries and their indices to all, by one
    all-gather per bucket."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        if not 0 < self.options.share <= 1:
            raise InputError(
                f"strategy.options.share={self.options.share:g} should be above 0 and at most 1: "
                f"it is the part of the gradients that travels"
            )
        self.residual = sparse.Residual()
        self._sent_bytes: list[int] = []  # by this rank, for each bucket of the current step
        self._step_bytes: list[int] = []  # of the last complete step

    def setup(self) -> None:
        if self.options.error_feedback and self.spec.config.train.precision == "float16":
            # What a step kept back would have another scale in a later one, and be NaN after an overflow.
            raise Unsupported(
                "error feedback adds what a step kept back to a later one, and train.precision=float16 scales "
                "each loss differently: take bfloat16 or float32, or strategy.options.error_feedback=false"
            )
        super().setup()

    def register_hook(self, net: DistributedDataParallel) -> None:
        if not self.options.overlap:
            return super().register_hook(net)
        # Without annotations: torch compares them with its own classes, and here they are strings.
        net.register_comm_hook(None, lambda _, bucket: self.send_bucket(bucket))

    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Compute the mean of the entries that the ranks send, in the bucket's own buffer."""
        buffer = residual = bucket.buffer()
        if self.options.error_feedback:
            residual = self.residual.of(bucket.index(), bucket.parameters(), buffer)
            residual.add_(buffer)
        count, ranks = sparse.sent_count(len(buffer), self.options.share), dist.get_world_size()
        places = sparse.select_largest(residual, count)
        message = sparse.pack(residual, places)
        residual[places] = 0
        self._sent_bytes.append(len(message))
        if bucket.is_last():
            self._step_bytes, self._sent_bytes = self._sent_bytes, []
        gathered = message.new_empty(ranks * len(message))

        def add_up(done: Future[list[Tensor]]) -> Tensor:
            done.value()  # raises the errors of the all-gather
            if gathered.is_cuda:  # on a separate stream, which the allocator does not know of
                gathered.record_stream(torch.cuda.current_stream(gathered.device))
            return sparse.average_messages(gathered.chunk(ranks), count, ranks, out=buffer)

        return _all_gather(gathered, message, async_op=True).get_future().then(add_up)

    def messages(self) -> list[Message]:
        """Return the all-gathers of the last step by what all ranks send in them."""
        return [Message("all_gather", size * dist.get_world_size(), torch.uint8) for size in self._step_bytes]

    def backend_used(self) -> str | None:
        return self.observe_backend(ALL_GATHER)

    def versions(self) -> dict[str, str]:
        try:
            return {**super().versions(), DISTRIBUTION: version(DISTRIBUTION)}
        except PackageNotFoundError:  # imported from its folder
            return super().versions()
