"""ResNets for ImageNet: v1 and v2 of keras.applications with its layer names, and v1.5.

v1: He et al. 2015, "Deep Residual Learning for Image Recognition"; v2: He et al. 2016, "Identity Mappings in Deep
Residual Networks". v1.5 moves the stride of a block from its first 1x1 convolution to its 3x3 convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.workloads.network import Network, Node


@dataclass(frozen=True)
class _Variant:
    """The details in which implementations of v1 differ."""

    strided_conv: int  # number of the convolution of a block that has the stride
    bias: bool
    epsilon: float
    momentum: float
    init: str


# Keras keeps biases although the normalization behind cancels them; v1.5 is torchvision's.
KERAS = _Variant(strided_conv=1, bias=True, epsilon=1.001e-5, momentum=0.99, init="glorot_uniform")
V1_5 = _Variant(strided_conv=2, bias=False, epsilon=1e-5, momentum=0.9, init="he_uniform")


def resnet50_v2(net: Network, outputs: int) -> None:
    """Build ResNet-50 v2; 25,568,360 parameters with 1000 outputs.

    The stride is in the last block of a stack, as in Keras, not in the first one.
    """
    x = net.conv(net.input, "conv1_conv", 64, 7, strides=2, padding=3)
    # The padding's zeros can be the maximum here, unlike in v1, where a relu comes before.
    x = net.max_pool(net.zero_pad(x, 1), 3, strides=2)
    for stack, (filters, blocks, strides) in enumerate([(64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1)], start=2):
        for block in range(1, blocks + 1):
            last = block == blocks
            x = _v2_block(net, x, f"conv{stack}_block{block}", filters, strides if last else 1, widen=block == 1)
    x = net.relu(net.batch_norm(x, "post_bn", epsilon=KERAS.epsilon))
    net.dense(net.global_avg_pool(x), "predictions", outputs)


def v1(net: Network, outputs: int, blocks: Sequence[int], as_in_keras: bool) -> None:
    """Build a ResNet v1 with these blocks in its stacks, or a v1.5.

    With 1000 outputs ResNet-50 has 25,583,592 parameters, its v1.5 25,557,032, ResNet-101 44,601,832 and ResNet-152
    60,268,520.
    """
    variant = KERAS if as_in_keras else V1_5
    x = net.relu(_conv_bn(net, net.input, "conv1", 64, 7, 2, variant))
    x = net.max_pool(x, 3, strides=2, padding=1)
    for stack, count in enumerate(blocks, start=2):
        for block in range(1, count + 1):
            strides = 2 if block == 1 and stack > 2 else 1
            name, filters, shortcut = f"conv{stack}_block{block}", 16 * 2**stack, x
            if block == 1:
                shortcut = _conv_bn(net, x, f"{name}_0", 4 * filters, 1, strides, variant)
            for part, (width, kernel) in enumerate([(filters, 1), (filters, 3), (4 * filters, 1)], start=1):
                stride = strides if part == variant.strided_conv else 1
                x = _conv_bn(net, x, f"{name}_{part}", width, kernel, stride, variant)
                x = net.relu(x) if part < 3 else net.relu(net.add(shortcut, x))
    net.dense(net.global_avg_pool(x), "predictions", outputs)


def _conv_bn(net: Network, x: Node, name: str, filters: int, kernel: int, strides: int, variant: _Variant) -> Node:
    x = net.conv(x, f"{name}_conv", filters, kernel, strides, padding=kernel // 2, bias=variant.bias, init=variant.init)
    return net.batch_norm(x, f"{name}_bn", epsilon=variant.epsilon, momentum=variant.momentum)


def _v2_block(net: Network, x: Node, name: str, filters: int, strides: int, widen: bool) -> Node:
    before = net.relu(net.batch_norm(x, f"{name}_preact_bn", epsilon=KERAS.epsilon))
    if widen:
        shortcut = net.conv(before, f"{name}_0_conv", 4 * filters, 1, strides)
    else:
        shortcut = net.max_pool(x, 1, strides) if strides > 1 else x
    x = net.conv(before, f"{name}_1_conv", filters, 1, bias=False)
    x = net.relu(net.batch_norm(x, f"{name}_1_bn", epsilon=KERAS.epsilon))
    x = net.conv(x, f"{name}_2_conv", filters, 3, strides, padding=1, bias=False)
    x = net.relu(net.batch_norm(x, f"{name}_2_bn", epsilon=KERAS.epsilon))
    return net.add(shortcut, net.conv(x, f"{name}_3_conv", 4 * filters, 1))
