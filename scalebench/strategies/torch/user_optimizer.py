"""An optimizer of the user's, with its schedulers, under every strategy."""

from __future__ import annotations

import inspect
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from scalebench.core.spec import TrainSpec
from scalebench.strategies.torch.step_module import Progress
from scalebench.strategies.torch.user_errors import UserProblem, summarize_names

# The beginning of PyTorch's warning where a wrapper steps the optimizer that a scheduler was made for.
SCHEDULER_FIRST = r"Detected call of `lr_scheduler\.step\(\)` before"
OWN_ATTRIBUTES = ("param_groups", "state", "defaults")  # of every optimizer
ADVANCES_BY_STEP = "step"  # Lightning's interval of a scheduler; by epoch is its default


class UserOptimizer:
    """An optimizer of the user's, with the schedulers that go on with each step."""

    def __init__(self, result: Any, module: nn.Module, train: TrainSpec) -> None:
        """`result` is what configure_optimizers returned, or the optimizer that came with the module; raises
        UserProblem unless it is one optimizer of all parameters that are trained, with one schedule at most."""
        self.result = result
        self.optimizer, configs = read_optimizers(result)
        if configs and (train.schedule != "constant" or train.warmup_epochs > 0):
            name = type(configs[0]["scheduler"]).__name__
            raise UserProblem(
                f"has the scheduler {name}, and train.schedule and train.warmup_epochs set the same learning rate: "
                "leave out one of them"
            )
        # Those that advance by step, and those by epoch; one that waits for a metric stays where it is.
        self.by_step = [config for config in configs if config.get("interval") == ADVANCES_BY_STEP]
        self.by_epoch = [
            config
            for config in configs
            if config not in self.by_step and not isinstance(config["scheduler"], ReduceLROnPlateau)
        ]
        if any(isinstance(config["scheduler"], ReduceLROnPlateau) for config in self.by_step):
            raise UserProblem(
                "has a ReduceLROnPlateau with the interval 'step', and no metric is computed in a step: leave it out, "
                "or take a scheduler that counts steps"
            )
        for config in configs:
            hold_last_rate(config["scheduler"])
        if configs:
            warnings.filterwarnings("ignore", message=SCHEDULER_FIRST)
        check_parameters(self.optimizer, module)
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._base_rates = [group.get("lr") for group in self.optimizer.param_groups]  # None: it has none
        group_rates = [group.get("initial_lr", group.get("lr")) for group in self.optimizer.param_groups]
        rates = {None if rate is None else float(rate) for rate in group_rates}
        # The learning rate before any scheduler; None where groups of parameters have different ones, or none.
        self.peak_rate = rates.pop() if len(rates) == 1 else None

    def follow_parameters(self, module: nn.Module) -> Optimizer:
        """Have the optimizer step the parameters that now have the same names, as sharding replaces them."""
        current = dict(module.named_parameters())
        for group in self.optimizer.param_groups:
            group["params"] = [current[self._names[id(parameter)]] for parameter in group["params"]]
        self._names = {id(parameter): name for name, parameter in current.items()}
        return self.optimizer

    def copy_for(self, groups: Iterable[dict[str, Any]]) -> Optimizer:
        """Return an optimizer of the same kind and settings for other groups of parameters, without any state."""
        kind = type(self.optimizer)
        other = kind.__new__(kind)
        copy_attributes(self.optimizer, other)
        other.param_groups, other.state = [dict(group) for group in groups], defaultdict(dict)
        return other

    def check_divisible(self) -> None:
        """Raise UserProblem if the optimizer keeps more than its state by parameter, for strategies that have it step
        others than the module's."""
        names = [
            name for name, value in vars(self.optimizer).items() if name not in OWN_ATTRIBUTES and _holds_tensors(value)
        ]
        if names:
            raise UserProblem(
                f"gives {type(self.optimizer).__name__} as its optimizer, which keeps tensors outside of its state "
                f"({summarize_names(names)}), and this strategy divides the parameters among the processes: keep them "
                "in state[parameter], or take a strategy that leaves parameters whole, such as ddp"
            )

    def scale_rates(self, optimizer: Optimizer, factor: float) -> None:
        """Set each group's learning rate to the user's, times the factor of scalebench's schedule."""
        for group, rate in zip(optimizer.param_groups, self._base_rates, strict=True):
            if rate is not None:
                group["lr"] = rate * factor
            elif factor != 1.0:
                raise UserProblem(
                    f"gives {type(self.optimizer).__name__} as its optimizer, whose groups have no 'lr' to change: "
                    "leave train.schedule at constant"
                )

    def advance_schedulers(self, progress: Progress, by_step: bool) -> None:
        """Advance the schedulers after a step: those by epoch, and with `by_step` those by step."""
        due = [(config, progress.steps) for config in (self.by_step if by_step else [])]
        if progress.is_epoch_over:
            due += [(config, progress.epoch) for config in self.by_epoch]
        for config, count in due:
            if count % config.get("frequency", 1) == 0:
                config["scheduler"].step()


def copy_attributes(source: Optimizer, target: Optimizer) -> None:
    """Copy what an optimizer's constructor has set, without calling it: its arguments may be unknown."""
    # A scheduler puts a `step` there that is bound to the source.
    vars(target).update({name: value for name, value in vars(source).items() if name != "step"})


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, Mapping)):
        return any(map(_holds_tensors, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, Optimizer) or (isinstance(value, Tensor) and value.dim() > 0)


def read_optimizers(result: Any) -> tuple[Optimizer, list[dict[str, Any]]]:
    """Return the optimizer and the settings of its schedulers, from any form that configure_optimizers may return.

    Raises UserProblem unless there is exactly one optimizer.
    """
    optimizers, schedulers = result, []
    if isinstance(result, Mapping):
        optimizers = result.get("optimizer")
        schedulers = [result["lr_scheduler"]] if "lr_scheduler" in result else []
    elif isinstance(result, (tuple, list)) and len(result) == 2 and isinstance(result[0], (tuple, list)):
        optimizers, schedulers = result
    optimizers = list(optimizers) if isinstance(optimizers, (tuple, list)) else [optimizers]
    if len(optimizers) != 1:
        way_out = "; your own script runs as it is: script=FILE" if optimizers else ""
        raise UserProblem(f"gives {len(optimizers)} optimizers, and a step is one of one optimizer{way_out}")
    (optimizer,) = optimizers
    if isinstance(optimizer, Mapping):
        return read_optimizers(optimizer)
    if not isinstance(optimizer, Optimizer):
        kind = "None" if optimizer is None else f"a {type(optimizer).__name__}"
        raise UserProblem(f"gives {kind} as its optimizer, not a torch.optim.Optimizer")
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)  # a scheduler replaces the instance's own
    except TypeError:
        raise UserProblem(
            f"gives {type(optimizer).__name__} as its optimizer, whose step needs a closure that computes the loss "
            "again, which a step of scalebench does once: take one whose step() has no arguments"
        ) from None
    configs = [each if isinstance(each, Mapping) else {"scheduler": each} for each in schedulers]
    return optimizer, [dict(config) for config in configs]


def hold_last_rate(scheduler: Any) -> None:
    """Let a schedule with a number of steps (OneCycleLR) end there, and keep its last rate: a training for a figure
    takes as many steps as the figure needs. Lightning's loop calls the scheduler itself, so it is its `step` that
    changes."""
    for part in (scheduler, *getattr(scheduler, "_schedulers", ())):  # of a SequentialLR or a ChainedScheduler
        if isinstance(getattr(part, "total_steps", None), int):
            part.step = MethodType(_step_until_end, part)  # a method, which a deep copy binds to the copy


def _step_until_end(scheduler: Any, *epoch: int) -> None:
    if scheduler.last_epoch + 1 < scheduler.total_steps:
        type(scheduler).step(scheduler, *epoch)


def check_parameters(optimizer: Optimizer, module: nn.Module) -> None:
    """Raise UserProblem unless the optimizer has exactly the module's parameters that are trained."""
    held = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    trained = {id(parameter): name for name, parameter in module.named_parameters() if parameter.requires_grad}
    missing = [name for key, name in trained.items() if key not in held]
    if missing:
        raise UserProblem(
            f"has an optimizer that lacks {summarize_names(missing)}: give it these parameters too, or set "
            "requires_grad=False on them"
        )
    foreign = [parameter for key, parameter in held.items() if key not in trained and parameter.requires_grad]
    if foreign:
        raise UserProblem(
            f"has an optimizer of {len(foreign)} parameters that are not its module's: make it from the parameters of "
            "the module that is returned"
        )
