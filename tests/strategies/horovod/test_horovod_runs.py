"""Complete runs with Horovod's options and with its timeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scalebench.core.spec import RunSpec
from scalebench.runner.parent import run_spec
from scalebench.workloads import datasets

pytestmark = [pytest.mark.real, pytest.mark.slow]

MPI, GLOO, TF_MPI = "horovod_mpi", "horovod_gloo", "horovod_tensorflow_mpi"
CHOICES = [
    (MPI, "strategy.options.op=adasum", "mpi"),
    (TF_MPI, "strategy.options.op=adasum", "mpi"),
    (TF_MPI, "strategy.options.compression=fp16", "mpi"),
    (GLOO, "strategy.options.autotune=true", "gloo"),
    (GLOO, "strategy.options.cache_capacity=0", "gloo"),
    (GLOO, "train.precision=bfloat16", "gloo"),
    (GLOO, "train.precision=float16", "gloo"),
    (GLOO, "train.compile=true", "gloo"),
    ("lightning_horovod", "strategy.options.compression=fp16", "gloo"),
]


@pytest.mark.parametrize(("strategy", "word", "backend"), CHOICES)
def test_options(strategy: str, word: str, backend: str, spec_of: Callable[..., RunSpec], tmp_path: Path) -> None:
    spec = spec_of(strategy, word, f"dataset.cache={tmp_path / 'data'}")
    datasets.prepare(spec.config)
    result = run_spec(spec, tmp_path / "run")
    assert (result.status, result.reason) == ("ok", None)
    assert result.scale.backend_used == backend
    sent = sum(result.sync.message_bytes)
    assert result.workload.gradient_bytes is not None
    assert sent == result.workload.gradient_bytes / (2 if "fp16" in word else 1)
    first, last = result.ranks[0].warmup_losses[0], result.quality.final_loss
    assert first is not None and last is not None and last < first


def test_messages_are_unknown_with_a_cycle_time(spec_of: Callable[..., RunSpec], tmp_path: Path) -> None:
    words = ["strategy.options.cycle_time_ms=5.0", "measure.timeline=true", f"dataset.cache={tmp_path / 'data'}"]
    spec = spec_of(GLOO, *words)
    datasets.prepare(spec.config)
    result = run_spec(spec, tmp_path / "run")
    assert (result.status, result.scale.backend_used, result.sync.message_bytes) == ("ok", "gloo", [])
    assert result.sync.timeline is not None and result.sync.timeline.file is None
    assert "forgets its fusion threshold" in (result.sync.timeline.reason or "")


@pytest.mark.parametrize("strategy", [MPI, "horovod_tensorflow_gloo", "lightning_horovod"])
def test_timeline(strategy: str, spec_of: Callable[..., RunSpec], tmp_path: Path) -> None:
    spec = spec_of(strategy, "measure.timeline=true", f"dataset.cache={tmp_path / 'data'}")
    datasets.prepare(spec.config)
    result = run_spec(spec, tmp_path / "run")
    actual = result.sync.timeline
    assert (result.status, result.reason) == ("ok", None) and actual is not None
    assert (actual.file, actual.reason, actual.steps) == ("timeline.json", None, 20)
    events = json.loads((tmp_path / "run" / "timeline.json").read_text())
    gradients = sum(event.get("name") == f"{(result.scale.backend_used or '').upper()}_ALLREDUCE" for event in events)
    assert gradients == 20 * 8  # arrays of the materials CNN
    for phase_s in (actual.negotiate_s, actual.memcpy_s, actual.allreduce_s):
        assert phase_s is not None and 0 < phase_s < 60


def test_strategies_without_a_timeline_have_a_reason(spec_of: Callable[..., RunSpec], tmp_path: Path) -> None:
    spec = spec_of("ddp_gloo", "measure.timeline=true", f"dataset.cache={tmp_path / 'data'}")
    datasets.prepare(spec.config)
    actual = run_spec(spec, tmp_path / "run").sync.timeline
    assert actual is not None and (actual.file, actual.reason) == (None, "ddp_gloo has no timeline of its own")
