"""Building a user's torch.nn.Module with the user's function, and one trial step of a copy of it before training."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from scalebench.core.errors import PluginError, describe_exception
from scalebench.core.spec import Config, ModelSpec, has_stop
from scalebench.strategies.base import Unsupported, refuse_other_weights
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group import count_messages
from scalebench.strategies.torch.profiling import count_flops
from scalebench.strategies.torch.step_module import Progress
from scalebench.strategies.torch.user_errors import (
    UserProblem,
    attribute_errors_to_user,
    function_label,
    summarize_names,
    unused_parameters_reason,
)
from scalebench.strategies.torch.user_module import UserModule, bind_progress, find_lightning_class
from scalebench.strategies.torch.user_optimizer import UserOptimizer
from scalebench.workloads import user_code
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

    def seed() -> None:
        """Seed every generator from which a function may draw weights without seeding it itself."""
        random.seed(config.seed)
        np.random.seed(config.seed % 2**32)
        torch.manual_seed(config.seed)

    with attribute_errors_to_user(model, anywhere=True):
        module, optimizer = user_code.call_builder(model, "torch", nn.Module, "the module", seed), None
        if isinstance(module, tuple) and len(module) == 2 and isinstance(module[0], nn.Module):
            module, optimizer = module
        is_lightning = find_lightning_class(module) is not None
        progress = Progress()
        if is_lightning:  # what a Trainer calls once, in its order; the data are scalebench's
            bind_progress(module, progress)
            attach_trainer(module)
            module.setup("fit")
        configure = getattr(module, "configure_model", None)
        if isinstance(module, nn.Module) and callable(configure):
            configure()  # where a LightningModule may make its layers
        _check_module(module)
        if not config.train.dropout:
            _disable_dropout(module)
        module.to(device)  # by itself, since a LightningModule learns its device from a call of its own method
        user_module = UserModule(module, config).train()
        user_module.progress = progress
        if is_lightning:
            module.on_fit_start()
        make = getattr(module, "configure_optimizers", None)
        if optimizer is None and callable(make) and user_module.loss is None:
            optimizer = make()
        if optimizer is not None:
            user_module.user_optimizer = UserOptimizer(optimizer, module, config.train)
            if progress.trainer is not None:
                progress.trainer.strategy.optimizers = [user_module.user_optimizer.optimizer]
        if is_lightning:
            module.on_train_start()
            module.on_train_epoch_start()
        return user_module


def _check_module(module: Any) -> None:
    """Raise UserProblem if it is not a module, or if its parameters cannot be trained like those of our networks."""
    if not isinstance(module, nn.Module):
        raise UserProblem(f"gives {user_code.describe_result(module)}, not a torch.nn.Module")
    if isinstance(module, (DistributedDataParallel, DataParallel)):
        raise UserProblem(
            f"gives a {type(module).__name__}: leave wrapping to the strategy, and give the module within"
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise UserProblem(
                f"has a lazy layer, and '{name}' no shape yet: give the layer its sizes, or call the module once"
            )
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not trained:
        raise UserProblem("has no parameter to train")
    for name, parameter in trained.items():
        if parameter.dtype != torch.float32:
            way_out = (
                "train torch.view_as_real of it, and take torch.view_as_complex in forward"
                if parameter.is_complex()
                else "return it in float32 (module.float())"
            )
            raise UserProblem(
                f"has '{name}' in {_name_type(parameter)}: what is trained is float32, and train.precision says what "
                f"it computes in: {way_out}"
            )


def _name_type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _disable_dropout(module: nn.Module) -> None:
    """Switch off the dropout of torch.nn's layers; the trial step detects modules that still draw numbers."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        elif isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)):
            layer.dropout = 0.0


def check_user_module(
    model: UserModule,
    config: Config,
    autocast: AbstractContextManager[None],
    group: Any,
    batch: TorchBatch,
    is_large: bool = False,
) -> None:
    """Raise PluginError if the user's module cannot be trained, else note what it leaves untrained, and its FLOPs.

    A copy of it makes a step on `batch`, the first one of a device, where the batch is: its outputs have to fit the
    targets and depend on the parameters, with train.dropout=false it must not draw random numbers, and all ranks of the
    `group` have to start from the same weights. The module and the generators of random numbers stay as they were. Of a
    model that `is_large` there is no second copy of what is trained.
    """
    device = next(tensor.device for tensor in (*batch.tensors(), *model.parameters()))  # graphs may hide their tensors
    if group is not None:
        strided = (each for each in (*model.parameters(), *model.buffers()) if each.layout == torch.strided)
        arrays = (each.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for each in strided)
        refuse_other_weights(arrays, function_label(config.model), "torch", group.broadcast, group.sum)
    try:
        with _kept_generators(device), attribute_errors_to_user(config.model):
            _check_copy(model, config, autocast, batch, device, is_large)
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
    autocast: AbstractContextManager[None],
    batch: TorchBatch,
    device: torch.device,
    is_large: bool,
) -> None:
    def build_again() -> UserModule:
        return build_user_module(config, device, lambda module: setattr(module, "trainer", model.progress.trainer))

    try:
        trial = _copy_module(model, device, is_large)
        can_train = all(each.is_leaf for each in trial.parameters())  # those of a copied torch.jit.ScriptModule cannot
    except Exception:  # of an attribute: a lock, a generator, a tensor that was computed
        can_train = False
    if not can_train:
        trial = build_again()
    messages = count_messages()
    foreign = _try_step(trial, config, autocast, batch, device)
    model.communicates = count_messages() > messages
    if any(parameter.grad is not None for parameter in model.parameters()):  # functions of the copy lead back to it
        model.zero_grad()
        trial = build_again()
        foreign = _try_step(trial, config, autocast, batch, device)
    model.unused_parameters = trial.unused_parameters
    texts = []
    if trial.unused_parameters:
        texts.append(
            f"has parameters that get no gradient in the first batch ({summarize_names(trial.unused_parameters)}): not "
            "trained unless others use them"
        )
    # A tensor made in the pass, or the inputs, may need a gradient too; those of a second pass are others.
    if foreign:
        with autocast:
            again = _find_other_leaves(trial, trial(*copy.deepcopy(batch[:2])))
        if count := len({id(each) for each in again} & {id(each) for each in foreign}):
            texts.append(
                f"uses {count} tensors that are not parameters of the module (nn.ModuleList? nn.Parameter?), untrained"
            )
    model.remarks = {UNTRAINED_FLAG: f"{function_label(config.model)} {', and '.join(texts)}"} if texts else {}
    model.flops_per_sample = _count_training_flops(trial, batch, autocast)


def _find_other_leaves(trial: UserModule, outputs: Tensor) -> list[Tensor]:
    """Return the tensors besides the module's parameters from which the outputs are computed and that get gradients."""
    parameters = {id(parameter) for parameter in trial.parameters()}
    pending, visited, leaves = [outputs.grad_fn], set(), []
    while pending:
        node = pending.pop()
        if node is not None and node not in visited:
            visited.add(node)
            variable = getattr(node, "variable", None)  # of the nodes that accumulate gradients
            if variable is not None and id(variable) not in parameters:
                leaves.append(variable)
            pending += [function for function, _ in node.next_functions]
    return leaves


def check_ddp_options(module: UserModule, model: ModelSpec, options: Any) -> None:
    """Raise PluginError where DistributedDataParallel with these options would wait for gradients that never come."""
    static, finds = (getattr(options, name, None) for name in ("static_graph", "find_unused_parameters"))
    if module.unused_parameters and finds is False and not static:
        raise PluginError(unused_parameters_reason(model, module.unused_parameters))


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
    trial: UserModule, config: Config, autocast: AbstractContextManager[None], batch: TorchBatch, device: torch.device
) -> list[Tensor]:
    """Run the passes of a step on a copy, and of an evaluation if there is one. Note on the copy which parameters get
    no gradient, and return the other tensors that do; raise UserProblem where something is wrong."""
    before = _read_generators(device)
    with autocast:
        loss = _try_pass(trial, config, batch)
    if not config.train.dropout and before != _read_generators(device):
        raise UserProblem(
            "draws random numbers in training although train.dropout=false, which turns off layers of torch.nn alone: "
            "make an nn.Dropout of it, or take train.dropout=true"
        )
    if trial.loss is None and not loss.is_meta and not torch.isfinite(loss):
        raise UserProblem(
            f"gives a loss of {loss.item():g} for the first {batch.samples} samples: correct the loss, or the samples"
        )
    if not loss.requires_grad:
        what = "a loss that does" if trial.loss is None else "outputs that do"
        raise UserProblem(f"gives {what} not depend on its parameters: nothing of it can be trained")
    foreign = _find_other_leaves(trial, loss)
    unused = {name: each for name, each in trial.module.named_parameters() if each.requires_grad}

    def free_gradient(name: str, parameter: Tensor) -> None:  # all gradients would be another copy of the model
        parameter.grad = None
        unused.pop(name, None)

    for name, parameter in unused.items():
        parameter.register_post_accumulate_grad_hook(partial(free_gradient, name))
    with attribute_errors_to_user(config.model, anywhere=True):
        loss.backward()
    trial.unused_parameters = list(unused)
    if config.dataset.validation_share > 0 and (config.measure.evaluate or has_stop(config.train.stop)):
        trial.eval()
        with torch.no_grad(), autocast:
            _try_pass(trial, config, batch)
        trial.train()
    return foreign


def _try_pass(trial: UserModule, config: Config, batch: TorchBatch) -> Tensor:
    """Return what the copy computes from a batch; raise UserProblem where its outputs do not fit the targets."""
    if trial.loss is not None:
        outputs, targets = trial.compute_outputs(batch.inputs), batch.targets
        where, count = "" if trial.training else "in evaluation mode ", len(targets)
        gives = f"{where}gives outputs of {tuple(outputs.shape)} for {count} samples"
        if not outputs.is_floating_point():
            raise UserProblem(f"{where}gives outputs of {_name_type(outputs)}, of which no loss can be computed")
        if config.model.loss == "cross_entropy":
            _check_scores(outputs, targets, config, gives)
        elif outputs.shape != targets.shape:
            name = config.dataset.name
            raise UserProblem(f"{gives}; the targets of dataset={name} are {tuple(targets.shape)}")
        return trial.measure(outputs, targets)
    loss: Tensor = trial(batch.inputs, batch.targets)
    return loss


def _check_scores(outputs: Tensor, labels: Tensor, config: Config, gives: str) -> None:
    """Raise UserProblem unless there is a score of each class for each label of a sample."""
    dataset, shape, count, positions = config.dataset, tuple(outputs.shape), len(labels), tuple(labels.shape[1:])
    classes = dataset.classes or 2
    if len(shape) >= 2 and (shape[0], *shape[2:]) == (count, *positions) and shape[1] >= classes:
        return
    if positions[-1:] == (1,) and (shape[:1], shape[2:]) == ((count,), positions[:-1]):
        has, needs = (", ".join(["n", *map(str, each)]) for each in (positions, positions[:-1]))
        needs += "," if len(positions) == 1 else ""
        reason = f", and the labels of dataset={dataset.name} have the shape ({has}): return them as ({needs})"
    elif positions and positions == shape[1:] and classes == 2:
        reason = (
            f", and dataset={dataset.name} has {positions[0]} labels of 0 or 1 for each: where these mean one class, "
            "return its number, targets.argmax(1)"
        )
    else:
        has = f"{dataset.classes} classes" if dataset.classes else "classes"
        form = f", as (samples, classes, {', '.join(map(str, positions))})" if positions else ""
        from_1 = ", or subtract 1 from labels that begin with 1" if shape == (count, classes - 1) else ""
        reason = f"; dataset={dataset.name} has {has}: give each an output{form}{from_1}"
    raise UserProblem(gives + reason)


def _count_training_flops(trial: UserModule, batch: TorchBatch, autocast: AbstractContextManager[None]) -> float | None:
    """Return the FLOPs of training on one sample, three times those of a forward pass as for our networks.

    None where PyTorch counts nothing, fails, or misses a part: it does not look into recurrent layers. Operators of the
    user's own kernels are not counted either, which nothing shows.
    """
    if any(isinstance(layer, nn.RNNBase) for layer in trial.modules()):
        return None
    try:
        with autocast:  # with gradients, since transformer layers otherwise take a fused path that is not counted
            flops = count_flops(lambda: trial(*batch[:2]))
    except Exception:  # a count is not a reason to refuse a module that trains
        return None
    return TRAINING_PASSES * flops / batch.samples or None


@contextmanager
def _kept_generators(device: torch.device) -> Iterator[None]:
    """Put the generators of random numbers back into the state that they have now."""
    numbers, python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(numbers)
        random.setstate(python)


def _read_generators(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the generators of random numbers, in a form that can be compared."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    kind, keys, *place = np.random.get_state()
    return random.getstate(), kind, keys.tobytes(), place, [each.tolist() for each in states]
