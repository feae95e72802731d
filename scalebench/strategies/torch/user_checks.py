"""Building a user's torch.nn.Module with the user's function, and checking a copy of it on a batch before training."""

from __future__ import annotations

import copy
import inspect
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from scalebench.core.errors import PluginError, describe_exception
from scalebench.core.spec import Config, ModelSpec, has_stop
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.group import count_messages
from scalebench.strategies.torch.precision import Precision
from scalebench.strategies.torch.profiling import count_flops
from scalebench.strategies.torch.user_module import (
    Progress,
    UserModule,
    UserProblem,
    attribute_errors_to_user,
    function_label,
    summarize_names,
    unused_parameters_reason,
)
from scalebench.strategies.torch.user_step import (
    UserOptimizer,
    UserStep,
    bind_progress,
    find_lightning_class,
    find_training_step,
)
from scalebench.workloads import records, user_code
from scalebench.workloads.network import TRAINING_PASSES

Module = TypeVar("Module", bound=nn.Module)
UNTRAINED_FLAG = "untrained_tensors"
MODULE_DICTS = ("_parameters", "_buffers", "_modules")  # of every module, which are copied by name
NO_META_MESSAGES = "No backend type associated with device type meta"  # of a module that communicates


def build_user_module(
    config: Config, device: torch.device, attach_trainer: Callable[[nn.Module], None] = lambda module: None
) -> UserModule:
    """Build the user's module on its device, seeded, so that all ranks and strategies start from the same weights; with
    an optimizer where the function or the module makes one.

    Raises PluginError where the function fails or its module cannot be trained.
    """
    model = config.model
    if model.torch is None:
        name = config.strategy.name
        raise Unsupported(f"model={model.name} has no model.torch=MODULE:FUNCTION, which {name} needs")
    build = user_code.load_function(model.torch, "model.torch")
    _seed_generators(config.seed)
    with attribute_errors_to_user(model, anywhere=True):
        if isinstance(build, nn.Module):
            raise UserProblem(f"is a {type(build).__name__}: name a function that makes the module")
        call = f"model.options={model.options}"
        user_code.check_call(build, function_label(model), "makes the module", call, model.options)
        module, optimizer = _split_result(build(**model.options))
        is_lightning, progress = find_lightning_class(module) is not None, Progress()
        if is_lightning:  # what a Trainer calls once, in its order; the data are scalebench's
            bind_progress(module, progress)
            attach_trainer(module)
            module.setup("fit")
        configure = getattr(module, "configure_model", None)
        if isinstance(module, nn.Module) and callable(configure):
            configure()  # where a LightningModule may make its layers
        _check_module(module, model)
        if not config.train.dropout:
            _disable_dropout(module)
        module.to(device)  # by itself, since a LightningModule learns its device from a call of its own method
        user_module = _wrap_module(module, config).train()
        user_module.progress = progress
        if is_lightning:
            module.on_fit_start()
        make = getattr(module, "configure_optimizers", None)
        if optimizer is None and callable(make) and isinstance(user_module, UserStep):
            optimizer = make()
        if optimizer is not None:
            user_module.user_optimizer = UserOptimizer(optimizer, module, config.train)
            if progress.trainer is not None:
                progress.trainer.strategy.optimizers = [user_module.user_optimizer.optimizer]
        if is_lightning:
            module.on_train_start()
            module.on_train_epoch_start()
        return user_module


def _split_result(result: Any) -> tuple[Any, Any]:
    """Return the module, and the optimizer where the function gives (module, optimizer)."""
    is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module)
    return result if is_pair else (result, None)


def _wrap_module(module: nn.Module, config: Config) -> UserModule:
    """Return the module that strategies train: one that gives outputs, or with a loss of the user's one that gives
    that loss."""
    data_format, as_is = config.train.data_format, config.dataset.dtype == records.RECORD
    if user_code.has_user_loss(config.model):
        if config.model.loss == user_code.MODULE_LOSS and not as_is and not _computes_loss(module):
            suits = "mse" if config.dataset.classes is None else "cross_entropy"
            raise UserProblem(
                f"gives a {type(module).__name__}, which has no training_step and takes no targets, so it computes no "
                f"loss (model.loss={user_code.MODULE_LOSS}, also by auto where the function names a class with a "
                f"training_step): set model.loss={suits}"
            )
        return UserStep(module, data_format, config.model, as_is)
    if find_training_step(module) is not None:
        raise UserProblem(f"has a training_step, which computes its own loss: set model.loss={user_code.MODULE_LOSS}")
    return UserModule(module, data_format, as_is)


def _computes_loss(module: nn.Module) -> bool:
    """Return whether the module has a training_step, or a forward pass of (inputs, targets)."""
    if find_training_step(module) is not None:
        return True
    try:
        inspect.signature(module.forward).bind(None, None)
    except TypeError:
        return False
    return True


def _seed_generators(seed: int) -> None:
    """Seed every generator from which a function may draw weights without seeding it itself."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _check_module(module: Any, model: ModelSpec) -> None:
    """Raise PluginError if it is not a module, or if its parameters cannot be trained like those of our networks."""
    problem = None
    if not isinstance(module, nn.Module):
        returned = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        problem = f"gives {'None' if module is None else returned}, and no torch.nn.Module"
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
    model: UserModule,
    config: Config,
    device: torch.device,
    precision: Precision,
    ranks: RankMessages | None,
    samples: tuple[Any, ...],
    is_large: bool = False,
) -> None:
    """Raise PluginError if the user's module cannot be trained, else note what it leaves untrained, and its FLOPs.

    `samples` are the arguments of its forward pass for the first batch of a device. A copy on `device` trains on them:
    its outputs have to fit the targets and depend on the parameters, with train.dropout=false it must not draw random
    numbers, and all ranks have to start from the same weights. The module and the generators of random numbers stay as
    they were. Of a model that `is_large` there is no second copy of what is trained.
    """
    if ranks is not None and _weights_differ(model, ranks):
        raise PluginError(
            f"{function_label(config.model)} gives other weights on every rank: draw them from torch, numpy.random or "
            "random, which are seeded"
        )
    try:
        with _kept_generators(device):
            _check_copy(model, config, device, precision.autocast(device.type), samples, is_large)
    except (PluginError, torch.OutOfMemoryError) as error:  # the module may yet be trained
        cause = error.__cause__ or error
        if isinstance(cause, torch.OutOfMemoryError):
            print("the module was not checked: a copy of it does not fit beside it on the device")
        elif device.type == "meta" and not isinstance(cause, (PluginError, UserProblem)):
            print(f"the module was not checked, since a copy without values fails: {describe_exception(cause)}")
            model.communicates = NO_META_MESSAGES in str(cause)
        else:
            raise
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def choose_trial_device(device: torch.device, is_large: bool) -> torch.device:
    """Return where a copy of the user's module is checked. A large one may not fit into a GPU, and would take minutes
    on a CPU: its copy has shapes and no values."""
    return torch.device("meta") if is_large and device.type == "cuda" else device


def _check_copy(
    model: UserModule,
    config: Config,
    device: torch.device,
    autocast: AbstractContextManager[None],
    samples: tuple[Any, ...],
    is_large: bool,
) -> None:
    def build_again() -> UserModule:
        return build_user_module(config, device, lambda module: setattr(module, "trainer", model.progress.trainer))

    try:
        trial = _copy_module(model, device, is_large)
    except Exception:  # of an attribute: a lock, a generator, a tensor that was computed
        trial = build_again()
    messages = count_messages()
    problem = _try_step(trial, config, autocast, samples)
    model.communicates = count_messages() > messages
    if any(parameter.grad is not None for parameter in model.parameters()):  # functions of the copy lead back to it
        model.zero_grad()
        trial = build_again()
        problem = _try_step(trial, config, autocast, samples)
    if problem is not None:
        raise PluginError(f"{function_label(config.model)} {problem}")
    model.unused_parameters, model.is_reentrant = trial.unused_parameters, trial.is_reentrant
    model.remarks = _list_remarks(trial, config.model, autocast, samples)
    model.flops_per_sample = _count_training_flops(trial, samples, autocast)


def _list_remarks(
    trial: UserModule, model: ModelSpec, autocast: AbstractContextManager[None], samples: tuple[Any, ...]
) -> dict[str, str]:
    """Return, by flag, what a copy that has made a step leaves untrained."""
    texts = []
    if trial.unused_parameters:
        names = summarize_names(trial.unused_parameters)
        texts.append(
            f"has parameters that get no gradient in the first batch ({names}): not trained unless others use them"
        )
    # A tensor made in the pass, or the inputs, may need a gradient too; those of a second pass are others.
    if trial.foreign_tensors:
        with autocast:
            _, again = _walk_graph(trial, trial(*copy.deepcopy(samples)))
        if count := len({id(each) for each in again} & {id(each) for each in trial.foreign_tensors}):
            texts.append(
                f"uses {count} tensors that are no parameters of the module (nn.ModuleList? nn.Parameter?): not trained"
            )
    return {UNTRAINED_FLAG: f"{function_label(model)} {', and '.join(texts)}"} if texts else {}


def _walk_graph(trial: UserModule, outputs: Tensor) -> tuple[bool, list[Tensor]]:
    """Return whether a part of the autograd graph is hidden by reentrant checkpointing, and the tensors from which the
    outputs are computed besides the module's parameters."""
    parameters = {id(parameter) for parameter in trial.parameters()}
    pending, visited, foreign, hides = [outputs.grad_fn], set(), [], False
    while pending:
        node = pending.pop()
        if node is not None and node not in visited:
            visited.add(node)
            hides |= node.name().startswith("CheckpointFunction")
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in parameters:
                foreign.append(variable)
            pending += [function for function, _ in node.next_functions]
    return hides, foreign


def check_ddp_options(module: UserModule, model: ModelSpec, options: Any) -> None:
    """Raise PluginError where DistributedDataParallel with these options would wait for gradients that never come."""
    static, finds = (getattr(options, name, None) for name in ("static_graph", "find_unused_parameters"))
    if module.unused_parameters and finds is False and not static:
        option = "static_graph" if module.is_reentrant else "find_unused_parameters"
        raise PluginError(unused_parameters_reason(model, module.unused_parameters, option))


def _copy_module(model: UserModule, device: torch.device, is_large: bool) -> UserModule:
    """Return a copy without its optimizer. That of a large module has the same memory for what is trained."""
    optimizer, model.user_optimizer = model.user_optimizer, None
    trained = [each for each in model.parameters() if each.requires_grad] if is_large else []
    try:
        if device.type == "meta":
            trial: UserModule = copy_without_values(model, device)
            trial.module.to(device)  # already there; a LightningModule learns its device from the call
            return trial
        return copy.deepcopy(model, {id(each): nn.Parameter(each.detach()) for each in trained})
    finally:
        model.user_optimizer = optimizer


def copy_without_values(module: Module, device: torch.device) -> Module:
    """Return a copy of a module with uninitialized parameters and buffers on a device, without a copy of the values.

    Layers that share a parameter share it in the copy, which they would not after Module.to or Module.to_empty. What
    cannot be copied, such as a lock or a tensor of the last pass, is that of the module itself.
    """
    copies: dict[int, Any] = {
        id(each): nn.Parameter(torch.empty_like(each, device=device), each.requires_grad)
        for each in module.parameters()
    }
    copies |= {id(each): torch.empty_like(each, device=device) for each in module.buffers()}
    for layer in module.modules():
        for name, value in vars(layer).items():
            if name not in MODULE_DICTS:
                try:
                    copy.deepcopy(value, dict(copies))
                except Exception:  # of whatever kind: objects of the user's refuse in their own ways
                    copies[id(value)] = value
    return copy.deepcopy(module, copies)


def _try_step(
    trial: UserModule, config: Config, autocast: AbstractContextManager[None], samples: tuple[Any, ...]
) -> str | None:
    """Run the passes of a step on a copy, and of an evaluation if there is one. Return what is wrong, if anything, and
    note on the copy which tensors it trains."""
    check = _loss_problem if user_code.has_user_loss(config.model) else _output_problem
    count = len(records.list_fields(samples[0])[0])
    with attribute_errors_to_user(config.model):
        before = _generator_states(next(trial.parameters()).device)
        with autocast:
            outputs = trial(*samples)
        if not config.train.dropout and before != _generator_states(next(trial.parameters()).device):
            return (
                "draws random numbers in training although train.dropout=false, which turns off layers of torch.nn "
                "alone: make an nn.Dropout of it, or take train.dropout=true"
            )
        problem = check(outputs, config, count)
        if problem is None and not outputs.requires_grad:
            what = "a loss that does" if check is _loss_problem else "outputs that do"
            problem = f"gives {what} not depend on its parameters: nothing of it can be trained"
        if problem is not None:
            return problem
    trial.is_reentrant, trial.foreign_tensors = _walk_graph(trial, outputs)
    unused = {name: each for name, each in trial.module.named_parameters() if each.requires_grad}

    def free_gradient(name: str, parameter: Tensor) -> None:  # all gradients would be another copy of the model
        parameter.grad = None
        unused.pop(name, None)

    for name, parameter in unused.items():
        parameter.register_post_accumulate_grad_hook(partial(free_gradient, name))
    with attribute_errors_to_user(config.model, anywhere=True):
        outputs.float().sum().backward()
    trial.unused_parameters = list(unused)
    evaluates = config.dataset.validation_share > 0 and (config.measure.evaluate or has_stop(config.train.stop))
    return _evaluation_problem(trial, config, autocast, samples) if evaluates else None


def _evaluation_problem(
    trial: UserModule, config: Config, autocast: AbstractContextManager[None], samples: tuple[Any, ...]
) -> str | None:
    trial.eval()
    try:
        with attribute_errors_to_user(config.model), torch.no_grad(), autocast:
            outputs = trial(*samples)
    finally:
        trial.train()
    if user_code.has_user_loss(config.model):
        return None
    problem = _output_problem(outputs, config, len(outputs))
    return None if problem is None else f"in evaluation mode {problem}"


def _count_training_flops(
    trial: UserModule, samples: tuple[Any, ...], autocast: AbstractContextManager[None]
) -> float | None:
    """Return the FLOPs of training on one sample, three times those of a forward pass as for our networks.

    None where PyTorch counts nothing, fails, or misses a part: it does not look into recurrent layers. Operators of the
    user's own kernels are not counted either, which nothing shows.
    """
    if any(isinstance(layer, nn.RNNBase) for layer in trial.modules()):
        return None
    try:
        with autocast:  # with gradients, since transformer layers otherwise take a fused path that is not counted
            flops = count_flops(lambda: trial(*samples))
    except Exception:  # the count is no reason to refuse a module that trains
        return None
    return TRAINING_PASSES * flops / len(records.list_fields(samples[0])[0]) or None


def _loss_problem(loss: Tensor, config: Config, count: int) -> str | None:
    if loss.is_meta or torch.isfinite(loss):
        return None
    return f"gives a loss of {loss.item():g} for the first {count} samples: correct the loss, or the samples"


def _output_problem(outputs: Tensor, config: Config, count: int) -> str | None:
    shape, dataset = tuple(outputs.shape), config.dataset
    if not outputs.is_floating_point():
        return f"gives outputs of {str(outputs.dtype).removeprefix('torch.')}, which no loss can be made of"
    if config.model.loss == "cross_entropy":
        classes = dataset.classes or 2
        positions = tuple(config.model.target_shape)  # several labels of a sample, such as the next tokens
        if len(shape) < 2 or (shape[0], *shape[2:]) != (count, *positions) or shape[1] < classes:
            if positions == (1,) and len(shape) == 2 and len(outputs) == count:
                return (
                    f"gives outputs of {shape} for {count} samples, and the labels of dataset={dataset.name} have the "
                    "shape (n, 1): return them as (n,)"
                )
            if positions and positions == shape[1:] and classes == 2:
                return (
                    f"gives outputs of {shape} for {count} samples, and dataset={dataset.name} has {positions[0]} "
                    "labels of 0 or 1 for each: where these mean one class, return its number, targets.argmax(1)"
                )
            labels = f"{dataset.classes} classes" if dataset.classes else "classes"
            return (
                f"gives outputs of {shape} for {count} samples; dataset={dataset.name} has {labels}: "
                f"give each an output{f', as (samples, classes, {positions[0]})' if positions else ''}"
                f"{', or subtract 1 from labels that begin with 1' if shape == (count, classes - 1) else ''}"
            )
    elif shape != (targets := (count, *config.model.target_shape)):
        return f"gives outputs of {shape} for {count} samples; the targets of dataset={dataset.name} are {targets}"
    return None


@contextmanager
def _kept_generators(device: torch.device) -> Iterator[None]:
    """Put the generators that _seed_generators seeds back into the state that they have now."""
    numbers, python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(numbers)
        random.setstate(python)


def _generator_states(device: torch.device) -> tuple[object, ...]:
    """Return the states of the generators that _seed_generators seeds, in a form that can be compared."""
    tensors = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    _, keys, *position = np.random.get_state()
    return *(tensor.numpy().tobytes() for tensor in tensors), random.getstate(), keys.tobytes(), position


def _weights_differ(model: UserModule, ranks: RankMessages) -> bool:
    """Return True on all ranks if the weights of any rank differ from rank 0's."""
    checksum = float(_checksum(model.state_dict().values()))
    return ranks.sum([float(ranks.broadcast(checksum) != checksum)])[0] > 0


def _checksum(tensors: Any) -> int:
    """Compute a checksum of 32 bits, which a float64 represents exactly."""
    checksum = 0
    for tensor in tensors:
        for part in _dense_parts(tensor) if isinstance(tensor, Tensor) else ():  # a state_dict may hold other values
            checksum = zlib.crc32(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), checksum)
    return checksum


def _dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that a sparse one consists of; a dense one is its own only part."""
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)
