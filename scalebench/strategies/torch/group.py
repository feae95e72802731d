"""The process group of torch.distributed: joining it, small messages, and single collective operations."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from scalebench.strategies.base import (
    Unsupported,
    create_on_all_ranks,
    listen_for_ranks,
    not_measured_if_unsupported,
)

ROOT = 0
FLOAT_BYTES = 4
# The first names are those of newer PyTorch, which warns about the old ones.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
ChooseRanks = Callable[[str], dist.ProcessGroup | None]
OPERATIONS_WITH_PARTS = ("all_gather", "reduce_scatter", "gather", "scatter")


class TorchGroup:
    """This process's membership in the default process group, whose rendezvous is at MASTER_ADDR:MASTER_PORT."""

    def __init__(self, backend: str, device: torch.device, rank: int, size: int, timeout_s: float) -> None:
        """Join the group, as every process of the run has to. `device` holds the gradients."""
        if not dist.is_backend_available(backend):
            raise Unsupported(f"this PyTorch {torch.__version__} was built without {backend.upper()}")
        self.backend, self.device = backend, device
        bound_device = choose_bound_device(backend, device)
        self._number_device = bound_device or torch.device("cpu")
        self._buffers: dict[tuple[int, ...], list[Tensor]] = {}
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            backend,
            store=_open_store(rank, size, timeout),
            rank=rank,
            world_size=size,
            timeout=timeout,
            device_id=bound_device,  # NCCL creates the one communicator now, not in step 1
        )

    def broadcast(self, value: float) -> float:
        """Return rank 0's value on every rank once all ranks have called this.

        It is a sum, because the root of a broadcast does not wait for the others.
        """
        return self.sum([value if dist.get_rank() == 0 else 0.0])[0]

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums of the values over all ranks."""
        numbers = torch.tensor(values, dtype=torch.float64, device=self._number_device)
        dist.all_reduce(numbers)
        return [float(number) for number in numbers.cpu()]

    def all_reduce_buffers(self, sizes_bytes: list[int]) -> None:
        """All-reduce one float32 buffer of each size, all of them in flight at once, as DDP does with its buckets."""
        key = tuple(sizes_bytes)
        if key not in self._buffers:
            self._buffers[key] = [torch.zeros(max(1, size // 4), device=self.device) for size in sizes_bytes]
        pending = [dist.all_reduce(buffer, async_op=True) for buffer in self._buffers[key]]
        for work in pending:
            work.wait()

    def leave(self) -> None:
        """Leave the group. May be called twice."""
        self._buffers.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


def count_messages() -> int:
    """Return the number of operations that the default group, if there is one, has begun, whoever has called them."""
    group = dist.group.WORLD
    return 0 if group is None else int(group._get_sequence_number_for_group())


def choose_bound_device(backend: str, device: torch.device) -> torch.device | None:
    """Return the device that all tensors of the group have to be on: NCCL takes those of its GPU only, whereas over
    Gloo numbers and objects can stay on the CPU (None)."""
    return device if backend == "nccl" else None


def _open_store(rank: int, size: int, timeout: timedelta) -> dist.TCPStore:
    """Open the store through which the ranks meet. env:// would do the same, but listen on all interfaces of rank 0's
    host and serve any host that reaches it."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank != 0:
        return dist.TCPStore(host, port, size, is_master=False, timeout=timeout)
    descriptor = listen_for_ranks(port).detach()  # the store closes it
    return dist.TCPStore(host, port, size, is_master=True, timeout=timeout, master_listen_fd=descriptor)


class TorchCollective:
    """One collective operation, done once per call; in place for all_reduce, reduce and broadcast, as in training.

    Its float32 buffers are `full` with the requested size, this rank's `part` of it, and an `output` of the full size.
    """

    def __init__(
        self, name: str, size_bytes: int, device: torch.device, among: dist.ProcessGroup | None = None
    ) -> None:
        """Operations with parts are of equal ones, at least of one number each. `among` are the ranks that take part,
        by default all of them; operations with a root need all."""
        ranks = dist.get_world_size(among)
        self.name, self._rank, self._ranks, self._among = name, dist.get_rank(among), ranks, among
        unit = ranks if name in OPERATIONS_WITH_PARTS else 1
        count = max(size_bytes // (FLOAT_BYTES * unit), 1) * unit
        self._full = _allocate_floats(count, device)
        self._part = _allocate_floats(count // ranks if name in OPERATIONS_WITH_PARTS else 0, device)
        self._output = _allocate_floats(count if name == "all_to_all" else 0, device)
        # Unbound: a bound method would be a reference cycle, which frees the buffers late.
        self._run: Callable[[TorchCollective], object] = getattr(TorchCollective, f"_{name}")

    def __call__(self) -> None:
        self._run(self)

    def put(self, values: Callable[[int], np.ndarray]) -> None:
        """Fill what this rank sends with `values` of its rank, for a check of the results."""
        sends_part = self.name in ("all_gather", "gather")
        target = self._part if sends_part else self._full
        target.copy_(torch.from_numpy(values(self._rank)))

    def results(self) -> dict[int, np.ndarray]:
        """Return the operation's result by this rank; nothing where only the root has one."""
        if self.name in ("reduce", "gather") and self._rank != ROOT:
            return {}
        outputs = {"reduce_scatter": self._part, "scatter": self._part, "all_to_all": self._output}
        return {self._rank: outputs.get(self.name, self._full).cpu().numpy().copy()}

    def _parts(self) -> list[Tensor]:
        return list(self._full.chunk(self._ranks))

    def _all_reduce(self) -> None:
        dist.all_reduce(self._full, group=self._among)

    def _reduce(self) -> None:
        dist.reduce(self._full, dst=ROOT)

    def _broadcast(self) -> None:
        dist.broadcast(self._full, src=ROOT)

    def _all_gather(self) -> None:
        all_gather(self._full, self._part, group=self._among)

    def _reduce_scatter(self) -> None:
        reduce_scatter(self._part, self._full, group=self._among)

    def _gather(self) -> None:
        dist.gather(self._part, self._parts() if self._rank == ROOT else None, dst=ROOT)

    def _scatter(self) -> None:
        dist.scatter(self._part, self._parts() if self._rank == ROOT else None, src=ROOT)

    def _all_to_all(self) -> None:
        dist.all_to_all_single(self._output, self._full, group=self._among)


def _allocate_floats(count: int, device: torch.device) -> Tensor:
    # Filled, so that it has memory of its own: all pages that were never written map to one zero page.
    return torch.empty(count, device=device).fill_(0.0)


def build_torch_collective(group: TorchGroup, name: str, size_bytes: int) -> TorchCollective:
    """Build a collective operation of all ranks and run it once; raises NotMeasured as build_torch_collectives does."""
    return build_torch_collectives(group, [(name, size_bytes)])[0]


def build_torch_collectives(
    group: TorchGroup, messages: Sequence[tuple[str, int]], choose_ranks: ChooseRanks = lambda name: None
) -> list[TorchCollective]:
    """Build an operation for the name and bytes of each message, the same for equal ones, and run each once.

    `choose_ranks` returns the ranks that take part in an operation of that name, None for all. Raises NotMeasured on
    all ranks if the backend lacks an operation or any rank lacks memory on its GPU.
    """
    distinct = dict.fromkeys(messages)  # in one order on all ranks
    total = sum(size for _, size in distinct)
    actions = create_on_all_ranks(
        lambda: {
            (name, size): TorchCollective(name, size, group.device, choose_ranks(name)) for name, size in distinct
        },
        group.sum,
        (torch.cuda.OutOfMemoryError,),
        f"buffers of {total} bytes do not fit into the memory that training left on the GPUs",
    )
    for (name, _), action in actions.items():
        try:
            action()
        except (RuntimeError, NotImplementedError) as error:
            raise not_measured_if_unsupported(error, f"{group.backend} of PyTorch {torch.__version__}", name) from error
    return [actions[message] for message in messages]


class MessageLog:
    """The messages of one step as (collective operation, bytes of its full tensor), in the order of sending; those
    outside of a step are not recorded."""

    def __init__(self) -> None:
        self.last_step: list[tuple[str, int]] = []
        self._current: list[tuple[str, int]] | None = None  # None: no step is running
        self._replays: dict[tuple[int, ...], list[TorchCollective]] = {}

    def begin_step(self) -> None:
        self._current = []

    def end_step(self) -> None:
        self.last_step, self._current = self._current or [], None

    def add(self, kind: str, *full: Tensor) -> None:
        if self._current is not None:
            self._current.append((kind, sum(tensor.numel() * tensor.element_size() for tensor in full)))

    def sizes(self) -> list[int]:
        return [size for _, size in self.last_step]

    def replay(self, sizes: list[int], group: TorchGroup, choose_ranks: ChooseRanks = lambda kind: None) -> None:
        """Send messages of these sizes one after the other, as in a step; as all-gathers if they are not those of the
        last step. `choose_ranks` returns the ranks of an operation, None for all."""
        key = tuple(sizes)
        if key not in self._replays:
            messages = self.last_step if sizes == self.sizes() else [("all_gather", size) for size in sizes]
            self._replays[key] = build_torch_collectives(group, messages, choose_ranks)
        for action in self._replays[key]:
            action()

    def close(self) -> None:
        """Free the buffers of replays."""
        self._replays.clear()
