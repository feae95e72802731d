"""pytorch_lightning.Trainer in processes that scalebench started, and its DDP strategy."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import Loop, LossPart, Unsupported
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.ddp import Ddp, bucket_bytes, no_sync
from scalebench.strategies.torch.observed import Replay
from scalebench.strategies.torch.optimizer import summed

HALF_PRECISIONS = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
ENDLESS = 1 << 40  # updates; far enough, and its sum over all ranks still fits 64 bits

# Beginnings of warnings that say nothing new to anybody here, each with its reason.
EXPECTED_WARNINGS = (
    "GPU available but not used",  # hardware=cpu on a machine with GPUs is what the user asked for
    "The `srun` command is available on your system",  # whoever starts the ranks knows
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # between Lightning and torch; nothing that we call
)


class WithTrainer(TorchStrategy):
    """Trainer.fit once per `train`. The group is ours, so that it outlives every Trainer; Lightning joins it.

    Model and optimizer are those of the base class. What Lightning does on top in each update (it asks all
    ranks for SIGTERM with a broadcast, for one) is part of what is measured here.
    """

    def setup(self) -> None:
        # Without it Lightning would choose a number of threads, and overrule ours.
        os.environ.setdefault("OMP_NUM_THREADS", str(self.place.threads))
        logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)  # no advice and no banners
        for beginning in EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=beginning)
        super().setup()

    @abstractmethod
    def trainer_arguments(self) -> dict[str, Any]:
        """Devices and strategy of a Trainer."""

    def callbacks(self) -> list[pl.Callback]:
        """Of a Trainer, beside the one that reports to the loop."""
        return []

    def train(self, loop: Loop) -> None:
        with self.blamed():
            self._trainer(_Reporter(self, loop)).fit(_Module(self), train_dataloaders=_Endless(self, loop))
        self.model.to(self.device)  # Lightning leaves it on the CPU, and the optimizer's state
        move_state(self.optimizer, self.device)

    def step(self, batch: TorchBatch) -> LossPart | None:
        """One update by a whole fit. For checks; whoever wants to measure calls `train`."""
        once = Replay(batch, 1)
        self.train(once)
        return once.parts[0]

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "pytorch_lightning": pl.__version__}

    def fit_begins(self, trainer: pl.Trainer) -> None:
        """Called between Lightning's set-up and its first update."""

    def fit_ends(self) -> None:
        """Called after the last update, before Lightning takes its wrapper away."""

    def _trainer(self, reporter: pl.Callback) -> pl.Trainer:
        return pl.Trainer(
            accelerator="cpu" if self.device.type == "cpu" else "gpu",
            **self.trainer_arguments(),
            plugins=self.plugins(),
            callbacks=[reporter, *self.callbacks()],
            accumulate_grad_batches=self.accumulate,
            max_epochs=1,  # one that never ends by itself
            use_distributed_sampler=False,  # batches come sharded
            limit_val_batches=0,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    def plugins(self) -> list[Any]:
        """What Trainer(precision=...) would choose. The scaler is ours, so that its scale outlives every Trainer."""
        name = HALF_PRECISIONS.get(self.spec.config.train.precision)
        return [] if name is None else [MixedPrecision(name, self.device.type, self.precision.scaler)]


class LightningDdp(WithTrainer, Ddp):
    """Lightning wraps the model in DistributedDataParallel anew in each fit."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._exchanging = True
        self._wrapper: DistributedDataParallel | None = None  # lives as long as a fit
        self._message_sizes: list[int] = []

    def setup(self) -> None:
        per_node = [sum(p.node == node for p in self.spec.places) for node in range(self.spec.nodes)]
        if len(set(per_node)) > 1:
            raise Unsupported(f"Lightning wants as many processes on every node, and here are {per_node}")
        super().setup()

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def trainer_arguments(self) -> dict[str, Any]:
        here = [p.devices[0] for p in self.spec.places if p.node == self.place.node]
        return {
            "devices": len(here) if self.device.type == "cpu" else here,
            "num_nodes": self.spec.nodes,
            "strategy": _DdpInParts(
                cluster_environment=Environment(),
                process_group_backend=self.group_backend(),
                timeout=timedelta(seconds=self.spec.group_timeout_s),
                **self.ddp_arguments(),
            ),
        }

    def train(self, loop: Loop) -> None:
        super().train(loop)
        self._wrapper = None
        gc.collect()  # cycles would keep the wrapper alive, and its hooks on our parameters

    def set_gradient_sync(self, on: bool) -> None:
        self._exchanging = on
        if self._wrapper is not None:
            self._wrapper.require_backward_grad_sync = on

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        """Of the model without Lightning: its wrapper is gone, and what it does around an update is not in here."""
        TorchStrategy.partial_step(self, batch, until)

    def message_sizes(self) -> list[int]:
        return self._message_sizes if self._wrapper is None else bucket_bytes(self._wrapper)

    def fit_begins(self, trainer: pl.Trainer) -> None:
        self._wrapper = trainer.strategy.model
        self._wrapper.require_backward_grad_sync = self._exchanging
        self.hook(self._wrapper)

    def fit_ends(self) -> None:
        self._message_sizes = self.message_sizes()


def move_state(optimizer: Optimizer, device: torch.device) -> None:
    """What it knows of each parameter, but for its count of steps, which Lightning leaves where it is."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if name != "step" and isinstance(value, Tensor):
                state[name] = value.to(device)


class Environment(LightningEnvironment):
    """Ranks as our launcher set them. Given always: under SLURM Lightning would pick its own, and break."""

    def teardown(self) -> None:
        """Keep WORLD_SIZE, which Lightning would delete: the processes outlive a fit."""


class _DdpInParts(DDPStrategy):
    """Leaves out the exchange of all parts of an update but the last."""

    def block_backward_sync(self) -> AbstractContextManager[Any]:
        return no_sync(self.model)


class _Module(pl.LightningModule):
    """The base class's model, loss and optimizer, as Lightning wants to see them."""

    def __init__(self, owner: WithTrainer) -> None:
        super().__init__()
        self.model = owner.compiled
        self._owner = owner
        self._parts: list[LossPart] = []  # of the update that is under way
        self.last = True  # of its parts

    def training_step(self, batch: TorchBatch, batch_idx: int) -> Tensor:
        self.last = batch.last
        if not batch.samples:  # Lightning counts parts, and this update has fewer samples than that
            return sum(parameter.sum() for parameter in self._owner.model.parameters()) * 0.0
        loss, part = self._owner.forward(self.model, batch)
        self._parts.append(part)
        # Parts of a sum, which Lightning takes for means and takes the mean of.
        return loss if self._owner.accumulate == 1 else loss * self._owner.accumulate

    def taken(self) -> LossPart:
        """What the update that has ended adds to the loss."""
        parts, self._parts = self._parts, []
        return summed(parts)

    def configure_optimizers(self) -> Optimizer:
        return self._owner.optimizer


class _Reporter(pl.Callback):
    """Tells the loop of each update, and Lightning when the loop is over."""

    def __init__(self, owner: WithTrainer, loop: Loop) -> None:
        self._owner, self._loop = owner, loop
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning's own handler broadcasts from within, and would wait for ranks that hang or are gone.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)
        self._owner.fit_begins(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if pl_module.last and self._loop.done(pl_module.taken()):
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._owner.fit_ends()


class _Endless:
    """The parts of the loop's batches, with a length: without one Lightning draws a batch ahead, to know which is the
    last."""

    def __init__(self, owner: WithTrainer, loop: Loop) -> None:
        self._owner, self._loop = owner, loop

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loop:  # a generator, so that the loop begins with the first batch and not before
            yield from self._owner.parts(batch)
