"""Models as data: the arrays they are made of, and what one sample costs."""

from __future__ import annotations

import math

from scalebench.workloads.weights import Layer

# Kernel name -> (shape, init, positions at which it is applied to one sample). Convolutions are
# "same", each followed by relu and a max-pool of 2, so that 200 positions become 100, then 50.
# dense1 takes the 50 positions x 24 channels flattened in this order; no relu after dense2.
_KERNELS: dict[str, dict[str, tuple[tuple[int, ...], str, int]]] = {
    "materials_cnn": {
        "conv1": ((7, 3, 16), "glorot_uniform", 200),
        "conv2": ((7, 16, 24), "glorot_uniform", 100),
        "dense1": ((50 * 24, 125), "glorot_uniform", 1),
        "dense2": ((125, 2), "glorot_uniform", 1),
    }
}


def layers(name: str) -> list[Layer]:
    """(array name, shape, init) of every array of the model, in forward order, in neutral layout.

    A layer `conv1` has `conv1/kernel` and `conv1/bias`. For the layout see `workloads.weights`.
    Raises ValueError for an unknown model.
    """
    found: list[Layer] = []
    for layer, (shape, init, _) in _kernels(name).items():
        found += [(f"{layer}/kernel", shape, init), (f"{layer}/bias", shape[-1:], "zeros")]
    return found


def parameters(name: str) -> int:
    """Trainable parameters of the model."""
    return sum(math.prod(shape) for _, shape, _ in layers(name))


def flops_per_sample(name: str) -> int:
    """Floating point operations of training on one sample: 3 x forward, 2 per multiply-add.

    Backward counts twice forward, since it forms the gradients of inputs and of weights; the
    convention of "AI and Compute" (Amodei and Hernandez, OpenAI 2018, appendix) and of Kaplan et al.
    2020 (section 2.1). Only convolutions and dense layers count: no biases, activations, pooling,
    loss or optimizer. Padding of "same" convolutions counts as if it were data. Raises ValueError
    for an unknown model.
    """
    forward_macs = sum(positions * math.prod(shape) for shape, _, positions in _kernels(name).values())
    return 3 * 2 * forward_macs


def _kernels(name: str) -> dict[str, tuple[tuple[int, ...], str, int]]:
    if name not in _KERNELS:
        raise ValueError(f"model {name} is unknown here: {', '.join(_KERNELS)}")
    return _KERNELS[name]
