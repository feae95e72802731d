"""The process group and collective operations of one rank; the ranks' parts in transfers and the transfers that are not
possible, without real GPUs; and work of known length, with a GPU that only counts."""

import gc
import socket
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from scalebench.strategies.base import NotMeasured, Unsupported
from scalebench.strategies.torch import bandwidth
from scalebench.strategies.torch import group as torch_group
from scalebench.strategies.torch.bandwidth import TransferRank, build_transfer
from scalebench.strategies.torch.devices import tunes_convolutions
from scalebench.strategies.torch.group import Message, TorchCollective, TorchGroup
from scalebench.strategies.torch.reference_work import ReferenceWork
from tests.strategies.builders import run_training
from tests.strategies.torch.conftest import spec_of


def test_buffers_of_a_collective_are_freed_at_once(strategy):
    """And not by the garbage collector: those of the next size need the memory."""
    strategy("ddp_gloo")
    action = TorchCollective(Message("all_to_all", 64), torch.device("cpu"))
    buffers = [weakref.ref(action._full), weakref.ref(action._output)]
    gc.disable()
    try:
        del action
        assert [buffer() for buffer in buffers] == [None, None]
    finally:
        gc.enable()


def test_operations_and_memory_that_are_lacking_are_not_measured(strategy, monkeypatch):
    def lacks(*words, **others):
        raise RuntimeError("ProcessGroupGloo does not support reduce")

    monkeypatch.setattr(dist, "reduce", lacks)
    group = strategy("ddp_gloo").group
    with pytest.raises(NotMeasured, match=r"^gloo of PyTorch .* has no reduce: ProcessGroupGloo does not support"):
        torch_group.build_torch_collective(group, Message("reduce", 64))

    def full(*words):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch_group, "_allocate", full)
    with pytest.raises(NotMeasured, match="buffers of 64 bytes do not fit"):
        torch_group.build_torch_collective(group, Message("reduce", 64))


@pytest.mark.gpu
def test_a_copy_to_the_gpu_of_another_rank_that_has_no_room_is_not_measured(strategy, monkeypatch):
    """The copying process takes memory of its own on the other GPU, which CUDA refuses with a RuntimeError."""

    def fail(*words):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *devices: True)
    monkeypatch.setattr(bandwidth, "_allocate_bytes", fail)
    rank = TransferRank(spec_of("ddp_gloo", 2), 0, torch.device("cuda", 0), None)
    with pytest.raises(NotMeasured, match=r"buffers of 64 bytes do not fit .* or one lets a single process in"):
        build_transfer(rank, "peer_one_way", 0, 1, 64)


def test_cudnn_tunes_only_for_full_batches_of_gpus(strategy, source):
    assert tunes_convolutions("cuda", True)
    assert not tunes_convolutions("cuda", False) and not tunes_convolutions("cpu", True)
    adapter = strategy("bare_torch")
    run_training(adapter, source(), 1)
    assert not torch.backends.cudnn.benchmark and "convolutions" not in adapter.settings_used()


def test_a_taken_port_is_named(strategy, monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(RuntimeError, match=f"^port {port} of the rendezvous was taken by another program"):
            strategy("ddp_gloo")
    if not dist.is_nccl_available():
        with pytest.raises(Unsupported, match="without NCCL"):
            TorchGroup("nccl", torch.device("cpu"), 0, 1, 10.0)


def test_a_callback_that_outlives_the_group_does_not_abort_the_process(strategy):
    adapter = strategy("independent_torch")
    waits, left, freed, main = threading.Event(), threading.Event(), threading.Event(), threading.get_ident()

    def reduce_with_callback():  # the callback holds the group, as that of a hook does
        own = dist.group.WORLD

        def wait(reduced):
            if threading.get_ident() != main:  # else the operation was over before it had a callback
                waits.set()
                assert left.wait(60)
            return own.size()

        weakref.finalize(wait, freed.set)
        return dist.all_reduce(torch.ones(2), group=own, async_op=True).get_future().then(wait)

    size = reduce_with_callback()
    while not waits.wait(1):
        size = reduce_with_callback()
    freed.clear()  # of a callback before
    adapter.close()
    left.set()
    assert size.wait() == 1
    del size
    assert freed.wait(60), "by a thread of Gloo, while the strategy still has its group"


def transfer_rank(rank, ranks=3, kind="cpu", backend="gloo", nodes=()):
    """Return a rank of a group without processes."""
    spec = spec_of("ddp_gloo", ranks)
    spec.device = kind
    for place, node in zip(spec.places, nodes, strict=False):
        place.node = node
    device = torch.device("cpu") if kind == "cpu" else torch.device("cuda", rank)
    group = object.__new__(TorchGroup)
    group.backend, group.sum = backend, lambda values: values
    return TransferRank(spec, rank, device, group)


@pytest.mark.parametrize(
    ("pattern", "pairs"),
    [("one_way", [(1, 2)]), ("latency", [(1, 2)]), ("both_ways", [(1, 2), (2, 1)]), ("ring", [(0, 1), (1, 2), (2, 0)])],
)
def test_who_sends_to_whom(pattern, pairs):
    assert bandwidth._list_pairs(transfer_rank(0), pattern, 1, 2) == pairs


@pytest.mark.parametrize("kind", ["memcpy", "memcpy_all"])
def test_a_copy_in_host_memory_copies(kind, monkeypatch):
    made, buffer = [], bandwidth._allocate_bytes
    monkeypatch.setattr(bandwidth, "_allocate_bytes", lambda *words: made.append(buffer(*words)) or made[-1])
    action = build_transfer(transfer_rank(1), kind, None if kind.endswith("_all") else 1, 1, 4096)
    sent, received = made
    assert sent.numel() == received.numel() == 4096 and sent.data_ptr() != received.data_ptr()
    sent.fill_(7)
    action()
    assert bool((received == 7).all())
    for other, source, target in (("send_one_way", 1, 2), ("memcpy", 1, 1)):  # in which this rank has no part
        assert build_transfer(transfer_rank(0), other, source, target, 1024) is bandwidth._do_nothing


def test_sends_without_a_suitable_group_are_not_measured(strategy):
    """A single device without a group can still copy within host memory."""
    without_group = transfer_rank(0)
    without_group.group = None
    with pytest.raises(NotMeasured, match=r"^ddp_gloo has no group of torch"):
        build_transfer(without_group, "send_one_way", 0, 1, 1024)
    with pytest.raises(NotMeasured, match="gloo sends no buffers of a GPU"):
        build_transfer(transfer_rank(0, kind="cuda"), "send_ring", None, None, 1024)
    bare = strategy("bare_torch")
    bare.transfer("memcpy", 0, 0, 4096)()
    with pytest.raises(NotMeasured, match="bare_torch has no collective operations of its own"):
        bare.collective("all_reduce", 4)


PEER, ALL = {(0, 1), (1, 2)}, (0, 0, 0)


@pytest.mark.parametrize(("kind", "source", "target", "rank", "nodes", "reason"), [
    ("peer_one_way", 0, 1, 0, ALL, None),
    ("peer_one_way", 0, 2, 0, ALL, "CUDA gives the GPU of rank 0 no peer access to that of rank 2"),
    ("peer_both_ways", 0, 1, 0, ALL, None),
    ("peer_both_ways", 0, 1, 1, ALL, "CUDA gives the GPU of rank 1 no peer access to that of rank 0"),
    ("peer_ring", None, None, 2, ALL, "CUDA gives the GPU of rank 2 no peer access to that of rank 0"),
    ("staged_one_way", 0, 2, 0, ALL, None),
    ("staged_ring", None, None, 2, ALL, None),
    ("host_to_device", 0, 0, 0, ALL, None),
    ("peer_one_way", 0, 1, 0, (0, 0, 1), None),
    ("peer_one_way", 0, 2, 0, (0, 0, 1), "of its own node only"),
    ("staged_both_ways", 2, 1, 0, (0, 0, 1), "of its own node only"),
    ("peer_ring", None, None, 0, (0, 0, 1), "of its own node only"),
])  # fmt: skip
def test_copies_without_access_are_not_measured(monkeypatch, kind, source, target, rank, nodes, reason):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a.index, b.index) in PEER)
    problem = find_problem(kind, source, target, rank, nodes)
    assert problem == reason or reason in problem
    if kind == "staged_one_way":
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        assert find_problem(kind, 0, 1) == "the process of rank 0 does not see the GPU of rank 1"


def find_problem(kind, source, target, rank=0, nodes=()):
    try:
        bandwidth._check_possible(transfer_rank(rank, kind="cuda", backend="nccl", nodes=nodes), kind, source, target)
    except NotMeasured as reason:
        return str(reason)
    return None


CLOCK_HZ = 1.5e9


class CountingGpu:
    """A GPU whose kernels take no time: each adds its cycles to a clock, which events read in milliseconds."""

    def __init__(self, monkeypatch):
        gpu = self
        self.now_s, self.kernels = 0.0, 0

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
                self.at_s = None
                self.is_complete = False

            def record(self):
                self.at_s = gpu.now_s

            def synchronize(self):
                self.is_complete = True

            def elapsed_time(self, end):
                assert end.is_complete, "the GPU may not have reached the event yet"
                return float(1e3 * (end.at_s - self.at_s))

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)

    def sleep(self, cycles):
        assert isinstance(cycles, int)
        self.kernels += 1
        self.now_s += cycles / CLOCK_HZ


def work_on(kind):
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    return ReferenceWork(SimpleNamespace(device=device))


@pytest.mark.gpu
def test_a_sleep_is_as_long_as_requested(monkeypatch):
    gpu, work = CountingGpu(monkeypatch), work_on("cuda")
    sleep = work.make_sleep(0.01)
    kernels, start_s = gpu.kernels, gpu.now_s
    assert work.time_s(sleep, 20) == pytest.approx(0.2, rel=1e-6)
    assert gpu.now_s - start_s == pytest.approx(0.2, rel=1e-6), "by the GPU, too: a wrong unit of events would cancel"
    assert gpu.kernels == kernels + 20
    work = work_on("cpu")
    assert work.describe() is None and work.free_bytes() is None
    assert work.time_s(work.make_sleep(0.01), 3) >= 0.03


@pytest.mark.gpu
@pytest.mark.parametrize("size_bytes", [1, 251, 4096])
def test_all_bytes_arrive(size_bytes, monkeypatch):
    assert work_on("cpu").time_copy_s(size_bytes)[1]
    monkeypatch.setattr(torch.Tensor, "copy_", lambda target, source, non_blocking: target)
    assert work_on("cpu").time_copy_s(size_bytes)[1] == (size_bytes == 1), "the first byte of the pattern is 0"


@pytest.mark.gpu
def test_a_full_memory_is_an_error_and_is_freed(monkeypatch):
    """Nothing keeps the chunks that did fit."""
    assert "allocate" in str(work_on("cpu").exhaust_memory()), "of more memory than there is"
    alive = []

    class Chunk:
        def __init__(self, size, **others):
            if len(alive) == 3:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            alive.append(size)

        def __del__(self):
            alive.clear()

    monkeypatch.setattr(torch, "empty", Chunk)
    error = work_on("cpu").exhaust_memory()
    assert isinstance(error, torch.cuda.OutOfMemoryError) and error.__traceback__ is None
    assert not alive
    monkeypatch.setattr(torch, "empty", lambda size, **others: None)
    assert work_on("cpu").exhaust_memory() is None
