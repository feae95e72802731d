"""The process group of torch.distributed: joining it, small messages, and single collective operations."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from scalebench.strategies.base import Unsupported, create_on_all_ranks, listen_for_ranks, not_measured_if_unsupported

ROOT = 0
# The first names are those of newer PyTorch, which warns about the old ones.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
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
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            backend,
            store=_open_store(rank, size, timeout),
            rank=rank,
            world_size=size,
            timeout=timeout,
            device_id=bound_device,  # NCCL creates the one communicator now, not in step 1
        )
        # Until this object goes: after the last step a thread of Gloo may hold the callback of a hook, and with it the
        # group, a moment longer than all others. The group would then end in that thread, wait for it, and abort.
        self._group = dist.group.WORLD

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

    def leave(self) -> None:
        """Leave the group. May be called twice."""
        if dist.group.WORLD is self._group:
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


def build_mesh(axes: Mapping[str, int], device: str, timeout_s: float) -> DeviceMesh:
    """Arrange all processes along one or two axes, consecutive ranks along the last one. All of them have to call this
    at the same time."""
    names = tuple(axes)
    if len(names) == 1:
        # The group itself: where there are GPUs, some versions of PyTorch make another one beside Gloo, over NCCL.
        return DeviceMesh.from_group(dist.group.WORLD, device, mesh_dim_names=names)
    ranks = torch.arange(math.prod(axes.values())).view(*axes.values())
    # With the backend of the default group, and not with PyTorch's own limit of ten minutes.
    timeout = timedelta(seconds=timeout_s)
    groups = [dist.new_subgroups_by_enumeration(each.tolist(), timeout=timeout)[0] for each in (ranks.t(), ranks)]
    return DeviceMesh.from_group(groups, device, ranks, mesh_dim_names=names)


class Message(NamedTuple):
    """One message of a step: a collective operation, and the bytes of its full tensor."""

    kind: str
    size_bytes: int
    dtype: torch.dtype = torch.float32
    root: int = ROOT  # or, of send and receive, the other rank of the two
    among: dist.ProcessGroup | None = None  # the ranks that take part, by default all; reduce and broadcast need all
    is_activation: bool = False  # of DTensor's functional collectives


class TorchCollective:
    """One collective operation, done once per call; in place for all_reduce, reduce and broadcast, as in training.

    Its buffers are `full` with the size of the message, this rank's `part` of it, and an `output` of the full size.
    """

    def __init__(self, message: Message, device: torch.device) -> None:
        """Operations with parts are of equal ones, at least of one number each."""
        self.message = message
        self._rank, self._ranks = dist.get_rank(message.among), dist.get_world_size(message.among)
        has_parts = message.kind in OPERATIONS_WITH_PARTS
        unit = self._ranks if has_parts else 1
        count = max(message.size_bytes // (message.dtype.itemsize * unit), 1) * unit
        counts = count, count // unit if has_parts else 0, count if message.kind == "all_to_all" else 0
        self._full, self._part, self._output = (_allocate(each, message.dtype, device) for each in counts)

    def __call__(self) -> None:
        work = self.start(async_op=False)
        if work is not None:
            work.wait()

    def start(self, async_op: bool = True) -> dist.Work | None:
        """Start the operation, whose end the result waits for. A send is always asynchronous, a receive never."""
        full, part, root = self._full, self._part, self.message.root
        options = {"group": self.message.among, "async_op": async_op}
        match self.message.kind:
            case "all_reduce":
                return dist.all_reduce(full, **options)
            case "reduce":
                return dist.reduce(full, dst=root, **options)
            case "broadcast":
                return dist.broadcast(full, src=root, **options)
            case "all_gather":
                return all_gather(full, part, **options)
            case "reduce_scatter":
                return reduce_scatter(part, full, **options)
            case "gather":
                return dist.gather(part, self._parts_of(root), dst=root, **options)
            case "scatter":
                return dist.scatter(part, self._parts_of(root), src=root, **options)
            case "all_to_all":
                return dist.all_to_all_single(self._output, full, **options)
            case "send":
                return dist.isend(full, group=self.message.among, group_dst=root)
            case "receive":
                dist.recv(full, group=self.message.among, group_src=root)
                return None
        raise ValueError(self.message.kind)

    def _parts_of(self, root: int) -> list[Tensor] | None:
        return list(self._full.chunk(self._ranks)) if self._rank == root else None


def _allocate(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Filled, so that it has memory of its own: all pages that were never written map to one zero page.
    return torch.empty(count, dtype=dtype, device=device).fill_(0.0)


def build_torch_collective(group: TorchGroup, message: Message) -> TorchCollective:
    """Build a collective operation of all ranks and run it once; raises NotMeasured as build_replay does."""
    return _build_collectives(group, [(0, message)])[0, message]


def build_replay(group: TorchGroup, messages: Sequence[Message], at_once: bool) -> Callable[[], None]:
    """Return an action, which was tried, that sends these messages: one after the other, or with `at_once` all in
    flight that are of one kind and follow each other, as DistributedDataParallel sends its buckets. What is sent to one
    other rank alone is waited for at the end.

    Raises NotMeasured on all ranks if the backend lacks an operation or any rank lacks memory on its GPU.
    """
    runs = [list(run) for _, run in groupby(messages, attrgetter("kind"))] if at_once else [[each] for each in messages]
    places = [list(enumerate(run)) for run in runs]  # what is in flight together has buffers of its own
    collectives = _build_collectives(group, [place for run in places for place in run])

    def replay() -> None:
        sending: list[dist.Work | None] = []
        for run in places:
            pending = [collectives[place].start(async_op=at_once) for place in run]
            if run[0][1].kind == "send":
                sending += pending
                continue
            for work in pending if at_once else ():
                work.wait()
        for work in sending:
            work.wait()

    return replay


def _build_collectives(
    group: TorchGroup, places: Sequence[tuple[int, Message]]
) -> dict[tuple[int, Message], TorchCollective]:
    distinct = dict.fromkeys(places)  # in one order on all ranks
    collectives = create_on_all_ranks(
        lambda: {place: TorchCollective(place[1], group.device) for place in distinct},
        group.sum,
        (torch.cuda.OutOfMemoryError,),
        f"buffers of {sum(message.size_bytes for _, message in distinct)} bytes do not fit into the memory that "
        "training left on the GPUs",
    )
    for (_, message), action in collectives.items():
        try:
            action()
        except (RuntimeError, NotImplementedError) as error:
            library = f"{group.backend} of PyTorch {torch.__version__}"
            raise not_measured_if_unsupported(error, library, message.kind) from error
    return collectives
