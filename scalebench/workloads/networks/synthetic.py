"""A network with a given number of parameters, FLOPs and bytes of a sample, each on its own.

For the question that the keras-multi-gpu study left open: did the size of the samples or the number of parameters
break its scaling?
"""

from __future__ import annotations

import math

from scalebench.spec import InputError
from scalebench.workloads.network import Network

FLOAT_BYTES = 4
CONVOLUTIONS = 8
TOLERANCE = 0.01


def synthetic(
    net: Network, outputs: int, parameters: float = 25e6, flops: float = 8e9, sample_bytes: int = 150_528
) -> None:
    """`flops` are of one forward pass over one sample; parameters and FLOPs are met within 1 %.

    A sample is averaged down to P positions (a remainder of fewer than one window is left out). Convolutions of width
    1 take all of them, dense layers their mean, so a parameter costs 2 P FLOPs among the former and 2 among the
    latter, whatever the size of the sample. The averaging has no parameters, and its one addition for each number
    does not count, as pooling never does.

    Raises InputError where that cannot be: fewer than 2 FLOPs for a parameter, fewer numbers in a sample than
    positions, an input of another shape than `input_shape` gives, and so few parameters (below some 50,000) that
    whole widths come no nearer than 1 %.
    """
    _check(net, parameters, flops, sample_bytes)
    biases = 2 * math.sqrt(parameters / 2) + outputs  # of the dense layers, nearly
    more = flops / 2 - parameters + biases
    pooled = _positions(parameters, more, sample_bytes)
    window = net.input.shape[0] // pooled
    x = net.avg_pool(net.input, window, strides=window)
    conv, last_conv, dense1, dense2 = _widths(parameters, more, pooled, outputs)
    for number in range(1, CONVOLUTIONS + 1):
        filters = conv if number < CONVOLUTIONS else last_conv
        x = net.relu(net.conv(x, f"conv{number}", filters, kernel=1, bias=False, init="he_uniform"))
    x = net.global_avg_pool(x)
    x = net.relu(net.dense(x, "dense1", dense1, init="he_uniform"))
    x = net.relu(net.dense(x, "dense2", dense2, init="he_uniform"))
    net.dense(x, "dense3", outputs)
    got = net.parameters / parameters, net.forward_flops / flops
    if max(abs(share - 1) for share in got) > TOLERANCE:
        raise InputError(
            f"model=synthetic comes no nearer to parameters={parameters:g} and flops={flops:g} than "
            f"{net.parameters} and {net.forward_flops}; raise model.options.parameters"
        )


def input_shape(sample_bytes: int = 150_528) -> tuple[int, int]:
    """(float32 numbers, 1) in a sample of so many bytes."""
    return sample_bytes // FLOAT_BYTES, 1


def _check(net: Network, parameters: float, flops: float, sample_bytes: int) -> None:
    for key, value in (("parameters", parameters), ("flops", flops), ("sample_bytes", sample_bytes)):
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"model.options.{key}={value} should be a finite number above 0")
    if sample_bytes % FLOAT_BYTES:
        raise InputError(f"model.options.sample_bytes={sample_bytes} should be a multiple of 4: float32 numbers")
    if net.input.shape != input_shape(sample_bytes):
        raise InputError(
            f"model.options.sample_bytes={sample_bytes} means model.input_shape={list(input_shape(sample_bytes))}, "
            f"not {list(net.input.shape)}"
        )
    if flops < 2 * parameters * (1 - TOLERANCE):
        raise InputError(
            f"model.options.flops={flops:g} is below 2 for each of {parameters:g} parameters; "
            f"raise it to {2 * parameters:g} or more"
        )


def _positions(parameters: float, more: float, sample_bytes: int) -> int:
    """Enough for the convolutions to hold half of the parameters or fewer, and such that equal windows fit.

    `more`: multiply-adds beyond the one of each parameter.
    """
    least = 1 if more < parameters * TOLERANCE / 4 else max(2, math.ceil(2 * more / parameters + 1))
    numbers = sample_bytes // FLOAT_BYTES
    if numbers < least:
        raise InputError(
            f"model.options.sample_bytes={sample_bytes} is too small for so many FLOPs for each of {parameters:g} "
            f"parameters; raise it to {FLOAT_BYTES * least} or more"
        )
    return numbers // (numbers // least)


def _widths(parameters: float, more: float, positions: int, outputs: int) -> tuple[int, int, int, int]:
    """(convolutions but the last, the last one, first dense layer, second one), from two equations.

    parameters = shared + dense; parameters + more = positions * shared + dense, where biases cost nothing.
    """
    shared = more / (positions - 1) if positions > 1 else parameters / 2
    conv = max(1, int(math.sqrt(shared / (CONVOLUTIONS - 1))))
    before_last = conv + (CONVOLUTIONS - 2) * conv**2
    last_conv = max(1, round((shared - before_last) / conv))
    left = parameters - before_last - conv * last_conv - outputs
    half = (last_conv + outputs + 2) / 2
    dense1 = max(1, int(math.sqrt(half**2 + max(left, 0)) - half))
    dense2 = max(1, round((left - (last_conv + 1) * dense1) / (dense1 + 1 + outputs)))
    return conv, last_conv, dense1, dense2
