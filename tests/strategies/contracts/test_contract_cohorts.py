"""Strategies of each adapter family in a cohort train as by themselves; a hang ends a real collective."""

import numpy as np
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.runner.parent import RunRequest, run_spec
from scalebench.sweeps.cohort import Cohort
from scalebench.testing import FaultContract
from scalebench.workloads import datasets

pytestmark = pytest.mark.real
FAMILIES = (
    "ddp_gloo",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("lightning_ddp_gloo", "horovod_gloo", "horovod_mpi", "mirrored", "multiworker_ring",
                     "parameter_server", "fsdp_gloo", "pipeline_1f1b")
    ),
)  # fmt: skip
# One step a block, so that each loss belongs to a step whose number is known.
SETTINGS = (
    "dataset.size=400", "train.batch_per_device=10", "train.dropout=false", "measure.probes=false", "measure.repeats=1",
    "measure.monitor=false", "measure.warmup_steps=5", "measure.warmup_max_steps=32", "measure.block_s=0.000001",
    "measure.slot_s=0.1", "measure.min_s=0.6", "measure.max_s=3", "measure.hang_s=20", "measure.target=0.5",
)  # fmt: skip
MIN_COMPARED_STEPS = 15


def make_spec(strategy, gpus, tmp_path, *overrides):
    cache = f"dataset.cache={tmp_path / 'data'}"
    spec = resolve(compose_config([f"strategy={strategy}", f"gpus={gpus}", *SETTINGS, cache, *overrides]))
    datasets.prepare(spec.config)
    return spec


def run_cohort(specs, folder, **options):
    cohort = Cohort(
        [RunRequest(n, spec, folder / str(n)) for n, spec in enumerate(specs)], lambda progress: None, **options
    )
    return [result for _, result in cohort.run()]


def losses_by_step(rank):
    """Return the loss of each kept step by its number; the first block of each slot is not kept."""
    assert (rank.warmup_block_steps, rank.block_steps) == (1, 1)
    losses = dict(enumerate(rank.warmup_losses))
    for number, loss in enumerate(rank.block_losses):
        discarded = len(set(rank.block_rounds[: number + 1]))
        losses[len(rank.warmup_losses) + number + discarded] = loss
    return losses


@pytest.mark.parametrize("strategy", FAMILIES)
def test_it_trains_in_turns_as_by_itself(strategy, tmp_path):
    spec = make_spec(strategy, 2, tmp_path, "measure.hang_s=60")  # TensorFlow starts slowly on a busy machine
    results = run_cohort([make_spec("simulated", 1, tmp_path), spec, spec], tmp_path)
    assert [result.status for result in results] == ["ok"] * 3, [result.reason for result in results]
    alone = run_spec(spec, tmp_path / "alone")
    assert alone.status == "ok"
    if strategy == "parameter_server":  # its workers apply their gradients in any order
        return
    for result in results[1:]:
        assert len(set(result.ranks[0].block_rounds)) >= 2
        for rank, rank_alone in zip(result.ranks, alone.ranks, strict=True):
            losses, expected = losses_by_step(rank), losses_by_step(rank_alone)
            steps = [n for n in losses if n in expected and losses[n] is not None and n > len(rank.warmup_losses)]
            if any(losses[n] is not None for n in losses):
                assert len(steps) >= MIN_COMPARED_STEPS
            np.testing.assert_allclose([losses[n] for n in steps], [expected[n] for n in steps], rtol=1e-3)


class DdpFaults(FaultContract):
    strategy = "ddp_gloo"
    hang_s = 8.0


def test_an_all_reduce_that_a_stopped_rank_never_enters_is_a_timeout_with_its_stacks(tmp_path):
    result, folder = DdpFaults().run_with("stop", tmp_path)
    reason = "no rank made progress for 8 s (measure.hang_s); rank 1 is stopped"
    assert (result.status, result.reason, result.log) == ("timeout", reason, "rank1.log")
    stopped, waiting = ((folder / f"rank{rank}.log").read_text() for rank in (1, 0))
    assert "most recent call first" in stopped and "strategy_worker.py" in stopped
    assert "most recent call first" in waiting and "backward" in waiting, "it waits where gradients are exchanged"
