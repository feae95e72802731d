"""One process tries batch after batch, as on a GPU: on a CPU a stand-in raises CUDA's error above a border."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from scalebench.core.result import RankRecord
from scalebench.core.run_folder import rank_record_path, read_rank_file, try_folder
from scalebench.measure.progress import ProgressFile, read_progress
from scalebench.runner.batch_tries import TIMED_STEPS, can_try_in_one_process, try_batches
from scalebench.strategies.torch.base import TorchStrategy
from tests.strategies.torch.conftest import spec_of

BORDER = 25


@pytest.fixture
def allocator(monkeypatch):
    """Let a step of more than BORDER samples fail as CUDA's allocator does; return the tensors that such steps had,
    and how many of them were still there when the cache was emptied."""
    tensors, seen = [], []
    train_batch = TorchStrategy.train_batch

    def step(self, batch):
        if batch.samples > BORDER:
            activations = torch.ones(batch.samples)
            tensors.append(weakref.ref(activations))
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return train_batch(self, batch)

    monkeypatch.setattr(TorchStrategy, "train_batch", step)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(sum(each() is not None for each in tensors)))
    return tensors, seen


def searching(name, tmp_path, **changes):
    spec = replace(spec_of(name, **changes), batch_per_device=10, global_batch=10)
    spec.config.train.batch_per_device, spec.config.dataset.size = 10, 400
    folder = tmp_path / "run"
    folder.mkdir()
    return spec, ProgressFile(folder, 0, 1)


@pytest.mark.parametrize("name", ["bare_torch", "fsdp_gloo"])
def test_a_process_finds_the_largest_batch(name, strategy, allocator, tmp_path):
    """Each try joins its group, and what a failed step held has gone before the allocator gives back its cache."""
    adapter = strategy("bare_torch")
    spec, progress = searching(name, tmp_path)
    tensors, seen = allocator
    gc.disable()
    try:
        try_batches(spec, adapter, RankRecord(0, "node", 1), progress)
    finally:
        gc.enable()
    records = {
        batch: read_rank_file(rank_record_path(try_folder(progress.folder, batch), 0), RankRecord)
        for batch in (10, 20, 40, 30, 25, 27, 26)
    }
    assert {batch: record.status for batch, record in records.items()} == {
        10: "ok", 20: "ok", 40: "oom", 30: "oom", 25: "ok", 27: "oom", 26: "oom",
    }  # fmt: skip
    assert sorted(records, key=lambda batch: records[batch].marks_s["launch"]) == [*records], "in this order"
    assert records[40].reason == "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert max(records[25].block_samples) == 25 and len(records[25].block_s) == TIMED_STEPS
    assert len(tensors) == 4 and seen == [0] * len(records)
    assert read_progress(progress.folder, 0).phase == "try 7: batch 26 per device"


def test_a_try_that_fails_otherwise_ends_the_process(strategy, monkeypatch, tmp_path):
    adapter = strategy("bare_torch")
    spec, progress = searching("bare_torch", tmp_path)

    def fail(self, batch):
        raise RuntimeError("a bug")

    monkeypatch.setattr(TorchStrategy, "train_batch", fail)
    with pytest.raises(RuntimeError, match="batch 10 per device: RuntimeError: a bug"):
        try_batches(spec, adapter, RankRecord(0, "node", 1), progress)
    assert list(progress.folder.glob("try_*")) == [], "the parent tries it again"


def test_one_process_tries_all_batches_of_pytorch_on_one_gpu():
    spec = replace(spec_of("bare_torch"), device="cuda")
    assert can_try_in_one_process(spec)
    assert not can_try_in_one_process(replace(spec, device="cpu"))
    assert not can_try_in_one_process(replace(spec_of("ddp", 2), device="cuda"))
    assert not can_try_in_one_process(replace(spec_of("bare_torch", train__compile="default"), device="cuda"))
    assert not can_try_in_one_process(replace(spec_of("bare_tensorflow"), device="cuda"))
