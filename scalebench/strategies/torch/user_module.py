"""A user's torch.nn.Module: built by the user's function, checked on two samples before training, and named in the
reason of every failure that it causes."""

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

from scalebench.core.errors import InputError, PluginError, describe_exception
from scalebench.core.spec import Config, ModelSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.precision import Precision
from scalebench.strategies.torch.profiling import count_flops
from scalebench.workloads import user_code
from scalebench.workloads.datasets.images import PIXEL_SCALE
from scalebench.workloads.network import TRAINING_PASSES

# The beginnings of DDP's and of Lightning's message about parameters without a gradient.
UNUSED_PARAMETERS = re.compile(
    "Expected to have finished reduction in the prior|has parameters that were not used in producing"
)
MAX_NAMES = 4  # parameter names in one line
MAX_ERROR_CHARACTERS = 300  # the log has the complete error
CHECK_SAMPLES = 2


class UserModule(nn.Module):
    """Turn (samples, *input_shape) into the outputs of the user's `module` for (samples, channels, ...).

    Inputs are float32, or uint8 that becomes -1 .. 1, as for a NetworkModule. They are contiguous in memory, which
    modules may rely on (`view`); with `data_format` nhwc, images and their kernels are channels last.
    """

    def __init__(self, module: nn.Module, data_format: str = "default") -> None:
        super().__init__()
        self.module = module
        self.unused_parameters: list[str] = []  # those on which the outputs of the check did not depend
        self.flops_per_sample: float | None = None  # of training; None: not countable
        self.channels_last = data_format == "nhwc"
        for parameter in module.parameters() if self.channels_last else ():
            if parameter.dim() == 4:  # Module.to fails on kernels with 5 axes
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.movedim(-1, 1) if inputs.dim() > 2 else inputs
        if not (self.channels_last and x.dim() == 4):
            x = x.contiguous()
        outputs = self.module(x.div(PIXEL_SCALE).sub(1) if x.dtype == torch.uint8 else x)
        if not isinstance(outputs, Tensor):  # some modules return more in training than in evaluation
            raise TypeError(f"it should give one tensor, and gives a {type(outputs).__name__}")
        return outputs

    def arrays(self, statistics: bool = False) -> dict[str, NDArray[Any]]:
        """Copy the trained parameters, and with `statistics` the buffers, by their names in state_dict."""
        tensors = [(name, parameter) for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        tensors += self.module.named_buffers() if statistics else []
        # Cloned first: a numpy view pins its memory, which FSDP frees.
        return {name: tensor.detach().cpu().clone().numpy().copy(order="C") for name, tensor in tensors}


def build_user_module(config: Config, device: torch.device) -> UserModule:
    """Build the user's module on its device, seeded, so that all ranks and strategies start from the same weights.

    Raises PluginError where the function fails or its module cannot be trained.
    """
    model = config.model
    if model.torch is None:
        name = config.strategy.name
        raise Unsupported(f"model={model.name} has no model.torch=MODULE:FUNCTION, which {name} needs")
    build = user_code.load_function(model.torch, "model.torch")
    _seed_generators(config.seed)
    with attribute_errors_to_user(model, anywhere=True):
        _check_call(build, model)
        module = build(**model.options)
        _check_module(module, model)
        if not config.train.dropout:
            _disable_dropout(module)
        return UserModule(module, config.train.data_format).to(device).train()


@contextmanager
def attribute_errors_to_user(
    model: ModelSpec, anywhere: bool = False, unused_parameters: Sequence[str] = ()
) -> Iterator[None]:
    """Turn errors in the user's code into a PluginError that names the user's function.

    With `anywhere` every error counts, without it only those raised during the module's forward pass.
    `unused_parameters`: see UserModule. Lack of memory is raised as it is.
    """
    try:
        yield
    except (InputError, Unsupported, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if model.torch is None:
            raise
        if UNUSED_PARAMETERS.search(str(error)):
            reason = _unused_parameters_reason(model, unused_parameters)
        elif anywhere or any(
            frame.f_code is UserModule.forward.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)
        ):
            reason = f"{function_label(model)} fails: {describe_exception(error)[:MAX_ERROR_CHARACTERS]}"
        else:
            raise
        raise PluginError(reason, traceback.format_exc()) from error


def function_label(model: ModelSpec) -> str:
    """Return the beginning of every reason: the key and the function that it names."""
    return f"model.torch={model.torch}"


def _unused_parameters_reason(model: ModelSpec, names: Sequence[str]) -> str:
    """Summarize in one line DDP's long message about parameters without a gradient."""
    shown = [*names[:MAX_NAMES], *(["..."] if len(names) > MAX_NAMES else [])]
    which = f" ({', '.join(shown)})" if shown else ""
    return (
        f"{function_label(model)} has parameters that get no gradient{which}, and DistributedDataParallel waits for "
        "all: leave them out, or set strategy.options.find_unused_parameters=true"
    )


def _seed_generators(seed: int) -> None:
    """Seed every generator from which a function may draw weights without seeding it itself."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _check_call(build: Callable[..., Any], model: ModelSpec) -> None:
    if isinstance(build, nn.Module) or not callable(build):
        raise PluginError(f"{function_label(model)} is a {type(build).__name__}: name a function that makes the module")
    try:
        inspect.signature(build).bind(**model.options)
    except ValueError:  # some builtins have no signature
        return
    except TypeError as error:
        raise PluginError(
            f"{function_label(model)} cannot be called with model.options={model.options}: {error}"
        ) from None


def _check_module(module: Any, model: ModelSpec) -> None:
    """Raise PluginError if it is not a module, or if its parameters cannot be trained like those of our networks."""
    problem = None
    if not isinstance(module, nn.Module):
        returned = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        problem = f"gives {returned}, and no torch.nn.Module"
    elif isinstance(module, (DistributedDataParallel, DataParallel)):
        problem = f"gives a {type(module).__name__}: leave wrapping to the strategy, and give the module within"
    else:
        problem = _parameter_problem(module)
    if problem is not None:
        raise PluginError(f"{function_label(model)} {problem}")


def _parameter_problem(module: nn.Module) -> str | None:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    for name, tensor in tensors:
        if is_lazy(tensor):
            return f"has a lazy layer, and '{name}' no shape yet: give the layer its sizes, or call the module once"
    for name, parameter in trained.items():
        if parameter.dtype != torch.float32:
            dtype = str(parameter.dtype).removeprefix("torch.")
            return f"has '{name}' in {dtype}: what is trained is float32, and train.precision says what it computes in"
    return None if trained else "has no parameter to train"


def _disable_dropout(module: nn.Module) -> None:
    """Switch off the dropout of torch.nn's layers; check_user_module detects modules that still draw numbers."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        elif isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)):
            layer.dropout = 0.0


class RankMessages(Protocol):
    """The part of a TorchGroup that compares the ranks' weights."""

    def broadcast(self, value: float) -> float: ...

    def sum(self, values: list[float]) -> list[float]: ...


def check_user_module(
    model: UserModule, config: Config, device: torch.device, precision: Precision, ranks: RankMessages | None
) -> None:
    """Raise PluginError if the user's module cannot be trained, else count its FLOPs; the module is left as it was.

    Its outputs have to fit the targets and depend on the parameters, with train.dropout=false it must not draw random
    numbers, and all ranks have to start from the same weights.
    """
    samples = torch.zeros(CHECK_SAMPLES, *config.model.input_shape, dtype=_input_dtype(config), device=device)
    with attribute_errors_to_user(config.model):
        outputs = _evaluate_samples(model, samples, precision.autocast())
        model.unused_parameters = _find_unused_parameters(model, outputs)
        problem = _output_problem(outputs, config)
        if problem is None and not config.train.dropout and _draws_random_numbers(model, samples, precision.autocast()):
            problem = (
                "draws numbers in training although train.dropout=false, which turns off layers of torch.nn alone: "
                "make an nn.Dropout of it, or take train.dropout=true"
            )
    if problem is None and ranks is not None and _weights_differ(model, ranks):
        problem = "gives other weights on every rank: draw them from torch, numpy.random or random, which are seeded"
    if problem is not None:
        raise PluginError(f"{function_label(config.model)} {problem}")
    model.flops_per_sample = _count_training_flops(model, samples, precision.autocast())


def _count_training_flops(model: UserModule, samples: Tensor, autocast: AbstractContextManager[None]) -> float | None:
    """Return the FLOPs of training on one sample, three times those of a forward pass as for our networks.

    None where PyTorch counts nothing, fails, or misses a part: it does not look into recurrent layers. Operators of the
    user's own kernels are not counted either, which nothing shows.
    """
    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        return None
    try:
        # With gradients, since transformer layers otherwise take a fused way that is not counted.
        flops = count_flops(lambda: _evaluate_samples(model, samples, autocast))
    except Exception:  # the count is no reason to refuse a module that trains
        return None
    return TRAINING_PASSES * flops / len(samples) or None


def _input_dtype(config: Config) -> torch.dtype:
    return torch.uint8 if config.dataset.dtype == "uint8" else torch.float32


def _evaluate_samples(model: UserModule, samples: Tensor, autocast: AbstractContextManager[None]) -> Tensor:
    model.eval()
    try:
        with autocast:
            return model(samples)
    finally:
        model.train()


def _output_problem(outputs: Tensor, config: Config) -> str | None:
    shape, dataset = tuple(outputs.shape), config.dataset
    if not outputs.is_floating_point():
        return f"gives outputs of {str(outputs.dtype).removeprefix('torch.')}, which no loss can be made of"
    if config.model.loss == "cross_entropy":
        classes = dataset.classes or 2
        if len(shape) != 2 or shape[0] != CHECK_SAMPLES or shape[1] < classes:
            count = f"{dataset.classes} classes" if dataset.classes else "classes"
            return (
                f"gives outputs of {shape} for {CHECK_SAMPLES} samples; dataset={dataset.name} has {count}: "
                "give each an output"
            )
    elif shape != (targets := (CHECK_SAMPLES, *config.model.target_shape)):
        return (
            f"gives outputs of {shape} for {CHECK_SAMPLES} samples; the targets of dataset={dataset.name} are {targets}"
        )
    if not outputs.requires_grad:
        return "gives outputs that do not hang on its parameters: nothing of it can be trained"
    return None


def _find_unused_parameters(model: UserModule, outputs: Tensor) -> list[str]:
    """Return the names of the parameters that are not in the autograd graph of the outputs."""
    pending, visited, reached = [outputs.grad_fn], set(), set()
    while pending:
        node = pending.pop()
        if node is not None and node not in visited:
            visited.add(node)
            reached.add(id(getattr(node, "variable", None)))
            pending += [function for function, _ in node.next_functions]
    parameters = model.module.named_parameters()
    return [name for name, parameter in parameters if parameter.requires_grad and id(parameter) not in reached]


def _draws_random_numbers(model: UserModule, samples: Tensor, autocast: AbstractContextManager[None]) -> bool:
    """Return True if a forward pass in training mode takes numbers from a generator. Buffers are restored."""
    saved = [buffer.clone() for buffer in model.buffers()]
    before = _generator_states(samples.device)
    with torch.no_grad(), autocast:
        model(samples)
        for buffer, value in zip(model.buffers(), saved, strict=True):
            buffer.copy_(value)
    return any(not torch.equal(a, b) for a, b in zip(before, _generator_states(samples.device), strict=True))


def _generator_states(device: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def _weights_differ(model: UserModule, ranks: RankMessages) -> bool:
    """Return True on all ranks if the weights of any rank differ from rank 0's."""
    checksum = float(_checksum(model.state_dict().values()))
    return ranks.sum([float(ranks.broadcast(checksum) != checksum)])[0] > 0


def _checksum(tensors: Any) -> int:
    """Compute a checksum of 32 bits, which a float64 represents exactly."""
    checksum = 0
    for tensor in tensors:
        if isinstance(tensor, Tensor):  # a state_dict may hold other values
            checksum = zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), checksum)
    return checksum
