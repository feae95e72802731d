"""Training by pytorch_lightning.Trainer in processes that scalebench started."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
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
from scalebench.strategies import refusals
from scalebench.strategies.base import BatchReplay, Loop, LossPart, Unsupported, check_group
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.optimizer import sum_loss_parts
from scalebench.strategies.torch.user_module import UserProblem
from scalebench.strategies.torch.user_step import DATA_HOOK, UserStep

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
    "Trying to infer the `batch_size` from an ambiguous collection",  # for self.log, which nobody reads
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
            trainer, module = self._build_trainer([_LoopReporter(self, loop)]), self._choose_module()
            trainer.fit(module, train_dataloaders=_LoopParts(self, loop, module.form_batch))
            module.trainer = self._idle_trainer  # that of the fit would keep its wrapper of the model alive
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
        return [name for name in names if name == DATA_HOOK] if self._fits_user_module() else names

    def _fits_user_module(self) -> bool:
        model = self.model
        is_lightning = isinstance(model, UserStep) and isinstance(model.module, pl.LightningModule)
        return is_lightning and self.compiled is model

    def _choose_module(self) -> pl.LightningModule:
        """Return the user's LightningModule as it is, with all of its hooks; else the strategy's model as one."""
        return borrow_user_module(self) if self._fits_user_module() else _TrainerModule(self)

    def on_fit_start(self, trainer: pl.Trainer) -> None:
        """Prepare the fit; called between Lightning's set-up and its first step."""

    def on_step_end(self) -> None:
        """Finish a step; called after the optimizer's step and before the loop counts it."""

    def on_fit_end(self) -> None:
        """Finish the fit; called after the last step, before Lightning removes its wrapper."""

    def empty_loss(self) -> Tensor:
        """Return the loss of a part without samples, which Lightning trains on like any other."""
        return sum(parameter.sum() for parameter in self.model.parameters()) * 0.0

    def _build_trainer(self, callbacks: list[pl.Callback]) -> pl.Trainer:
        return pl.Trainer(
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

    def plugins(self) -> list[Any]:
        """Return the plugins that Trainer(precision=...) would choose, with our scaler, whose scale outlives a fit."""
        name = MIXED_PRECISIONS.get(self.spec.config.train.precision)
        return [] if name is None else [MixedPrecision(name, self.device.type, self.precision.scaler)]


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
        refusals.refuse(refusals.lightning_rule(self.spec, self.options))
        if self.options.sigterm == "never" and not hasattr(_TrainingEpochLoop, SIGTERM_HOOK):
            raise Unsupported(
                f"strategy.options.sigterm=never: pytorch_lightning {pl.__version__} has no {SIGTERM_HOOK} to switch "
                "off; leave it at lightning, or take 2.6 or newer"
            )
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


class _TrainerModule(pl.LightningModule):
    """The strategy's model, loss and optimizer as a LightningModule."""

    def __init__(self, strategy: TrainerStrategy) -> None:
        super().__init__()
        self.model = strategy.compiled
        self._strategy = strategy
        self._loss_parts: list[LossPart] = []  # of the current step
        self.is_last_part = True

    def form_batch(self, part: TorchBatch) -> Any:
        """Return a part of a step as Lightning passes it to hooks and to training_step."""
        return part

    def training_step(self, batch: TorchBatch, batch_idx: int) -> Tensor:
        return self.compute_loss(batch, self.model)

    def compute_loss(self, part: TorchBatch, net: Callable[..., Tensor]) -> Tensor:
        """Return the loss to differentiate, and keep the one to report."""
        self.is_last_part = part.last
        if not part.samples:  # Lightning counts parts, and this step has fewer samples than parts
            return self._strategy.empty_loss()
        loss, loss_part = self._strategy.forward(net, part)
        self._loss_parts.append(loss_part)
        # The losses of parts add up, whereas Lightning averages them.
        return loss if self._strategy.accumulate == 1 else loss * self._strategy.accumulate

    def take_loss(self) -> LossPart:
        """Return the loss of the step that has ended, and start with the next one."""
        parts, self._loss_parts = self._loss_parts, []
        return sum_loss_parts(parts)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Compute the gradients first where the optimizer is the user's, which may ignore the closure: Lightning has
        it compute them, and a plain loop gives it none."""
        if optimizer_closure is not None and self._strategy.user_optimizer() is not None:
            loss = optimizer_closure()
            optimizer.step(closure=lambda: loss)
        else:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def configure_model(self) -> None:
        """Leave the model as the strategy has built it; some of Lightning's strategies want this method."""

    def configure_optimizers(self) -> Any:
        return read_optimizers(self._strategy)


def read_optimizers(strategy: TrainerStrategy) -> Any:
    """Return the optimizer, with the schedulers that the user's function has made for it."""
    user = strategy.user_optimizer()
    return strategy.optimizer if user is None else ([user.optimizer], user.by_step)


def borrow_user_module(strategy: TrainerStrategy) -> pl.LightningModule:
    """Return the user's LightningModule for a fit. Its hooks and its training_step are called with its own batches and
    its loss is reported and weighted; its optimizer is that of all fits."""
    model, steps = strategy.model, _TrainerModule(strategy)
    module = model.module

    def form_batch(part: TorchBatch) -> Any:
        steps.part = part
        return model.form_batch(part.inputs, part.targets)

    @functools.wraps(model.training_step)
    def training_step(batch: Any, batch_idx: int) -> Tensor:
        loss = steps.compute_loss(steps.part, functools.partial(model, batch=batch))
        module.is_last_part = steps.is_last_part
        return loss

    module.form_batch, module.training_step = form_batch, training_step
    module.take_loss = steps.take_loss
    module.configure_optimizers = functools.partial(read_optimizers, strategy)
    for hook in BUILD_HOOKS:
        setattr(module, hook, _do_nothing)
    module.on_train_batch_start = functools.partial(_start_batch, module)
    return module


def _do_nothing(*args: Any, **settings: Any) -> None:
    """Stand for a hook that was called once, when the module was built."""


def _start_batch(module: pl.LightningModule, *batch: Any) -> None:
    if type(module).on_train_batch_start(module, *batch) == -1:
        raise UserProblem(
            "returns -1 in on_train_batch_start, which ends a training of Lightning's: a measurement needs all batches"
        )


class _LoopReporter(pl.Callback):
    """Reports each step to the loop, and stops Lightning when the loop is over."""

    def __init__(self, strategy: TrainerStrategy, loop: Loop) -> None:
        self._strategy, self._loop = strategy, loop
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning's handler broadcasts, and would wait for ranks that hang or have ended.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)
        self._strategy.on_fit_start(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not pl_module.is_last_part:
            return
        self._strategy.on_step_end()
        self._strategy.advance_schedulers(by_step=False)  # Lightning advances those by step
        if self._loop.done(pl_module.take_loss()):
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._strategy.on_fit_end()


class _LoopParts:
    """The parts of the loop's batches in the form of the module, with a length: otherwise Lightning fetches one batch
    ahead, to detect the last."""

    def __init__(self, strategy: TrainerStrategy, loop: Loop, form_batch: Callable[[TorchBatch], Any]) -> None:
        self._strategy, self._loop, self._form_batch = strategy, loop, form_batch

    def __len__(self) -> int:
        return MAX_PARTS

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loop:  # a generator, so that the loop begins with the first batch and not before
            yield from map(self._form_batch, self._strategy.split_batch(batch))
