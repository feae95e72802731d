"""The base of strategies whose processes exchange messages: how they are arranged, and what a step sends among them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import ClassVar

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scalebench.strategies.torch import devices, profiling
from scalebench.strategies.torch import group as groups
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.group import Message, TorchCollective, TorchGroup

SAME_SAMPLES = ("layer", "stage")  # axes along which processes train on the same samples
AXES_OF_MESSAGES = {"all_reduce": "copy", "send": "stage", "receive": "stage"}  # others are along that of shards


class GroupStrategy(TorchStrategy):
    """The base of strategies whose processes exchange messages within one group of torch.distributed."""

    group: TorchGroup  # from setup until close
    sends_at_once: ClassVar[bool] = False  # messages of one kind are in flight together; else one after the other
    _messages: Sequence[Message] = ()
    _sizes: Sequence[int] = ()
    _replay: tuple[list[int], Callable[[], None]] | None = None

    def group_backend(self) -> str:
        return devices.choose_backend(self.spec.config.strategy.backend, self.spec.device)

    def axes(self) -> dict[str, int]:
        """Return how the processes are arranged: the axes, one or two, and the number of processes along each.
        Consecutive ranks are along the last axis."""
        return {"shard": self.spec.processes}

    @functools.cached_property
    def mesh(self) -> DeviceMesh:
        return groups.build_mesh(self.axes(), self.device.type, self.spec.group_timeout_s)

    def shard(self) -> tuple[int, int]:
        sharing = math.prod(count for axis, count in self.axes().items() if axis in SAME_SAMPLES)
        return self.place.rank // sharing, self.spec.processes // sharing

    def messages(self) -> list[Message]:
        """Return the messages of one more step in the order of sending, as PyTorch's operators show them."""
        if self.last_batch is None:
            return []
        with nullcontext() if self.graphs is None else self.graphs.paused():
            sent = profiling.observe_messages(self.train, self.last_batch)
        return [each._replace(among=self.group_of(each)) for each in sent]

    def group_of(self, sent: Message) -> dist.ProcessGroup | None:
        """Return the group of processes in which a message of a step is sent; None: it is that of all."""
        if len(self.axes()) == 1:
            return None
        axis = "layer" if sent.is_activation else AXES_OF_MESSAGES.get(sent.kind, "shard")
        return self.mesh.get_group(axis if axis in self.axes() else "shard")

    def message_sizes(self) -> list[int]:
        self._messages = self._messages or self.messages()
        self._sizes = self.list_sizes()
        return list(self._sizes)

    def list_sizes(self) -> list[int]:
        """Return the bytes of each message of a step, the same on every rank, once `messages` are known."""
        return [message.size_bytes for message in self._messages]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """Send the messages that have these sizes, or all-reduce others."""
        if self._replay is None or self._replay[0] != sizes:
            self._replay, messages = None, self._messages  # buffers are freed before there are others
            if list(self._sizes) != sizes:
                messages = [Message("all_reduce", size) for size in sizes]
            self._replay = sizes, groups.build_replay(self.group, messages, self.sends_at_once)
        self._replay[1]()

    def collective(self, name: str, size_bytes: int) -> TorchCollective:
        return groups.build_torch_collective(self.group, Message(name, size_bytes))

    def backend_used(self) -> str | None:
        return self.observe_backend()

    def close(self) -> None:
        self._replay = None
        super().close()
