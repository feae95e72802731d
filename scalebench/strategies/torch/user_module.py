"""A user's torch.nn.Module in the form that strategies train; it is named in every failure that it causes."""

from __future__ import annotations

import dataclasses
import inspect
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from scalebench.core.errors import InputError, PluginError, describe_exception
from scalebench.core.spec import Config, ModelSpec
from scalebench.strategies.base import Unsupported
from scalebench.workloads import user_code
from scalebench.workloads.datasets.images import PIXEL_SCALE

if TYPE_CHECKING:
    from scalebench.strategies.torch.user_step import UserOptimizer

# The beginnings of DDP's and of Lightning's message about parameters without a gradient.
UNUSED_PARAMETERS = re.compile(
    "Expected to have finished reduction in the prior|has parameters that were not used in producing"
)
UNUSED_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")  # among the parameters that are trained
READY_TWICE = re.compile("Expected to mark a variable ready only once")
MAX_NAMES = 4  # parameter names in one line
MAX_ERROR_CHARACTERS = 300  # the log has the complete error
# Of messages about a group of ranks, which another rank may have broken.
COMMUNICATION = re.compile(r"gloo|nccl|horovod|process ?group|connect|socket|timed out", re.IGNORECASE)
NO_MEMORY = re.compile(r"out of memory|allocate|bad_alloc", re.IGNORECASE)
RUN_BACKWARD = "_engine_run_backward"  # PyTorch's function around every backward pass
# The beginnings of PyTorch's messages where a function moves a module or a tensor to a GPU that is not there.
NO_GPU = re.compile("Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available")
# The beginning of BatchNorm's message about a batch of one sample.
ONE_SAMPLE = re.compile("Expected more than 1 value per channel")
SPARSE = re.compile(r"Could not run '\S+' with arguments from the 'Sparse\w+' backend")
NO_CLOSURE = re.compile("The closure hasn't been executed")
# The middle of FSDP's message where a module uses the weights of a block that it does not call.
NOT_GATHERED = re.compile(r"got mixed torch\.Tensor and DTensor")
# The end of Lightning's message where a module reaches for its Trainer and has none.
NO_TRAINER = re.compile("is not attached to a `Trainer`")


class UserProblem(Exception):
    """A reason why a user's module cannot be trained; reported after the name of its function."""


@dataclass
class Progress:
    """The steps that a run has trained so far, and the Trainer of a LightningModule, where the strategy has one."""

    steps: int = 0
    steps_per_epoch: int = 0  # 0: not known yet
    trainer: Any = None

    @property
    def epoch(self) -> int:
        """The number of complete epochs."""
        return self.steps // self.steps_per_epoch if self.steps_per_epoch else 0

    @property
    def is_epoch_over(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        return self.steps > 0 and self.steps == self.epoch * self.steps_per_epoch

    def __deepcopy__(self, memo: dict[int, Any]) -> Progress:
        """Return a copy for a copy of the module, with the same Trainer."""
        return dataclasses.replace(self)


class UserModule(nn.Module):
    """Turn (samples, *input_shape) into the outputs of the user's `module` for (samples, channels, ...).

    Inputs are float32, or uint8 that becomes -1 .. 1, as for a NetworkModule. They are contiguous in memory, which
    modules may rely on (`view`); with `data_format` nhwc, images and their kernels are channels last.
    """

    def __init__(self, module: nn.Module, data_format: str = "default", as_is: bool = False) -> None:
        """`as_is`: samples are records, and reach the module as the user's function gave them."""
        super().__init__()
        self.module, self._as_is = module, as_is
        self.remarks: dict[str, str] = {}  # of the check, by flag
        self.unused_parameters: list[str] = []  # those to which the check's backward pass gave no gradient
        self.foreign_tensors: list[Tensor] = []  # of a copy: what it computes with besides its parameters
        self.is_reentrant = False  # checkpointed with use_reentrant=True, which hides parameters from the graph
        self.communicates = False  # whether the step of the check sent messages between the ranks
        self.flops_per_sample: float | None = None  # of training; None: not countable
        self.user_optimizer: UserOptimizer | None = None
        self.progress = Progress()
        self._names_taken: dict[tuple[str, ...], bool] = {}  # whether forward has parameters of these names
        self.channels_last = data_format == "nhwc"
        for parameter in module.parameters() if self.channels_last else ():
            if parameter.dim() == 4:  # Module.to fails on kernels with 5 axes
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    def forward(self, inputs: Any) -> Tensor:
        outputs = self.call_module(self.prepare(inputs))
        if not isinstance(outputs, Tensor):  # some modules return more in training than in evaluation
            mode = "training" if self.training else "evaluation mode"
            raise UserProblem(f"gives a {type(outputs).__name__} in {mode}: it should give one tensor")
        return outputs

    def prepare(self, inputs: Any) -> Any:
        """Return the inputs as the module takes them: channels first, floats for bytes; records stay as they are."""
        if self._as_is:
            return inputs
        x = inputs.movedim(-1, 1) if inputs.dim() > 2 else inputs
        if not (self.channels_last and x.dim() == 4):
            x = x.contiguous()
        return x.div(PIXEL_SCALE).sub(1) if x.dtype == torch.uint8 else x

    def call_module(self, inputs: Any) -> Any:
        """Call the module with one tensor, the tensors of a tuple, or a dict, by name where its forward has all the
        names, else as its only argument."""
        if isinstance(inputs, tuple):
            return self.module(*inputs)
        if isinstance(inputs, dict) and self._takes_names(tuple(inputs)):
            return self.module(**inputs)
        return self.module(inputs)

    def _takes_names(self, names: tuple[str, ...]) -> bool:
        if names not in self._names_taken:
            try:
                inspect.signature(self.module.forward).bind(**dict.fromkeys(names))
                self._names_taken[names] = True
            except TypeError:
                self._names_taken[names] = False
        return self._names_taken[names]

    def arrays(self, statistics: bool = False) -> dict[str, NDArray[Any]]:
        """Copy the trained parameters, and with `statistics` the buffers, by their names in state_dict; those that are
        split over processes are gathered."""
        tensors = [(name, parameter) for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        tensors += self.module.named_buffers() if statistics else []
        gathered = {
            name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for name, tensor in tensors
        }
        # Cloned first: a numpy view pins its memory, which FSDP frees.
        return {name: tensor.detach().cpu().clone().numpy().copy(order="C") for name, tensor in gathered.items()}


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
        if NO_TRAINER.search(str(error)):
            raise Unsupported(
                f"{function_label(model)} needs a Trainer (self.trainer, self.all_gather, self.optimizers), which only "
                "Lightning's strategies have: take lightning_ddp or lightning_fsdp"
            ) from error
        if SPARSE.search(str(error)):
            raise Unsupported(
                f"{function_label(model)} has sparse gradients, which this strategy cannot exchange: set sparse=False "
                "in its embeddings, or take strategy=ddp"
            ) from error
        if NO_CLOSURE.search(str(error)):
            raise Unsupported(
                f"{function_label(model)} has an optimizer whose step does not call the closure that Lightning gives "
                "it, and which computes the gradients: call it there, or take a strategy without a Trainer, such as ddp"
            ) from error
        if UNUSED_PARAMETERS.search(str(error)) and finds_unused:
            reason = (
                f"{function_label(model)} leaves DistributedDataParallel without gradients of parameters from which "
                "its outputs were computed, which strategy.options.find_unused_parameters=true does not find: compute "
                "the loss from all outputs, and checkpoint with use_reentrant=False"
            )
        elif UNUSED_PARAMETERS.search(str(error)):
            indices = UNUSED_INDICES.search(str(error))  # Lightning's message has none
            names = [trained[int(index)] for index in indices[1].split()] if indices and trained else []
            reason = unused_parameters_reason(model, names)
        elif READY_TWICE.search(str(error)):
            reason = (
                f"{function_label(model)} computes parts of itself again in the backward pass, whose gradients "
                "DistributedDataParallel then takes for unused ones: checkpoint with use_reentrant=False, or set "
                "strategy.options.static_graph=true"
            )
        elif (place := _find_place(error)) is not None or anywhere:
            reason = f"{function_label(model)} fails{place or ''}: {describe_exception(error)[:MAX_ERROR_CHARACTERS]}"
            if NO_GPU.search(str(error)):
                reason += "; this run has no GPU, so leave moving the module and its samples to scalebench"
            if NOT_GATHERED.search(str(error)):
                reason += (
                    "; weights of a block are gathered where the block is called: use it by calling it, or set "
                    "strategy.options.units=whole"
                )
            if ONE_SAMPLE.search(str(error)):
                reason += (
                    "; a device has one sample of a step, or of a part of one, which BatchNorm cannot normalize: raise "
                    "train.batch_per_device or dataset.size, or lower train.accumulate"
                )
        else:
            raise
        raise PluginError(reason, traceback.format_exc()) from error


def _find_place(error: BaseException) -> str | None:
    """Return which part of a step an error of the user's code comes from, for the reason: nothing for the forward pass.
    None: it comes from none, as where another rank has broken the group."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    owners = [frame.f_locals.get("self") for frame in frames]
    if any(isinstance(owner, UserModule) for owner in owners):
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
    """Return the beginning of every reason: the key and the function that it names, or a library's network."""
    return f"model={model.name}" if model.torch in user_code.LIBRARIES else f"model.torch={model.torch}"


def unused_parameters_reason(model: ModelSpec, names: Sequence[str], option: str = "find_unused_parameters") -> str:
    """Return why DistributedDataParallel cannot train these parameters, and the option with which it can."""
    which = f" ({summarize_names(names)})" if names else ""
    return (
        f"{function_label(model)} has parameters that get no gradient{which}, and DistributedDataParallel waits for "
        f"all: leave them out, or set strategy.options.{option}=true"
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
