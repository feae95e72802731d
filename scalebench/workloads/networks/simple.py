"""Small networks of the studies: the materials CNN, a multilayer perceptron, and one of adjustable size."""

from __future__ import annotations

import math

from scalebench.core.errors import InputError
from scalebench.workloads.network import FLOAT_BYTES, Network

CONVOLUTIONS = 8  # of the synthetic network
TOLERANCE = 0.01


def materials_cnn(net: Network, outputs: int) -> None:
    """Build the CNN of the thesis, from strain-stress curves to the two parameters of the soil model behind them.

    It has two convolutions with max-pooling and two dense layers; 153,441 parameters for an input of (200, 3).
    """
    x = net.input
    for name, filters in (("conv1", 16), ("conv2", 24)):
        x = net.relu(net.conv(x, name, filters, kernel=7))
        x = net.max_pool(x, window=2, strides=2)
    x = net.relu(net.dense(net.flatten(x), "dense1", 125))
    net.dense(x, "dense2", outputs)


def mlp(net: Network, outputs: int) -> None:
    """Build the multilayer perceptron of @kuza55's article on multi-GPU training with Keras.

    It has 41,157,101 parameters with inputs of 8000 and 1 output. The article has a tanh behind the first layer and a
    sigmoid behind the last one; here these are a relu and nothing.
    """
    x = net.input
    for number, units in enumerate((4000, 2000, 500, 300), start=1):
        x = net.relu(net.dense(x, f"dense{number}", units))
    net.dense(x, "dense5", outputs)


def synthetic(
    net: Network, outputs: int, parameters: float = 25e6, flops: float = 8e9, sample_bytes: int = 150_528
) -> None:
    """Build a network with a chosen number of parameters, FLOPs and bytes per sample, each independent of the others.

    It is for the question that the keras-multi-gpu study left open: did the size of the samples or the number of
    parameters limit its scaling? `flops` are those of one forward pass over one sample; parameters and FLOPs are met
    within 1 %.

    A sample is averaged down to P positions (a remainder smaller than one window is left out). Convolutions of width 1
    process all positions, dense layers their mean, so a parameter costs 2 P FLOPs in the former and 2 in the latter,
    whatever the size of the sample. The averaging has no parameters, and its additions do not count, as pooling never
    does.

    Raises InputError where this is impossible: fewer than 2 FLOPs per parameter, fewer numbers in a sample than
    positions, an input of another shape than shape_sample returns, and so few parameters (below some 50,000)
    that integer widths cannot meet them within 1 %.
    """
    _check_synthetic(net, parameters, flops, sample_bytes)
    biases = 2 * math.sqrt(parameters / 2) + outputs  # approximately, of the dense layers
    extra_macs = flops / 2 - parameters + biases
    pooled = _count_positions(parameters, extra_macs, sample_bytes)
    window = net.input.shape[0] // pooled
    x = net.avg_pool(net.input, window, strides=window)
    conv, last_conv, dense1, dense2 = _solve_widths(parameters, extra_macs, pooled, outputs)
    for number in range(1, CONVOLUTIONS + 1):
        filters = conv if number < CONVOLUTIONS else last_conv
        x = net.relu(net.conv(x, f"conv{number}", filters, kernel=1, bias=False, init="he_uniform"))
    x = net.global_avg_pool(x)
    x = net.relu(net.dense(x, "dense1", dense1, init="he_uniform"))
    x = net.relu(net.dense(x, "dense2", dense2, init="he_uniform"))
    net.dense(x, "dense3", outputs)
    ratios = net.parameters / parameters, net.forward_flops / flops
    if max(abs(ratio - 1) for ratio in ratios) > TOLERANCE:
        raise InputError(
            f"model=synthetic cannot come closer to parameters={parameters:g} and flops={flops:g} than "
            f"{net.parameters} and {net.forward_flops}; raise model.options.parameters"
        )


def shape_sample(sample_bytes: int) -> tuple[int, int]:
    """Return the shape (float32 numbers, 1) of a sample of this many bytes."""
    return sample_bytes // FLOAT_BYTES, 1


def _check_synthetic(net: Network, parameters: float, flops: float, sample_bytes: int) -> None:
    for key, value in (("parameters", parameters), ("flops", flops), ("sample_bytes", sample_bytes)):
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"model.options.{key}={value} should be a finite number above 0")
    if sample_bytes % FLOAT_BYTES:
        raise InputError(f"model.options.sample_bytes={sample_bytes} should be a multiple of 4: float32 numbers")
    shape = shape_sample(sample_bytes)
    if net.input.shape != shape:
        raise InputError(
            f"model.options.sample_bytes={sample_bytes} means model.input_shape={list(shape)}, "
            f"not {list(net.input.shape)}"
        )
    if flops < 2 * parameters * (1 - TOLERANCE):
        raise InputError(
            f"model.options.flops={flops:g} is below 2 for each of {parameters:g} parameters; "
            f"raise it to {2 * parameters:g} or more"
        )


def _count_positions(parameters: float, extra_macs: float, sample_bytes: int) -> int:
    """Return how many positions leave at most half of the parameters to the convolutions and fit equal windows.

    `extra_macs` are the multiply-adds beyond one per parameter.
    """
    minimum = 1 if extra_macs < parameters * TOLERANCE / 4 else max(2, math.ceil(2 * extra_macs / parameters + 1))
    numbers = sample_bytes // FLOAT_BYTES
    if numbers < minimum:
        raise InputError(
            f"model.options.sample_bytes={sample_bytes} is too small for that many FLOPs for each of {parameters:g} "
            f"parameters; raise it to {FLOAT_BYTES * minimum} or more"
        )
    return numbers // (numbers // minimum)


def _solve_widths(parameters: float, extra_macs: float, positions: int, outputs: int) -> tuple[int, int, int, int]:
    """Return the widths of (all convolutions but the last, the last one, the first dense layer, the second one).

    They solve: parameters = shared + dense; parameters + extra_macs = positions * shared + dense, where biases cost
    nothing and `shared` are the parameters of the convolutions.
    """
    shared = extra_macs / (positions - 1) if positions > 1 else parameters / 2
    conv = max(1, int(math.sqrt(shared / (CONVOLUTIONS - 1))))
    before_last = conv + (CONVOLUTIONS - 2) * conv**2
    last_conv = max(1, round((shared - before_last) / conv))
    dense = parameters - before_last - conv * last_conv - outputs
    half = (last_conv + outputs + 2) / 2
    dense1 = max(1, int(math.sqrt(half**2 + max(dense, 0)) - half))
    dense2 = max(1, round((dense - (last_conv + 1) * dense1) / (dense1 + 1 + outputs)))
    return conv, last_conv, dense1, dense2
