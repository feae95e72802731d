"""Lightning's Trainer under our loop: it fetches no extra batches, ends with the loop, and leaves nothing behind."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scalebench.core.spec import RankPlacement
from scalebench.measure.timed_loop import LoopPhase, TimedLoop
from scalebench.strategies.base import BatchReplay, Unsupported
from scalebench.strategies.torch.lightning import trainer
from scalebench.strategies.torch.lightning.ddp import LightningDdp
from tests.strategies.builders import train_blocks
from tests.strategies.torch.conftest import spec_of


def test_losses_are_those_of_bare(strategy, source):
    """Also at the end of an epoch, and in a second training, as probes want it; no batch is fetched ahead. Batches that
    end before the stage end the training, once."""
    lightning, bare = strategy("lightning_ddp_gloo"), strategy("bare_torch")
    for blocks in (2, 1):
        fetched, losses, _ = train_blocks(lightning, source(), blocks, 4)
        assert fetched == len(losses) == 4 * blocks
        np.testing.assert_allclose(losses, train_blocks(bare, source(), blocks, 4)[1], rtol=1e-6)
    fetched, _, seconds = train_blocks(lightning, source(), 1, 100, last=3)
    assert (fetched, seconds) == (3, [])


def test_a_training_leaves_nothing_behind(strategy, source, tmp_path):
    on_sigterm, handlers = signal.getsignal(signal.SIGTERM), []
    lightning = strategy("lightning_ddp_gloo")

    class Asking(BatchReplay):
        def done(self, part):
            handlers.append(signal.getsignal(signal.SIGTERM))
            return super().done(part)

    lightning.train(Asking(next(iter(lightning.feed(source()))), 2))
    assert [*handlers, signal.getsignal(signal.SIGTERM)] == [on_sigterm] * 3
    assert os.environ["WORLD_SIZE"] == "1" and list(tmp_path.iterdir()) == []
    assert lightning.broadcast(4.0) == 4.0
    assert lightning.evaluate(source())["mse"] > 0


def test_errors_in_the_loop_are_raised(strategy, source):
    def decide(series):
        raise RuntimeError("failed as configured")

    lightning = strategy("lightning_ddp_gloo")
    stage = LoopPhase("some", lambda before: 1, decide)
    with pytest.raises(RuntimeError, match="failed as configured"):
        lightning.train(TimedLoop(lightning, lightning.feed(source()), [stage]))


def test_the_optimizer_state_follows_the_model(strategy, source):
    """Lightning leaves both on the CPU; here meta stands for a GPU. Step counts stay where they were created."""
    bare = strategy("bare_torch")
    bare.step(next(iter(bare.feed(source()))))
    trainer.move_optimizer_state(bare.optimizer, torch.device("meta"))
    devices = {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}
    for state in bare.optimizer.state.values():
        assert {name: value.device.type for name, value in state.items()} == devices


@pytest.mark.gpu
def test_a_lightning_without_that_broadcast(strategy, monkeypatch):
    monkeypatch.delattr(trainer._TrainingEpochLoop, trainer.SIGTERM_HOOK)
    lightning = strategy("lightning_ddp_gloo", strategy__options__sigterm="never")
    lightning._switch_sigterm_broadcast(SimpleNamespace())


def test_uneven_nodes_are_unsupported(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which Lightning would set
    spec = spec_of("lightning_ddp_gloo", 3)
    spec.nodes, spec.places[2] = 2, RankPlacement(2, 0, 1, [0], [], 1)
    with pytest.raises(Unsupported, match=r"\[2, 1\]"):
        LightningDdp(spec, 0).setup()
