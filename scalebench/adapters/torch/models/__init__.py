"""Models in torch, and their weights under the neutral names of `scalebench.workloads.models`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from scalebench.adapters.torch.models.materials_cnn import MaterialsCnn
from scalebench.spec import InputError
from scalebench.suggest import no_such

MODELS: dict[str, type[nn.Module]] = {"materials_cnn": MaterialsCnn}

_TORCH = {"kernel": "weight", "bias": "bias"}  # last part of a neutral name -> last part of torch's
_NEUTRAL = {theirs: ours for ours, theirs in _TORCH.items()}

# Kernels by their number of axes: torch's axes in terms of the neutral ones, which end in (in, out).
_KERNEL_AXES = {
    2: (1, 0),  # dense (in, out) -> (out, in)
    3: (2, 1, 0),  # conv1d (width, in, out) -> (out, in, width)
    4: (3, 2, 0, 1),  # conv2d (height, width, in, out) -> (out, in, height, width)
}


def build(name: str, input_shape: Sequence[int]) -> nn.Module:
    """A new model, with weights as torch draws them. `input_shape` is of one sample, channels last."""
    if name not in MODELS:
        raise InputError(no_such("PyTorch model", name, MODELS))
    return MODELS[name](tuple(input_shape))


def load_weights(model: nn.Module, arrays: dict[str, NDArray[np.float32]]) -> None:
    """Set every parameter from the array of its neutral name.

    ValueError if an array has no parameter, a parameter no array, or the two differ in shape.
    """
    parameters = {neutral_name(name): parameter for name, parameter in model.named_parameters()}
    if parameters.keys() != arrays.keys():
        odd = sorted(parameters.keys() ^ arrays.keys())
        raise ValueError(f"model and arrays disagree about {', '.join(odd)}")
    for name, parameter in parameters.items():
        array = np.ascontiguousarray(arrays[name].transpose(_axes(arrays[name].ndim)))
        if array.shape != tuple(parameter.shape):
            raise ValueError(f"{name} is {array.shape} as torch has it, the model's is {tuple(parameter.shape)}")
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(array))


def read_weights(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Copies of all parameters under their neutral names, in neutral layout."""
    arrays = {}
    for name, parameter in model.named_parameters():
        array = parameter.detach().cpu().numpy()
        back = np.argsort(_axes(array.ndim))
        arrays[neutral_name(name)] = array.transpose(back).copy(order="C")
    return arrays


def neutral_name(name: str) -> str:
    """'conv1.weight' -> 'conv1/kernel'."""
    *layer, last = name.split(".")
    return "/".join([*layer, _NEUTRAL[last]])


def _axes(ndim: int) -> tuple[int, ...]:
    return _KERNEL_AXES.get(ndim, tuple(range(ndim)))
