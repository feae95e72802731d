"""baseline=ladder: the runs that sweeps in strong scaling add at the batch of a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hydra.core.global_hydra import GlobalHydra

from scalebench.config.compose import compose
from scalebench.core.errors import InputError
from scalebench.core.machine import machine
from scalebench.sweeps import plan

BASE = ["hardware=cpu", "dataset.size=1000", "strategy=ddp_gloo"]
Told = tuple[str, int, int, str, bool]


@pytest.fixture(autouse=True)
def cpu_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    yield
    GlobalHydra.instance().clear()


def planned(*words: str) -> list[Told]:
    """(strategy, devices, batch of each, scaling, whether it was added)"""
    values = [[f"{word.partition('=')[0]}={v}" for v in word.partition("=")[2].split(",")] for word in words]
    lines = [[*BASE, *line] for line in itertools.product(*values)]
    return [
        (job.spec.config.strategy.name, job.spec.gpus, job.spec.batch_per_device, job.spec.config.scaling, job.added)
        for job in plan.plan(lines, compose)
    ]


STRONG = ("scaling=strong", "train.global_batch=20")


def test_strong_scaling_gets_both_at_the_local_batch() -> None:
    assert planned(*STRONG, "baseline=ladder", "gpus=4") == [
        ("bare_torch", 1, 20, "strong", True),
        ("ddp_gloo", 1, 20, "strong", True),
        ("bare_torch", 1, 5, "weak", True),
        ("ddp_gloo", 1, 5, "weak", True),
        ("ddp_gloo", 4, 5, "strong", False),
    ]


def test_none_for_a_batch_that_no_device_can_have() -> None:
    assert [run[:3] for run in planned(*STRONG, "baseline=ladder", "gpus=3")] == [
        ("bare_torch", 1, 20), ("ddp_gloo", 1, 20), ("ddp_gloo", 3, 7),
    ]  # fmt: skip


@pytest.mark.parametrize("words", [("baseline=ladder",), (*STRONG, "baseline=auto")])
def test_weak_scaling_and_auto_add_what_they_always_did(words: tuple[str, ...]) -> None:
    added = [run for run in planned(*words, "gpus=2") if run[4]]
    assert [run[0] for run in added] == ["bare_torch", "ddp_gloo"]


def test_another_word_is_refused() -> None:
    with pytest.raises(InputError, match="ladder"):
        planned("baseline=lader", "gpus=2")
