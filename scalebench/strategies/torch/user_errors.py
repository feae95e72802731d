"""Failures of a user's code, in one line that names the user's function, the reason, and the way out."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from scalebench.core.errors import InputError, PluginError, describe_exception
from scalebench.core.plugins import UserProblem
from scalebench.core.spec import Config, ModelSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.step_module import StepModule
from scalebench.workloads import user_code

MAX_NAMES = 4  # parameter names in one line
MAX_ERROR_CHARACTERS = 300  # the log has the complete error
# Of messages about a group of ranks, which another rank may have broken.
COMMUNICATION = re.compile(r"gloo|nccl|horovod|process ?group|connect|socket|timed out", re.IGNORECASE)
NO_MEMORY = re.compile(r"out of memory|allocate|bad_alloc", re.IGNORECASE)
RUN_BACKWARD = "_engine_run_backward"  # PyTorch's function around every backward pass
# The beginnings of DDP's and of Lightning's message about parameters without a gradient.
UNUSED_PARAMETERS = "Expected to have finished reduction in the prior|has parameters that were not used in producing"
UNUSED_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")  # among the parameters that are trained

# Parts of messages of PyTorch and of Lightning, each with what the module does and the way out.
UNSUPPORTED = {
    "is not attached to a `Trainer`": (
        "needs a Trainer (self.trainer, self.all_gather, self.optimizers), which only Lightning's strategies have: "
        "take lightning_ddp or lightning_fsdp"
    ),
    r"Could not run '\S+' with arguments from the 'Sparse\w+' backend": (
        "has sparse gradients, which this strategy cannot exchange: set sparse=False in its embeddings, or take "
        "strategy=ddp"
    ),
    r"_ToTorchTensor\w* is a view and is being modified inplace": (
        "overwrites in place what a layer gives that this strategy has split: write x = x + y for x += y, or take "
        "strategy=fsdp"
    ),
    "SyncBatchNorm expected input tensor to be on": (
        "has a SyncBatchNorm, which PyTorch computes on GPUs alone where there are several devices: take BatchNorm"
    ),
    "The closure hasn't been executed": (
        "has an optimizer whose step does not call the closure that Lightning gives it, and which computes the "
        "gradients: call it there, or take a strategy without a Trainer, such as ddp"
    ),
}
# What is added to an error itself.
HINTS = {
    f"Expected to mark a variable ready only once|{UNUSED_PARAMETERS}": (
        "checkpoint with use_reentrant=False, compute the loss from all outputs, or set "
        "strategy.options.static_graph=true"
    ),
    "Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available": (
        "this run has no GPU, so leave moving the module and its samples to scalebench"
    ),
    r"got mixed torch\.Tensor and DTensor|inputs with different meshes": (
        "a weight that is split is used without a call of its layer or block: call it, or take a strategy that leaves "
        "weights whole, such as ddp; under fsdp, strategy.options.units=whole helps too"
    ),
    "does not support sparse gradients": "set train.optimizer=sgd, or sparse=False in its embeddings",
    r"expected input\[.*\] to have \d+ channels": (
        "of samples that are one array the last axis has the channels, which reach the module first: let the function "
        "give (n, height, width, channels)"
    ),
    "Expected more than 1 value per channel": (
        "a device has one sample of a step, or of a part of one, which BatchNorm cannot normalize: raise "
        "train.batch_per_device or dataset.size, or lower train.accumulate"
    ),
}


@contextmanager
def attribute_errors_to_user(
    model: ModelSpec, anywhere: bool = False, trained: Sequence[str] = (), finds_unused: bool = False
) -> Iterator[None]:
    """Turn errors in the user's code into a PluginError that names the user's function.

    With `anywhere` every error counts, without it only those raised during the module's forward or backward pass, or by
    its optimizer or scheduler. `trained` are the names of the module's parameters that are trained, and with
    `finds_unused` the wrapper looks for those without a gradient by itself. Lack of memory is raised as it is.
    """
    try:
        yield
    except (InputError, Unsupported, MemoryError):
        raise
    except UserProblem as problem:
        raise PluginError(f"{function_label(model)} {problem}", traceback.format_exc()) from problem
    except (Exception, SystemExit) as error:
        if model.torch is None:
            raise
        label, message = function_label(model), str(error)
        for part, reason in UNSUPPORTED.items():
            if re.search(part, message):
                raise Unsupported(f"{label} {reason}") from error
        if re.search(UNUSED_PARAMETERS, message) and not finds_unused:
            indices = UNUSED_INDICES.search(message)  # Lightning's message has none
            names = [trained[int(index)] for index in indices[1].split()] if indices and trained else []
            reason = unused_parameters_reason(model, names)
        elif (place := _find_place(error)) is not None or anywhere or re.search(UNUSED_PARAMETERS, message):
            hints = [f"; {hint}" for part, hint in HINTS.items() if re.search(part, message)]
            reason = f"{label} fails{place or ''}: {describe_exception(error)[:MAX_ERROR_CHARACTERS]}{''.join(hints)}"
        else:
            raise
        raise PluginError(reason, traceback.format_exc()) from error


def _find_place(error: BaseException) -> str | None:
    """Return which part of a step an error of the user's code comes from, for the reason: nothing for the forward pass.
    None: it comes from none, as where another rank has broken the group."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    owners = [frame.f_locals.get("self") for frame in frames]
    if any(isinstance(owner, StepModule) for owner in owners):
        return ""
    if COMMUNICATION.search(str(error)) or NO_MEMORY.search(str(error)):
        return None
    if any(frame.f_code.co_name == RUN_BACKWARD for frame in frames):
        return " in its backward pass"
    # The innermost one, since wrappers of strategies are optimizers, too. PyTorch's own around `step` is `wrapper`.
    steps = [
        type(owner).__name__
        for owner, frame in zip(owners, frames, strict=True)
        if isinstance(owner, (Optimizer, LRScheduler)) and frame.f_code.co_name in ("step", "wrapper")
    ]
    return f" in {steps[-1]}.step" if steps else None


@contextmanager
def attribute_errors_to_wrapping(config: Config) -> Iterator[None]:
    """Turn errors of a strategy that wraps a user's module into Unsupported: nothing of the user's need be wrong."""
    model, strategy = config.model, config.strategy.name
    try:
        yield
    except (InputError, Unsupported, MemoryError, ImportError):
        raise
    except UserProblem as problem:
        raise Unsupported(f"{function_label(model)} {problem}") from problem
    except Exception as error:
        if model.torch is None or COMMUNICATION.search(str(error)) or NO_MEMORY.search(str(error)):
            raise
        what = describe_exception(error)[:MAX_ERROR_CHARACTERS]
        raise Unsupported(
            f"{function_label(model)} makes a module that strategy={strategy} cannot take, though others may: {what}"
        ) from error


def function_label(model: ModelSpec) -> str:
    return user_code.label_function(model, "torch")


def unused_parameters_reason(model: ModelSpec, names: Sequence[str]) -> str:
    """Return why DistributedDataParallel cannot train these parameters, and the option with which it can."""
    which = f" ({summarize_names(names)})" if names else ""
    return (
        f"{function_label(model)} has parameters that get no gradient{which}, and DistributedDataParallel waits for "
        "all: leave them out, or set strategy.options.find_unused_parameters=true (with checkpoints by "
        "use_reentrant=True, which hide them: static_graph=true)"
    )


def summarize_names(names: Sequence[str]) -> str:
    """Return the first names of parameters for one line."""
    return ", ".join([*names[:MAX_NAMES], *(["..."] if len(names) > MAX_NAMES else [])])


def check_parts_even(model: ModelSpec, samples: int, replicas: int) -> None:
    """Raise PluginError where the replicas' parts of a batch differ, for code that exchanges them between the ranks."""
    fewest, rest = divmod(samples, replicas)
    if rest:
        function = f"model.loss={model.loss}" if ":" in model.loss else function_label(model)
        raise PluginError(
            f"{function} communicates between ranks, whose parts of the last batch differ ({fewest} and {fewest + 1} "
            "samples): change dataset.size"
        )
