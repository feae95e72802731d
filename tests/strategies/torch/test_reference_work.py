"""Work of known length: CUDA's calls with a GPU that only counts, and the same calls on a CPU worker."""

from types import SimpleNamespace

import pytest
import torch

from scalebench.strategies.torch.reference_work import ReferenceWork

pytestmark = pytest.mark.gpu
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


@pytest.mark.parametrize("size_bytes", [1, 251, 4096])
def test_all_bytes_arrive(size_bytes, monkeypatch):
    assert work_on("cpu").time_copy_s(size_bytes)[1]
    monkeypatch.setattr(torch.Tensor, "copy_", lambda target, source, non_blocking: target)
    assert work_on("cpu").time_copy_s(size_bytes)[1] == (size_bytes == 1), "the first byte of the pattern is 0"


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
