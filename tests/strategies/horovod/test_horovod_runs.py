"""Complete runs with Horovod's options and with its timeline, from rank 0's weights, and of a rank that ends early."""

import json

import numpy as np
import pytest

from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.runner.parent import run_spec
from scalebench.workloads import datasets

pytestmark = [pytest.mark.real, pytest.mark.slow]
DIFFERENT_START = "tests.strategies.horovod.different_start_rank"

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


def run(spec, folder, **settings):
    datasets.prepare(spec.config)
    return run_spec(spec, folder / "run", **settings)


@pytest.mark.parametrize(("strategy", "word", "backend"), CHOICES)
def test_options(strategy, word, backend, spec_of, tmp_path):
    spec = spec_of(strategy, word)
    result = run(spec, tmp_path)
    assert (result.status, result.reason) == ("ok", None)
    assert result.scale.backend_used == backend
    sent = sum(result.sync.message_bytes)
    assert result.workload.gradient_bytes is not None
    assert sent == result.workload.gradient_bytes / (2 if "fp16" in word else 1)
    first, last = result.ranks[0].warmup_losses[0], result.quality.final_loss
    assert first is not None and last is not None and last < first


@pytest.mark.parametrize("strategy", [GLOO, MPI])
def test_fusion_threshold_with_a_cycle_time(strategy, spec_of, tmp_path):
    """Horovod would go on in another way after the restart that shows what it sends, or crash."""
    options = ["strategy.options.cycle_time_ms=5.0", "strategy.options.fusion_threshold_mb=0.2"]
    result = run(spec_of(strategy, *options, "measure.timeline=true"), tmp_path)
    assert (result.status, result.reason, result.scale.backend_used) == ("ok", None, None)
    assert result.sync.message_bytes == [] and result.sync.timeline is not None
    assert result.sync.timeline.allreduce_s is None and "cycle_time_ms" in str(result.sync.timeline.reason)


@pytest.mark.parametrize("strategy", [MPI, "horovod_tensorflow_gloo", "lightning_horovod"])
def test_timeline(strategy, spec_of, tmp_path):
    spec = spec_of(strategy, "measure.timeline=true")
    result = run(spec, tmp_path)
    actual = result.sync.timeline
    assert (result.status, result.reason) == ("ok", None) and actual is not None
    assert (actual.file, actual.reason, actual.steps) == ("timeline.json", None, 20)
    events = json.loads((tmp_path / "run" / "timeline.json").read_text())
    gradients = sum(event.get("name") == f"{(result.scale.backend_used or '').upper()}_ALLREDUCE" for event in events)
    assert gradients == 20 * 8  # arrays of the materials CNN
    for phase_s in (actual.negotiate_s, actual.memcpy_s, actual.allreduce_s):
        assert phase_s is not None and 0 < phase_s < 60


def test_strategies_without_a_timeline_have_a_reason(spec_of, tmp_path):
    spec = spec_of("ddp_gloo", "measure.timeline=true")
    actual = run(spec, tmp_path).sync.timeline
    assert actual is not None and (actual.file, actual.reason) == (None, "ddp_gloo has no timeline of its own")


@pytest.mark.parametrize("strategy", ["horovod_gloo", "horovod_tensorflow_mpi", "lightning_horovod"])
def test_all_ranks_start_from_the_weights_of_rank_0(strategy, spec_of, tmp_path):
    spec = spec_of(strategy)
    write_spec(spec, tmp_path)
    ended = launchers.launch(spec, tmp_path, "start", module=DIFFERENT_START)
    assert ended.exit_codes == [0, 0], (tmp_path / "rank1.log").read_text()
    with np.load(tmp_path / "weights0.npz") as rank0, np.load(tmp_path / "weights1.npz") as rank1:
        assert set(rank0) == set(rank1) and len(rank0) == 8
        for name in rank0:
            np.testing.assert_array_equal(rank0[name], rank1[name], err_msg=name)
        assert np.abs(rank0["dense1/kernel"]).max() > 0
