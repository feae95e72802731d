"""Weights of a NetworkModule by the neutral names of `workloads.network`, in neutral layout; a user's as they are."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalebench.adapters.torch.network import NetworkModule
from scalebench.adapters.torch.own import OwnModule

# Last part of a neutral name -> torch's.
_TORCH = {
    "kernel": "weight",
    "embeddings": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}

# Kernels by their number of axes: torch's axes in terms of the neutral ones, which end in (in, out).
_KERNEL_AXES = {
    2: (1, 0),  # dense (in, out) -> (out, in)
    3: (2, 1, 0),  # conv1d (width, in, out) -> (out, in, width)
    4: (3, 2, 0, 1),  # conv2d (height, width, in, out) -> (out, in, height, width)
}


def load_weights(model: NetworkModule, arrays: dict[str, NDArray[np.float32]]) -> None:
    """Set every parameter and moving statistic from the array of its neutral name.

    ValueError if an array has no place in the model, a place no array, or the two differ in shape.
    """
    places = _places(model, statistics=True)
    if places.keys() != arrays.keys():
        odd = sorted(places.keys() ^ arrays.keys())
        raise ValueError(f"model and arrays disagree about {', '.join(odd)}")
    for name, place in places.items():
        array = np.ascontiguousarray(arrays[name].transpose(_axes(name, arrays[name].ndim)))
        if array.shape != tuple(place.shape):
            raise ValueError(f"{name} is {array.shape} as torch has it, the model's is {tuple(place.shape)}")
        with torch.no_grad():
            place.copy_(torch.from_numpy(array))


def read_weights(model: NetworkModule | OwnModule, statistics: bool = False) -> dict[str, NDArray[np.float32]]:
    """Copies of what is trained, and with `statistics` of the moving ones, by neutral name; a user's own as
    OwnModule.arrays has them. What is split over processes is put together, so that all of them have to call this."""
    if isinstance(model, OwnModule):
        return model.arrays(statistics)
    arrays = {}
    for name, place in _places(model, statistics).items():
        place = place.full_tensor() if hasattr(place, "full_tensor") else place
        array = place.detach().cpu().clone().numpy()  # numpy fixes the memory that it looks at, which FSDP frees
        arrays[name] = array.transpose(np.argsort(_axes(name, array.ndim))).copy(order="C")
    return arrays


def _places(model: NetworkModule, statistics: bool) -> dict[str, Tensor]:
    places = {}
    for array in model.network.arrays:
        if array.trainable or statistics:
            layer, _, last = array.name.rpartition("/")
            places[array.name] = getattr(getattr(model, layer), _TORCH[last])
    return places


def _axes(name: str, ndim: int) -> tuple[int, ...]:
    return _KERNEL_AXES[ndim] if name.endswith("/kernel") else tuple(range(ndim))
