"""Training by pytorch_lightning.Trainer in processes that scalebench started."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.strategies import ParallelStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import BatchReplay, Loop, LossPart, Unsupported, check_group
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.optimizer import sum_loss_parts
from scalebench.strategies.torch.user_errors import UserProblem
from scalebench.strategies.torch.user_module import DATA_HOOK

MIXED_PRECISIONS = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
# Hooks that user_checks calls once, when it builds the module, whereas there are several fits; and prepare_data.
BUILD_HOOKS = "prepare_data setup configure_model on_fit_start on_train_start on_train_epoch_start".split()
SIGTERM_HOOK = "_broadcast_sigterm_tensor"  # of Lightning's training loop, from 2.6 on
MAX_PARTS = 1 << 40  # the length of an endless training, whose sum over all ranks still fits 64 bits

# The beginnings of warnings that are expected, each with its reason.
EXPECTED_WARNINGS = (
    "GPU available but not used",  # hardware=cpu on a machine with GPUs is the user's choice
    "The `srun` command is available on your system",  # the launcher has decided how ranks are started
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's own call of torch
    "You defined a `validation_step` but have no",  # scalebench evaluates after the training
    r"torch\.distributed\.nn\.functional\.all_gather is deprecated",  # Lightning's own call, in self.all_gather
    "Trying to infer the `batch_size` from an ambiguous collection",  # for self.log, which has no effect
)


class _Trainer(pl.Trainer):
    """A Trainer that refuses what it cannot know: a measurement ends by its own rule, and Lightning would say -1."""

    @property
    def estimated_stepping_batches(self) -> int:
        raise UserProblem(
            "takes self.trainer.estimated_stepping_batches, and a measurement has no set number of steps: give the "
            "scheduler a number of its own, or run your own script as it is (script=FILE)"
        )


class TrainerStrategy(TorchStrategy):
    """One Trainer.fit per `train`. The group is created before Lightning, which joins it, and outlives every Trainer.

    Model and optimizer are those of the base class. Lightning's additional work in each step is part of what is
    measured.
    """

    _idle_trainer: pl.Trainer | None = None

    def setup(self) -> None:
        # Otherwise Lightning would set a number of threads of its own choice.
        os.environ.setdefault("OMP_NUM_THREADS", str(self.place.threads))
        logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)  # no tips and no banners
        for beginning in EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=beginning)
        super().setup()

    @abstractmethod
    def trainer_arguments(self) -> dict[str, Any]:
        """Return the Trainer's arguments for its devices and its strategy."""

    def callbacks(self) -> list[pl.Callback]:
        """Return the Trainer's callbacks besides the one that reports to the loop."""
        return []

    def train(self, loop: Loop) -> None:
        with self.attribute_errors_to_user():
            fit = _Fit(self, loop)
            self._build_trainer([fit]).fit(fit.module, train_dataloaders=fit)
            fit.module.trainer = self._idle_trainer  # that of the fit would keep its wrapper of the model alive
        # Most of Lightning's strategies leave the model and the optimizer's state on the CPU. Weights that are on the
        # device are left alone: those of FSDP cannot be replaced after a recorded pass.
        if next(self.model.parameters()).device != self.device:
            self.model.to(self.device)
        move_optimizer_state(self.optimizer, self.device)

    def step(self, batch: TorchBatch) -> LossPart | None:
        """Train one step by a fit of its own, for checks only; measured steps are those of `train`."""
        replay = BatchReplay(batch, 1)
        self.train(replay)
        return replay.parts[0]

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "pytorch_lightning": pl.__version__}

    def attach_trainer(self, module: nn.Module) -> None:
        """Attach a Trainer that fits nothing, for the check and for evaluations."""
        self._idle_trainer = self._build_trainer([])
        module.trainer = self._idle_trainer  # type: ignore[assignment]

    def left_out(self) -> list[str]:
        names = super().left_out()
        return [name for name in names if name == DATA_HOOK] if self.fits_user_module() else names

    def fits_user_module(self) -> bool:
        """Return whether Lightning fits the user's own LightningModule."""
        model = self.model
        return model.loss is None and isinstance(model.module, pl.LightningModule) and self.compiled is model

    def plugins(self) -> list[Any]:
        """Return the plugins that Trainer(precision=...) would choose, with our scaler, whose scale outlives a fit."""
        name: Any = MIXED_PRECISIONS.get(self.spec.config.train.precision)
        return [] if name is None else [MixedPrecision(name, self.device.type, self.precision.scaler)]

    def on_fit_start(self, trainer: pl.Trainer) -> None:
        """Prepare the fit; called between Lightning's set-up and its first step."""

    def empty_loss(self) -> Tensor:
        """Return the loss of a part without samples, which Lightning trains on like any other."""
        return sum(parameter.sum() for parameter in self.model.parameters()) * 0.0

    def _build_trainer(self, callbacks: list[pl.Callback]) -> pl.Trainer:
        return _Trainer(
            **self.trainer_arguments(),
            plugins=self.plugins(),
            callbacks=[*callbacks, *self.callbacks()],
            accumulate_grad_batches=self.accumulate,
            gradient_clip_val=self.spec.config.train.clip_norm,
            max_epochs=1,  # an epoch of MAX_PARTS, which the loop stops
            use_distributed_sampler=False,  # batches are sharded already
            limit_val_batches=0,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )


class GroupTrainerStrategy(TrainerStrategy):
    """A Trainer whose own strategy connects the processes.

    From version 2.6 on Lightning's loop broadcasts before each batch (of each part of a step) whether rank 0 received
    SIGTERM, and waits for the result: a collective and a synchronization of the device within each step. While gradient
    synchronization is off, this is off, too: otherwise the ranks would still wait for each other in each step, so that
    `exposed` and `imbalance` would lack that time, and it would pass for a cost of each device.
    """

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._sync_on = True

    def setup(self) -> None:
        super().setup()
        if self.device.type == "cuda" and max(self._node_devices()) >= torch.cuda.device_count():
            raise Unsupported(
                "Lightning numbers the GPUs of a node, and each process sees one of them; leave out "
                "--gpus-per-task and --gpu-bind, or CUDA_VISIBLE_DEVICES"
            )

    @abstractmethod
    def lightning_strategy(self) -> ParallelStrategy:
        """Return Lightning's strategy for one fit."""

    def trainer_arguments(self) -> dict[str, Any]:
        strategy = self.lightning_strategy()
        strategy.cluster_environment = LauncherEnvironment()
        devices = choose_trainer_devices(self.device.type, self._node_devices())
        return {**devices, "num_nodes": self.spec.nodes, "strategy": strategy}

    def group_arguments(self) -> dict[str, Any]:
        """Return the arguments of Lightning's strategy about the group, which exists already."""
        timeout = timedelta(seconds=self.spec.group_timeout_s)
        return {"process_group_backend": self.group_backend(), "timeout": timeout}

    def on_fit_start(self, trainer: pl.Trainer) -> None:
        check_group(self.spec, self.place.rank, "Lightning", (trainer.global_rank, trainer.world_size))
        self._switch_sigterm_broadcast(trainer.fit_loop.epoch_loop)

    def settings_used(self) -> dict[str, str]:
        """Observe the settings of one more step; `sigterm` is there where Lightning's loop broadcasts in each step."""
        broadcasts = hasattr(_TrainingEpochLoop, SIGTERM_HOOK) and self.options.sigterm == "lightning"
        sigterm = {"sigterm": "broadcast"} if broadcasts and self.spec.processes > 1 else {}
        return super().settings_used() | sigterm

    def _node_devices(self) -> list[int]:
        return [p.devices[0] for p in self.spec.places if p.node == self.place.node]

    def _switch_sigterm_broadcast(self, loop: Any) -> None:
        """Let Lightning's loop broadcast as the options say, and only while gradient synchronization is on."""
        broadcast = getattr(loop, SIGTERM_HOOK, None)
        if broadcast is not None:
            wanted = self.options.sigterm == "lightning"
            setattr(loop, SIGTERM_HOOK, lambda: broadcast() if wanted and self._sync_on else None)


def choose_trainer_devices(kind: str, devices: list[int]) -> dict[str, Any]:
    """Return the Trainer's arguments for devices of one node: their number on CPUs, else the numbers of the GPUs."""
    if kind == "cpu":
        return {"accelerator": "cpu", "devices": len(devices)}
    return {"accelerator": "gpu", "devices": devices}


def move_optimizer_state(optimizer: Optimizer, device: torch.device) -> None:
    """Move an optimizer's state to a device, except for the step counts, which Lightning leaves where they are."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if name != "step" and isinstance(value, Tensor):
                state[name] = value.to(device)


class LauncherEnvironment(LightningEnvironment):
    """The ranks as our launcher set them, always passed on: under SLURM Lightning would choose its own, and fail."""

    def teardown(self) -> None:
        """Keep WORLD_SIZE, which Lightning would delete, since the processes outlive a fit."""


class _PlainModule(pl.LightningModule):
    """The strategy's model as a LightningModule."""

    def __init__(self, strategy: TrainerStrategy) -> None:
        super().__init__()
        self.model = strategy.compiled

    def configure_model(self) -> None:
        """Leave the model as the strategy has built it; some of Lightning's strategies need this method."""


class _Fit(pl.Callback):
    """One fit. As Lightning's loader it gives the parts of the loop's batches, as its callback it reports each step to
    the loop, and stops Lightning when the loop is over. It has a length: otherwise Lightning fetches one batch ahead,
    to detect the last.

    `module` is the user's LightningModule as it is, with all of its hooks, which get its own batches; else the
    strategy's model as one.
    """

    def __init__(self, strategy: TrainerStrategy, loop: Loop) -> None:
        self._strategy, self._loop = strategy, loop
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._loss_parts: list[LossPart] = []  # of the current step
        self._part: TorchBatch | None = None  # that is trained
        self._is_users = strategy.fits_user_module()
        self.module: Any = strategy.model.module if self._is_users else _PlainModule(strategy)
        user = strategy.model.user_optimizer  # which schedulers belong to
        optimizers = strategy.optimizer if user is None else ([user.optimizer], user.by_step)
        self.module.configure_optimizers, self.module.training_step = lambda: optimizers, self._train_part
        if self._is_users:
            self.module.on_train_batch_start = functools.partial(_start_batch, self.module)
            for hook in BUILD_HOOKS:
                setattr(self.module, hook, lambda *args, **settings: None)

    def __len__(self) -> int:
        return MAX_PARTS

    def __iter__(self) -> Iterator[Any]:
        model: Any = self._strategy.model
        for batch in self._loop:  # a generator, so that the loop begins with the first batch and not before
            for part in self._strategy.split_batch(batch):
                self._part, self.module.is_last_part = part, part.last
                yield model.form_batch(part.inputs, part.targets) if self._is_users else part

    def _train_part(self, batch: Any, batch_idx: int) -> Tensor:
        """Stand for the training_step: return the loss to differentiate, and keep the one to report."""
        strategy, part = self._strategy, self._part
        assert part is not None, "which Lightning has got"
        if not part.samples:  # Lightning counts parts, and this step has fewer samples than parts
            return strategy.empty_loss()
        net = functools.partial(strategy.model, batch=batch) if self._is_users else self.module.model
        loss, loss_part = strategy.forward(net, part)
        self._loss_parts.append(loss_part)
        # The losses of parts add up, whereas Lightning averages them.
        return loss if strategy.accumulate == 1 else loss * strategy.accumulate

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning's handler broadcasts, and would wait for ranks that hang or have ended.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)
        self._strategy.on_fit_start(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self.module.is_last_part:
            return
        self._strategy.advance_schedulers(by_step=False)  # Lightning advances those by step
        parts, self._loss_parts = self._loss_parts, []
        if self._loop.done(sum_loss_parts(parts)):
            trainer.should_stop = True


def _start_batch(module: pl.LightningModule, *batch: Any) -> None:
    if type(module).on_train_batch_start(module, *batch) == -1:
        raise UserProblem(
            "returns -1 in on_train_batch_start, which ends a training of Lightning's: a measurement needs all batches"
        )
