"""Tries of a search for the largest batch whose ranks are stood in for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scalebench.launchers import local
from scalebench.launchers.watch import Ended
from scalebench.measure.progress import Progress
from scalebench.records import write_json
from scalebench.results import RankRecord, Result
from scalebench.spec import RunSpec, read_spec
from scalebench.train_spec import TrainSpec
from scalebench.worker import rank_path
from tests.helpers import rank, simulated_spec

SEARCH = {"search": "max_batch", "memory_limit_bytes": 10**9, "probes": True, "monitor": True, "evaluate": True}
Ends = Callable[[RunSpec, Path], Ended]


def ok(spec: RunSpec, folder: Path) -> Ended:
    for k in range(spec.processes):
        samples = [spec.batch_per_device * 2] * 4
        write_json(rank_path(folder, k), asdict(rank(k, [1.0] * 4, samples, rss_anon_peak_bytes=spec.global_batch + k)))
    return Ended([0] * spec.processes, 5.0, 2.0)


def oom(spec: RunSpec, folder: Path) -> Ended:
    record = RankRecord(0, "node", 1, status="oom", reason="out of memory: MemoryError", failed_at_s=1.0)
    write_json(rank_path(folder, 0), asdict(record))
    return Ended([1] + [None] * (spec.processes - 1), 5.0, 2.0, [0])


def aborted(words: str) -> Ends:
    def end(spec: RunSpec, folder: Path) -> Ended:
        (folder / "rank1.log").write_text(f"begun\n{words}\n")
        return Ended([None, -6], 5.0, 2.0, [1])

    return end


def hung(words: str) -> Ends:
    def end(spec: RunSpec, folder: Path) -> Ended:
        (folder / "rank0.log").write_text(f"{words}\n")
        return Ended([None, None], 5.0, 2.0, timeout="no rank made progress for 9 s (measure.hang_s)", timeout_at_s=9.0)

    return end


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[RunSpec]]:
    """Has every try end as `beyond` says for more than `border` samples per device, and well up to it."""

    def place(border: int, beyond: Ends = oom) -> list[RunSpec]:
        tries: list[RunSpec] = []

        def launch(spec: RunSpec, folder: Path, run_id: str, on_look: Any, module: str) -> Ended:
            assert read_spec(folder) == spec
            assert folder.name.removesuffix("_again") == f"try_{spec.batch_per_device}"
            tries.append(spec)
            on_look([Progress(0, 1, "measure", 0.0)])
            return (ok if spec.batch_per_device <= border else beyond)(spec, folder)

        monkeypatch.setattr(local, "launch", launch)
        return tries

    return place


def searching(gpus: int = 2, batch: int = 10, measure: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    changes = {"train": TrainSpec(batch_per_device=batch), "size": 4000, **changes}
    return simulated_spec(gpus, measure=SEARCH | (measure or {}), **changes)


def tried(result: Result) -> list[tuple[int, str]]:
    assert result.quality.max_batch is not None
    return [(each.batch_per_device, each.status) for each in result.quality.max_batch.tried]
