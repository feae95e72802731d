"""What Horovod's strategies of both frameworks share: collective operations, by themselves and as in a step, and what a
timeline shows of synchronization."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import horovod
import numpy as np

from scalebench.core.spec import RankPlacement
from scalebench.strategies.base import BatchReplay, NotMeasured, Probes, create_on_all_ranks
from scalebench.strategies.horovod import timeline
from scalebench.strategies.horovod.group import HorovodGroup
from scalebench.strategies.horovod.timeline import OBSERVED_STEPS, ObservedSync

# Our names of collective operations -> Horovod's; it lacks the others.
OPERATIONS = {
    "all_reduce": "allreduce",
    "broadcast": "broadcast",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
}
ROOT = 0
FLOAT_BYTES = 4


class HorovodProbes(Probes, metaclass=ABCMeta):
    """The probes of a strategy that trains in Horovod's group."""

    library: ClassVar[ModuleType]  # horovod.torch or horovod.tensorflow
    out_of_memory: ClassVar[type[Exception]]
    group: HorovodGroup  # from setup until close
    options: Any
    place: RankPlacement
    last_batch: Any
    train: Callable[..., None]
    _observed: ObservedSync | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._all_reduces: dict[int, HorovodCollective] = {}  # by bytes

    @abstractmethod
    def to_tensor(self, array: np.ndarray) -> Any:
        """Return a tensor on the device of this process."""

    def on_device(self) -> AbstractContextManager[Any]:
        """Return a context in which operations run on the device of this process."""
        return nullcontext()

    @property
    def compressor(self) -> Any:
        return getattr(self.library.Compression, self.options.compression)

    def train_more(self, steps: int) -> None:
        """Train more steps on the last batch."""
        if self.last_batch is None:
            raise RuntimeError("synchronization is observed on the training's last batch, and there was no training")
        self.train(BatchReplay(self.last_batch, steps))

    def broadcast(self, value: float) -> float:
        return self.group.broadcast(value)

    def sum_over_group(self, values: list[float]) -> list[float]:
        return self.group.sum(values)

    def observe_sync(self) -> ObservedSync:
        """Return what a few more steps under the timeline show, which are trained at the first call only."""
        if self._observed is None:
            self._observed = timeline.observe_sync(self.group, self.place.rank, self.train_more, OBSERVED_STEPS, None)
        return self._observed

    def message_sizes(self) -> list[int]:
        return self.observe_sync().message_bytes

    def backend_used(self) -> str | None:
        return self.observe_sync().backend

    def sync_phases(self) -> tuple[int, dict[str, float]]:
        return OBSERVED_STEPS, _phases_of(self.observe_sync())

    def record_timeline(self, path: Path, steps: int) -> dict[str, float]:
        return _phases_of(timeline.observe_sync(self.group, self.place.rank, self.train_more, steps, path))

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """All-reduce one buffer after the other: together they would be fused again."""
        for size in sizes:
            if size not in self._all_reduces:
                self._all_reduces[size] = HorovodCollective(self, "all_reduce", size)
            self._all_reduces[size]()

    def collective(self, name: str, size_bytes: int) -> HorovodCollective:
        if name not in OPERATIONS:
            raise NotMeasured(f"Horovod has no {name}")
        if not hasattr(self.library, OPERATIONS[name]):
            raise NotMeasured(f"this Horovod has no {name} yet; 0.28 has")
        return create_on_all_ranks(
            lambda: HorovodCollective(self, name, size_bytes),
            self.sum_over_group,
            (self.out_of_memory,),
            f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
        )

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "horovod": horovod.__version__}

    def close(self) -> None:
        self._all_reduces.clear()
        super().close()  # type: ignore[misc]


def _phases_of(observed: ObservedSync) -> dict[str, float]:
    if observed.backend is None:
        raise NotMeasured("nothing was synchronized, so that there is no timeline of it")
    return observed.phases_s


class HorovodCollective:
    """One collective operation, done once per call: in place where Horovod can do that, which with PyTorch are
    all-reduce and broadcast, else with a new result in each call, which is part of its time."""

    def __init__(self, strategy: HorovodProbes, name: str, size_bytes: int) -> None:
        library, operation = strategy.library, OPERATIONS[name]
        in_place = getattr(library, f"{operation}_", None) if library.__name__ == "horovod.torch" else None
        send = in_place or getattr(library, operation)  # TensorFlow's broadcast_ is for variables alone
        options = {"root_rank": ROOT} if name == "broadcast" else {}
        options |= {"op": library.Sum} if name in ("all_reduce", "reduce_scatter") else {}
        self.send = partial(send, name=f"scalebench.{name}.{size_bytes}", **options)
        self._strategy = strategy
        parts = library.size() if name == "all_gather" else 1
        # Filled, so that it has memory of its own: all pages that were never written map to one zero page.
        zeros = np.full(max(size_bytes // FLOAT_BYTES // parts, 1), 0, np.float32)
        with strategy.on_device():
            self.sent = strategy.to_tensor(zeros)

    def __call__(self) -> None:
        with self._strategy.on_device():
            self.send(self.sent)
