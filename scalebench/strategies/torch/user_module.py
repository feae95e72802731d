"""A user's torch.nn.Module in the form that strategies train, with scalebench's loss of its outputs or with its own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn

from scalebench.core.spec import Config
from scalebench.strategies.torch.model import copy_to_array
from scalebench.strategies.torch.step_module import LOSSES, Progress, StepModule
from scalebench.strategies.torch.user_errors import UserProblem
from scalebench.workloads import records, user_code
from scalebench.workloads.datasets.images import PIXEL_SCALE

# Hooks of a LightningModule that Lightning's loop calls in each step, and no other loop.
STEP_HOOKS = (
    "on_train_batch_start on_train_batch_end on_before_zero_grad on_before_backward on_after_backward "
    "on_before_optimizer_step configure_gradient_clipping optimizer_step optimizer_zero_grad backward lr_scheduler_step"
).split()
# Hooks that change a batch, in their order; they run under every strategy.
BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
DATA_HOOK = "train_dataloader"  # left out everywhere: samples are those of `dataset`


class UserModule(StepModule):
    """The step of a user's module.

    Inputs are float32, or uint8 that becomes -1 .. 1, as for a NetworkModule, with channels first. They are contiguous
    in memory, which modules may rely on (`view`); with train.data_format=nhwc, images and their kernels are channels
    last. Records reach the module as the user's function gave them.

    The loss is one of scalebench's, or that of the module's training_step, of its outputs (as Hugging Face's have it),
    or of a function, `model.loss=MODULE:FUNCTION`.
    """

    def __init__(self, module: nn.Module, config: Config) -> None:
        """Raises UserProblem where nothing computes the loss that the config names."""
        name, step = config.model.loss, getattr(module, user_code.TRAINING_STEP, None)
        super().__init__(module, LOSSES.get(name))
        self._as_is = config.dataset.dtype == records.RECORD
        self.channels_last = config.train.data_format == "nhwc"
        for parameter in module.parameters() if self.channels_last else ():
            if parameter.dim() == 4:  # Module.to fails on kernels with 5 axes
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        self.training_step: Callable[..., Any] | None = step if callable(step) else None
        self._user_loss: Callable[..., Any] | None = None
        self._by = ""  # what a message begins with where the loss is not the module's
        self._batch_hooks = list_overridden(module, BATCH_HOOKS)
        self._batches = {True: 0, False: 0}  # counted in training and in evaluation mode
        self._takes_names: dict[tuple[str, ...], bool] = {}  # whether forward has parameters of these names
        if self.loss is None and name != user_code.MODULE_LOSS:
            self._user_loss, self._by = user_code.load_function(name, "model.loss"), f"has model.loss={name}, which "
            if not callable(self._user_loss):
                raise UserProblem(f"has model.loss={name}, which is not a function")
        if self.training_step is not None:
            if self.loss is not None:
                raise UserProblem(
                    f"has a training_step, which computes its own loss: set model.loss={user_code.MODULE_LOSS}"
                )
            if not getattr(module, "automatic_optimization", True):
                raise UserProblem(
                    "steps its optimizers by itself (automatic_optimization=False), which every strategy does in "
                    "another way: return the loss from training_step, or run your own script as it is (script=FILE)"
                )
            self._takes_number = _takes(self.training_step, None, 0)
        elif name == user_code.MODULE_LOSS and not self._as_is and not _takes(module.forward, None, None):
            suits = "mse" if config.dataset.classes is None else "cross_entropy"
            raise UserProblem(
                f"gives a {type(module).__name__}, which has no training_step and takes no targets, so it computes no "
                f"loss (model.loss={user_code.MODULE_LOSS}, also by auto where the function names a class with a "
                f"training_step): set model.loss={suits}"
            )

    def forward(self, inputs: Any, targets: Any = None, batch: Any = None) -> Tensor:
        """`batch`: what form_batch made of inputs and targets, as hooks of the user's have left it."""
        if self.loss is not None:
            return super().forward(inputs, targets)
        if batch is None:
            batch = self.form_batch(inputs, targets)
            for hook in self._batch_hooks:
                device = [next(self.module.parameters()).device] if hook == "transfer_batch_to_device" else []
                batch = getattr(self.module, hook)(batch, *device, 0)
        if self._user_loss is None and self.training_step is not None:
            result = self.training_step(batch, *([self._count_batch()] if self._takes_number else []))
        else:
            inputs, targets = (batch, None) if targets is None else batch
            if self._user_loss is not None:
                result = self._user_loss(self._call_module(inputs), inputs if targets is None else targets)
            else:
                result = self._call_module(inputs) if targets is None else self.module(inputs, targets)
        loss = check_loss(result, self.training, self._by)
        return loss if self.training else loss.double().reshape(1)

    def compute_outputs(self, inputs: Any) -> Tensor:
        outputs = self._call_module(self._prepare(inputs))
        if not isinstance(outputs, Tensor):  # some modules return more in training than in evaluation
            mode = "training" if self.training else "evaluation mode"
            raise UserProblem(
                f"gives a {type(outputs).__name__} in {mode}: it should give one tensor, or set "
                f"model.loss={user_code.MODULE_LOSS} where the loss is in it, else model.loss=MODULE:FUNCTION, which "
                "computes one from it"
            )
        return outputs

    def train(self, mode: bool = True) -> UserModule:
        """Set the mode; each evaluation counts its batches from 0."""
        self._batches[False] = 0
        return super().train(mode)

    def form_batch(self, inputs: Any, targets: Any) -> Any:
        """Return a batch as a training_step of the user's takes it: the inputs, or (inputs, targets)."""
        inputs = self._prepare(inputs)
        return inputs if targets is None else (inputs, targets)

    def arrays(self, statistics: bool = False) -> dict[str, NDArray[Any]]:
        """Copy the arrays by their names in state_dict."""
        tensors = [(name, each) for name, each in self.module.named_parameters() if each.requires_grad]
        tensors += self.module.named_buffers() if statistics else []
        return {name: copy_to_array(tensor) for name, tensor in tensors}

    def _prepare(self, inputs: Any) -> Any:
        """Return the inputs as the module takes them."""
        if self._as_is:
            return inputs
        x = inputs.movedim(-1, 1) if inputs.dim() > 2 else inputs
        if not (self.channels_last and x.dim() == 4):
            x = x.contiguous()
        return x.div(PIXEL_SCALE).sub(1) if x.dtype == torch.uint8 else x

    def _call_module(self, inputs: Any) -> Any:
        """Call the module with one tensor, the tensors of a tuple, or a dict, by name where its forward has all the
        names, else as its only argument."""
        if isinstance(inputs, tuple):
            return self.module(*inputs)
        if not isinstance(inputs, dict):
            return self.module(inputs)
        names = tuple(inputs)
        if names not in self._takes_names:
            self._takes_names[names] = _takes(self.module.forward, **inputs)
            parameters = inspect.signature(self.module.forward).parameters.keys()
            if (taken := parameters & names) and len(parameters) > 1 and not self._takes_names[names]:
                others = ", ".join(repr(name) for name in names if name not in taken)
                raise UserProblem(
                    f"has no {others} among the arguments of its forward, which takes {', '.join(sorted(taken))} by "
                    "name: return them as targets, (inputs, targets), or let forward take them"
                )
        return self.module(**inputs) if self._takes_names[names] else self.module(inputs)

    def _count_batch(self) -> int:
        """Return the number of the batch among those of training, or of this evaluation; 0 in compiled code, which
        would be compiled again for each number."""
        if torch.compiler.is_compiling():
            return 0
        self._batches[self.training] += 1
        return self._batches[self.training] - 1


def _takes(function: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    return True


def check_loss(result: Any, in_training: bool = True, by: str = "") -> Tensor:
    """Return the loss, which may be an attribute or an entry `loss` of the result, or the only number in a tuple, such
    as (logits, loss). Raises UserProblem where none is; `by` says which function beside the module has computed it."""
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", result)
    if isinstance(loss, (tuple, list)):
        numbers = [each for each in loss if isinstance(each, Tensor) and each.dim() == 0 and each.is_floating_point()]
        loss = numbers[0] if len(numbers) == 1 else loss
    is_loss = isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()
    if not is_loss and not in_training:
        raise UserProblem(
            f"{by}gives no loss in evaluation mode, only what it predicts: set measure.evaluate=false, or have it "
            "compute the loss where the batch has labels"
        )
    if not isinstance(loss, Tensor):
        kind = user_code.describe_result(result)
        if isinstance(result, Mapping):
            kind += f" of {', '.join(map(str, result))}"
        others = (
            "" if by else ", or set model.loss=MODULE:FUNCTION, which takes what the module gives for the inputs alone"
        )
        raise UserProblem(
            f"{by}gives {kind}, and should give the mean loss of a batch: return it, also as 'loss' of a dict{others}"
        )
    if not is_loss:
        dtype = str(loss.dtype).removeprefix("torch.")
        raise UserProblem(
            f"{by}gives {dtype} of shape {tuple(loss.shape)}, and should give the mean loss of a batch, one number"
        )
    return (loss.sum() if loss.dim() else loss).float()  # no view, which FSDP warns of


def find_lightning_class(module: Any) -> type | None:
    """Return the class LightningModule from which a module is derived; None for any other module. Lightning is not
    imported: it has two packages, and the module's file has imported one of them."""
    names = ("pytorch_lightning.core.module", "lightning.pytorch.core.module")
    kinds = (kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule" and kind.__module__ in names)
    return next(kinds, None)


def list_overridden(module: Any, hooks: Sequence[str]) -> list[str]:
    """Return those of the hooks that a LightningModule defines by itself."""
    base = find_lightning_class(module)
    return [hook for hook in hooks if base is not None and getattr(type(module), hook) is not getattr(base, hook)]


def bind_progress(module: nn.Module, progress: Progress) -> None:
    """Have a LightningModule read its step and its epoch from the run, and give it a logger that keeps nothing. A
    Trainer counts the steps of one fit, and most strategies have none."""
    base, kind = find_lightning_class(module), type(module)
    if base is None:
        return
    logger = importlib.import_module(base.__module__.replace("core.module", "loggers.logger")).DummyLogger()

    def set_trainer(module: Any, trainer: Any) -> None:
        module._progress.trainer = trainer

    def log(module: Any, *args: Any, **settings: Any) -> None:
        if module._trainer is not None and module._trainer._results is not None:  # within a fit
            kind.log(module, *args, **settings)  # type: ignore[attr-defined]

    names = {
        "global_step": property(lambda module: module._progress.steps),
        "current_epoch": property(lambda module: module._progress.epoch),
        "global_rank": property(lambda module: distributed.get_rank() if distributed.is_initialized() else 0),
        "logger": property(lambda module: logger),
        "_trainer": property(lambda module: module._progress.trainer, set_trainer),
        "log": log,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    module._progress = progress  # type: ignore[assignment]
    module.__class__ = type(kind.__name__, (kind,), names)
