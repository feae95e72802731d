"""Tries of a search for the largest batch whose ranks are stood in for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scalebench.core.result import RankRecord
from scalebench.core.run_folder import RUN_ID_VARIABLE, rank_record_path, write_rank_file
from scalebench.core.spec import RunSpec, TrainSpec, read_spec
from scalebench.measure.progress import RankProgress
from scalebench.runner.launchers import local
from scalebench.runner.launchers.supervise import GroupExit
from tests.builders.runs import rank, simulated_spec

SEARCH = {"search": "max_batch", "memory_limit_bytes": 10**9, "probes": True, "monitor": True, "evaluate": True}
Ends = Callable[[RunSpec, Path], GroupExit]


def ok(spec, folder):
    for k in range(spec.processes):
        samples = [spec.batch_per_device * 2] * 4
        write_rank_file(
            rank_record_path(folder, k), rank(k, [1.0] * 4, samples, rss_anon_peak_bytes=spec.global_batch + k)
        )
    return GroupExit([0] * spec.processes, 5.0, 2.0)


def oom(spec, folder):
    record = RankRecord(0, "node", 1, status="oom", reason="out of memory: MemoryError", failed_at_s=1.0)
    write_rank_file(rank_record_path(folder, 0), record)
    return GroupExit([1] + [None] * (spec.processes - 1), 5.0, 2.0, [0])


def aborted(words):
    def end(spec, folder):
        (folder / "rank1.log").write_text(f"begun\n{words}\n")
        return GroupExit([None, -6], 5.0, 2.0, [1])

    return end


def hung(words):
    def end(spec, folder):
        (folder / "rank0.log").write_text(f"{words}\n")
        return GroupExit(
            [None, None], 5.0, 2.0, timeout="no rank made progress for 9 s (measure.hang_s)", timeout_at_s=9.0
        )

    return end


@pytest.fixture
def stand_in(monkeypatch):
    """Has every try end as `beyond` says for more than `border` samples per device, and well up to it."""

    def place(border, beyond=oom):
        tries = []

        def launch(request):
            spec, folder = request.spec, request.folder
            assert read_spec(folder) == spec
            assert folder.name.removesuffix("_again") == f"try_{spec.batch_per_device}"
            tries.append(spec)
            monkeypatch.setenv(RUN_ID_VARIABLE, request.run_id)  # the ranks have it, and this is them
            request.on_progress([RankProgress(0, 1, "measure", 0.0)])
            return (ok if spec.batch_per_device <= border else beyond)(spec, folder)

        monkeypatch.setattr(local, "launch", launch)
        return tries

    return place


def searching(gpus=2, batch=10, measure=None, **changes):
    changes = {"train": TrainSpec(batch_per_device=batch), "size": 4000, **changes}
    return simulated_spec(gpus, measure=SEARCH | (measure or {}), **changes)


def tried(result):
    assert result.quality.max_batch is not None
    return [(each.batch_per_device, each.status) for each in result.quality.max_batch.trials]
