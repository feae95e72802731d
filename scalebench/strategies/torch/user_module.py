"""A user's own torch.nn.Module: made by a function, given samples as ours are, and blamed for what it does wrong.

A user's own module, tried on two samples before it trains: outputs, dropout, the same weights on all ranks.
"""

from __future__ import annotations

import inspect
import random
import re
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from scalebench.core.errors import InputError
from scalebench.core.plugins import PluginError, said
from scalebench.core.spec import Config, ModelSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.precision import Precision
from scalebench.workloads import user_code
from scalebench.workloads.datasets.images import PIXEL_SCALE

# How DDP begins what it says of parameters without a gradient, and what Lightning makes of that.
UNUSED = re.compile("Expected to have finished reduction in the prior|has parameters that were not used in producing")
SHOWN = 4  # names in a line at the most
SAID = 300  # characters of an error at the most: the log has it whole


class OwnModule(nn.Module):
    """(samples, *input_shape) -> what the user's `module` makes of (samples, channels, ...).

    Inputs are float32, or uint8 that becomes -1 .. 1, as a NetworkModule takes them. They lie in memory as their shape
    says, which modules may count on (`view`); with `data_format` nhwc images and their kernels lie channels last.
    """

    def __init__(self, module: nn.Module, data_format: str = "default") -> None:
        super().__init__()
        self.module = module
        self.idle: list[str] = []  # parameters that the outputs of the trial did not depend on
        self.channels_last = data_format == "nhwc"
        for parameter in module.parameters() if self.channels_last else ():
            if parameter.dim() == 4:  # Module.to would choke on kernels of 5 axes
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.movedim(-1, 1) if inputs.dim() > 2 else inputs
        if not (self.channels_last and x.dim() == 4):
            x = x.contiguous()
        outputs = self.module(x.div(PIXEL_SCALE).sub(1) if x.dtype == torch.uint8 else x)
        if not isinstance(outputs, Tensor):  # some have more to say in training than in evaluation
            raise TypeError(f"it should give one tensor, and gives a {type(outputs).__name__}")
        return outputs

    def arrays(self, statistics: bool = False) -> dict[str, NDArray[Any]]:
        """Copies of what is trained, and with `statistics` of buffers, as they are and by their names in state_dict."""
        found = [(name, one) for name, one in self.module.named_parameters() if one.requires_grad]
        found += self.module.named_buffers() if statistics else []
        # Cloned first: numpy fixes the memory that it looks at, which FSDP frees.
        return {name: one.detach().cpu().clone().numpy().copy(order="C") for name, one in found}


def built(config: Config, device: torch.device) -> OwnModule:
    """On its device; seeded, so that all ranks and strategies start from the same weights. PluginError where the
    function fails or what it gives cannot be trained."""
    model = config.model
    if model.torch is None:
        name = config.strategy.name
        raise Unsupported(f"model={model.name} has no model.torch=MODULE:FUNCTION, which {name} needs")
    build = user_code.load_function(model.torch, "model.torch")
    _seed(config.seed)
    with blamed(model, anywhere=True):
        _check_call(build, model)
        module = build(**model.options)
        _check_module(module, model)
        if not config.train.dropout:
            _without_dropout(module)
        return OwnModule(module, config.train.data_format).to(device).train()


@contextmanager
def blamed(model: ModelSpec, anywhere: bool = False, idle: Sequence[str] = ()) -> Iterator[None]:
    """Around code that calls the user's: a fault within that becomes a PluginError which names the function.

    `anywhere`: the user's module need not be under way for it; `idle`: see OwnModule. Memory that is not enough stays
    what it is.
    """
    try:
        yield
    except (InputError, Unsupported, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if model.torch is None:
            raise
        if UNUSED.search(str(error)):
            reason = _left_out(model, idle)
        elif anywhere or any(frame.f_code is OwnModule.forward.__code__ for frame, _ in _frames(error)):
            reason = f"{told(model)} fails: {said(error)[:SAID]}"
        else:
            raise
        raise PluginError(reason, traceback.format_exc()) from error


def told(model: ModelSpec) -> str:
    """What a fault begins with."""
    return f"model.torch={model.torch}"


def _frames(error: BaseException) -> list[Any]:
    return list(traceback.walk_tb(error.__traceback__))


def _left_out(model: ModelSpec, idle: Sequence[str]) -> str:
    """DDP's page on parameters without a gradient, in a line."""
    some = [*idle[:SHOWN], *(["..."] if len(idle) > SHOWN else [])]
    which = f" ({', '.join(some)})" if some else ""
    return (
        f"{told(model)} has parameters that get no gradient{which}, and DistributedDataParallel waits for all: "
        "leave them out, or set strategy.options.find_unused_parameters=true"
    )


def _seed(seed: int) -> None:
    """Every generator that a function may draw weights from without seeding one itself."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _check_call(build: Callable[..., Any], model: ModelSpec) -> None:
    if isinstance(build, nn.Module) or not callable(build):
        raise PluginError(f"{told(model)} is a {type(build).__name__}: name a function that makes the module")
    try:
        inspect.signature(build).bind(**model.options)
    except ValueError:  # some builtins do not tell what they take
        return
    except TypeError as error:
        raise PluginError(f"{told(model)} cannot be called with model.options={model.options}: {error}") from None


def _check_module(module: Any, model: ModelSpec) -> None:
    """PluginError for what is no module, or one whose parameters cannot be trained as those of ours."""
    problem = None
    if not isinstance(module, nn.Module):
        given = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        problem = f"gives {given}, and no torch.nn.Module"
    elif isinstance(module, (DistributedDataParallel, DataParallel)):
        problem = f"gives a {type(module).__name__}: leave wrapping to the strategy, and give the module within"
    else:
        problem = _parameter_problem(module)
    if problem is not None:
        raise PluginError(f"{told(model)} {problem}")


def _parameter_problem(module: nn.Module) -> str | None:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    for name, one in tensors:
        if is_lazy(one):
            return f"has a lazy layer, and '{name}' no shape yet: give the layer its sizes, or call the module once"
    for name, one in trained.items():
        if one.dtype != torch.float32:
            kind = str(one.dtype).removeprefix("torch.")
            return f"has '{name}' in {kind}: what is trained is float32, and train.precision says what it computes in"
    return None if trained else "has no parameter to train"


def _without_dropout(module: nn.Module) -> None:
    """What draws for itself in spite of it is found when the module is tried."""
    for one in module.modules():
        if isinstance(one, nn.modules.dropout._DropoutNd):
            one.p = 0.0
        elif isinstance(one, (nn.MultiheadAttention, nn.RNNBase)):
            one.dropout = 0.0


SAMPLES = 2


class Ranks(Protocol):
    """What a Group tells all of its processes."""

    def broadcast(self, value: float) -> float: ...

    def sum(self, values: list[float]) -> list[float]: ...


def check(model: OwnModule, config: Config, device: torch.device, precision: Precision, ranks: Ranks | None) -> None:
    """PluginError unless outputs fit the targets, hang on the parameters, and with train.dropout=false on nothing that
    is drawn; and unless all ranks start from the same weights. Leaves the module as it was."""
    samples = torch.zeros(SAMPLES, *config.model.input_shape, dtype=_dtype(config), device=device)
    with blamed(config.model):
        outputs = _evaluated(model, samples, precision.autocast())
        model.idle = _idle(model, outputs)
        problem = _output_problem(outputs, config)
        if problem is None and not config.train.dropout and _draws(model, samples, precision.autocast()):
            problem = (
                "draws numbers in training although train.dropout=false, which turns off layers of torch.nn alone: "
                "make an nn.Dropout of it, or take train.dropout=true"
            )
    if problem is None and ranks is not None and _differ(model, ranks):
        problem = "gives other weights on every rank: draw them from torch, numpy.random or random, which are seeded"
    if problem is not None:
        raise PluginError(f"{told(config.model)} {problem}")


def _dtype(config: Config) -> torch.dtype:
    return torch.uint8 if config.dataset.dtype == "uint8" else torch.float32


def _evaluated(model: OwnModule, samples: Tensor, autocast: AbstractContextManager[None]) -> Tensor:
    model.eval()
    try:
        with autocast:
            return model(samples)
    finally:
        model.train()


def _output_problem(outputs: Tensor, config: Config) -> str | None:
    found, data = tuple(outputs.shape), config.dataset
    if not outputs.is_floating_point():
        return f"gives outputs of {str(outputs.dtype).removeprefix('torch.')}, which no loss can be made of"
    if config.model.loss == "cross_entropy":
        classes = data.classes or 2
        if len(found) != 2 or found[0] != SAMPLES or found[1] < classes:
            has = f"{data.classes} classes" if data.classes else "classes"
            return f"gives outputs of {found} for {SAMPLES} samples; dataset={data.name} has {has}: give each an output"
    elif found != (wanted := (SAMPLES, *config.model.target_shape)):
        return f"gives outputs of {found} for {SAMPLES} samples; the targets of dataset={data.name} are {wanted}"
    if not outputs.requires_grad:
        return "gives outputs that do not hang on its parameters: nothing of it can be trained"
    return None


def _idle(model: OwnModule, outputs: Tensor) -> list[str]:
    """Names of the parameters that no gradient of the outputs gets to."""
    left, seen, reached = [outputs.grad_fn], set(), set()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            reached.add(id(getattr(node, "variable", None)))
            left += [before for before, _ in node.next_functions]
    named = model.module.named_parameters()
    return [name for name, one in named if one.requires_grad and id(one) not in reached]


def _draws(model: OwnModule, samples: Tensor, autocast: AbstractContextManager[None]) -> bool:
    """Whether a pass in training takes numbers from a generator. Moving statistics are put back."""
    kept = [buffer.clone() for buffer in model.buffers()]
    before = _generators(samples.device)
    with torch.no_grad(), autocast:
        model(samples)
        for buffer, old in zip(model.buffers(), kept, strict=True):
            buffer.copy_(old)
    return any(not torch.equal(a, b) for a, b in zip(before, _generators(samples.device), strict=True))


def _generators(device: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def _differ(model: OwnModule, ranks: Ranks) -> bool:
    """Whether some rank's weights are not rank 0's: the same answer on all of them."""
    here = float(_checksum(model.state_dict().values()))
    return ranks.sum([float(ranks.broadcast(here) != here)])[0] > 0


def _checksum(tensors: Any) -> int:
    """32 bits, which a float64 carries whole."""
    found = 0
    for tensor in tensors:
        if isinstance(tensor, Tensor):  # a module may keep something else there
            found = zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), found)
    return found
