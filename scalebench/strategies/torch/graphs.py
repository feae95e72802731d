"""The whole step of bare_torch and ddp in one CUDA graph (`train.compile=graphs`), which the host starts with one call.

A graph repeats the kernels of one step on the same memory. So each batch is copied to where the recorded one was, the
learning rate is a tensor on the device, and the loss is copied out after each replay. Batches of another shape, such as
the last one of an epoch, are trained as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from scalebench.core.errors import describe_exception
from scalebench.strategies.base import LossPart, Unsupported
from scalebench.strategies.torch.batches import TorchBatch

if TYPE_CHECKING:
    from scalebench.strategies.torch.base import TorchStrategy

# DistributedDataParallel measures its first ten steps with events, which a graph cannot hold, so that PyTorch's manual
# asks for eleven steps before a capture. cuDNN, cuBLAS and NCCL, too, prepare themselves in the first ones. They are
# within those that are never measured (measure.warmup_steps).
WARMUP_STEPS = 11
# A thread that prefetches pins memory meanwhile, which makes a capture fail that watches all threads.
CAPTURE_MODE = "thread_local"


class RecordedStep(NamedTuple):
    """A graph, and the loss that each of its replays writes."""

    graph: torch.cuda.CUDAGraph
    part: LossPart


class StepGraphs:
    """The graphs of a strategy's step: one with gradient synchronization, and one without, which probes train."""

    def __init__(self, strategy: TorchStrategy) -> None:
        """Make a stream of its own the current one, for good: DistributedDataParallel has to be built, warmed up and
        captured on one stream, and that cannot be CUDA's default one."""
        self._strategy = strategy
        self._repeats_batch = strategy.spec.config.dataset.feed == "fixed"
        self._recorded: dict[bool, RecordedStep] = {}  # by whether gradients are synchronized
        self._batch: TorchBatch | None = None  # in the memory that the graphs read
        self._warmup_steps = 0  # so far
        self._is_paused = False
        self._stream = None
        if strategy.device.type == "cuda":
            self._stream = torch.cuda.Stream(strategy.device)
            self._stream.wait_stream(torch.cuda.current_stream(strategy.device))
            torch.cuda.set_stream(self._stream)

    @property
    def are_recorded(self) -> bool:
        return bool(self._recorded)

    def prepare_optimizer(self) -> None:
        """Have the optimizer read its learning rates from the device, and count its steps there. Raises Unsupported for
        a user's, whose schedulers run on the host."""
        if self._strategy.model.user_optimizer is not None:
            raise Unsupported("train.compile=graphs is for train.optimizer, and this model has its own: leave it out")
        for group in self._strategy.optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=self._strategy.device)
            if "capturable" in group:  # SGD counts nothing
                group["capturable"] = True

    def step(self, batch: TorchBatch) -> LossPart | None:
        """Train one step: after the first ones by a replay, if the batch has the shape of the first one."""
        if self._is_paused or (self._batch is not None and not _fits(batch, self._batch)):
            return self._strategy.train_batch(batch)
        if self._batch is None:
            self._batch = batch if self._repeats_batch else batch.map(torch.clone)
        is_synchronized = getattr(self._strategy.net, "require_backward_grad_sync", True)
        if self._warmup_steps < WARMUP_STEPS:
            self._warmup_steps += 1
            return self._strategy.train_batch(batch)
        if batch is not self._batch:
            for target, source in zip(self._batch.tensors(), batch.tensors(), strict=True):
                target.copy_(source)
        if is_synchronized not in self._recorded:
            self._recorded[is_synchronized] = self._record(self._batch)
        graph, part = self._recorded[is_synchronized]
        graph.replay()
        return part if part.loss_sum is None else part._replace(loss_sum=part.loss_sum.clone())

    @contextmanager
    def paused(self) -> Iterator[Callable[[], None]]:
        """Train steps as ever within the context, until the function that it gives is called: a replay shows neither
        operators nor messages."""
        self._is_paused = True
        try:
            yield self._resume
        finally:
            self._resume()

    def _resume(self) -> None:
        self._is_paused = False

    def reset(self) -> None:
        """Free the graphs. Call it before the group is destroyed, which waits for the messages that they hold."""
        for recorded in self._recorded.values():
            recorded.graph.reset()
        self._recorded.clear()

    def _record(self, batch: TorchBatch) -> RecordedStep:
        """Capture a step."""
        try:
            return self.capture(lambda: self._strategy.train_batch(batch))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # the end of a capture that failed raises one more
            first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            raise Unsupported(
                f"train.compile=graphs: a step of {self._strategy.spec.config.model.name} cannot be captured, as where "
                f"it waits for the GPU or has shapes that depend on data ({describe_exception(first)}): "
                "take train.compile=none or default"
            ) from error

    def capture(self, train: Callable[[], LossPart | None]) -> RecordedStep:
        """Record the kernels of a step without running them."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode=CAPTURE_MODE):
            part = train()
        assert part is not None  # of every strategy that graphs are for
        return RecordedStep(graph, part)


def _fits(batch: TorchBatch, other: TorchBatch) -> bool:
    """Return whether a graph of one of these trains the other: same shapes, and the same weight of its loss."""
    a, b = ([(tensor.shape, tensor.dtype) for tensor in each.tensors()] for each in (batch, other))
    return a == b and batch.global_samples == other.global_samples
