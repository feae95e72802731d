"""Dense layers split over the devices, through DTensor: each process computes its part of a layer on all samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import LossPart, NotMeasured, Unsupported
from scalebench.strategies.torch import collectives
from scalebench.strategies.torch.base import TorchStrategy, filled
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.model import NetworkModule
from scalebench.strategies.torch.precision import HALF
from scalebench.strategies.torch.tensor_parallel.plan import Split, plan
from scalebench.strategies.torch.user_module import OwnModule
from scalebench.workloads import user_code

NEEDS = (2, 7)  # PyTorch, whose parallelize_module takes each part from what is there on every process


@dataclass
class TensorParallelOptions:
    """Which layers are split."""

    layers: str = "all"  # all: every dense layer that is wide enough | paired: those of pairs, which exchange least


class TensorParallel(TorchStrategy):
    """One process per device, all on the same samples. Activations are exchanged within both passes; gradients are not:
    what every process has all of is trained by all of them alike."""

    Options = TensorParallelOptions

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.splits: list[Split] = []
        self._exchanges: dict[tuple[str, int], collectives.Collective] = {}

    def group_backend(self) -> str:
        requested = self.spec.config.strategy.backend
        if requested in (None, "auto"):
            return "nccl" if self.spec.device == "cuda" else "gloo"
        return requested

    def shard(self) -> tuple[int, int]:
        """All processes read every global batch."""
        return 0, 1

    def setup(self) -> None:
        train, name = self.spec.config.train, self.spec.config.strategy.name
        if tuple(map(int, torch.__version__.split(".")[:2])) < NEEDS:
            raise Unsupported(f"{name} needs PyTorch 2.7 or newer, and here is {torch.__version__}")
        if user_code.is_user_model(self.spec.config.model):
            raise Unsupported(
                f"{name} splits the layers of a network that scalebench describes, and not a module of yours"
            )
        if train.precision == "float16":
            raise Unsupported(
                f"{name} cannot scale a loss: PyTorch looks for overflow in whole gradients; use bfloat16"
            )
        if train.compile:
            raise Unsupported(f"{name} is not compiled: its layers exchange activations; leave out train.compile")
        super().setup()

    def step(self, batch: TorchBatch) -> LossPart | None:
        """All have the same loss, and rank 0 tells it."""
        part = super().step(batch)
        return part if self.place.rank == 0 else None

    def set_gradient_sync(self, on: bool) -> None:
        raise NotMeasured(f"{self.spec.config.strategy.name} has no output of a split layer without its exchange")

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        raise NotMeasured(
            f"{self.spec.config.strategy.name} exchanges within its passes: no part of an update is without"
        )

    def message_sizes(self) -> list[int]:
        """Of the activations and their gradients, from their shapes."""
        return [size for _, size in self._messages()]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """One after the other, as layers wait for them; sizes of other updates as all-reduces."""
        sent = self._messages()
        if sizes != [size for _, size in sent]:
            sent = [("all_reduce", size) for size in sizes]
        for kind, size in sent:
            if (kind, size) not in self._exchanges:
                self._exchanges[kind, size] = self._collective(kind, size)
            self._exchanges[kind, size]()

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        return self._collective(name, size_bytes)

    def backend_used(self) -> str | None:
        """Two more updates under the profiler, which spoil the weights."""
        return self.seen_carrier()

    def _collective(self, name: str, size_bytes: int) -> collectives.Collective:
        assert self.group is not None, "setup comes first"
        return collectives.collective(self.group, name, size_bytes)

    def _messages(self) -> list[tuple[str, int]]:
        """(kind, bytes) of each message of an update, in its order. Under bfloat16 outputs are of that, and gradients
        as the inputs are that they belong to."""
        devices = self.spec.processes
        if self.last_batch is None or devices == 1:
            return []
        out = HALF.get(self.spec.config.train.precision, torch.float32)
        sent = [(message, out) for one in self.splits for message in one.forward]
        sent += [(message, self._inputs.of[one.layer]) for one in reversed(self.splits) for message in one.backward]
        return [
            (message.kind, part.samples * message.numbers(devices) * kind.itemsize)
            for part in filled(self.last_batch.split(self.accumulate))
            for message, kind in sent
        ]

    def _build(self) -> NetworkModule | OwnModule:
        from scalebench.strategies.torch.tensor_parallel import layers  # DTensor, which takes seconds to import

        model = super()._build()
        assert isinstance(model, NetworkModule), "setup refuses others"
        devices = self.spec.processes
        self.splits = plan(model.network, devices, self.options.layers == "all")
        if not self.splits:
            raise Unsupported(
                f"{self.spec.config.model.name} has no dense layer that {devices} devices could share under "
                f"strategy.options.layers={self.options.layers}, and no others are split"
            )
        self._inputs = layers.Inputs(model, self.splits)
        layers.split(model, self.splits, self.device.type)
        return model
