"""A user's own module, tried on two samples before it trains: outputs, dropout, the same weights on all ranks."""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from scalebench.adapters.torch.own import OwnModule, blamed, told
from scalebench.adapters.torch.precision import Precision
from scalebench.plugins import PluginError
from scalebench.spec import Config

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
