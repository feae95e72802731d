"""VGG16 as keras.applications has it, with its layer names: Simonyan and Zisserman 2014, configuration D."""

from __future__ import annotations

from scalebench.workloads.network import Network


def vgg16(net: Network, outputs: int) -> None:
    """138,357,544 parameters with inputs of 224 x 224 and 1000 outputs. Keras has no dropout in it."""
    x = net.input
    for block, (filters, convolutions) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], start=1):
        for number in range(1, convolutions + 1):
            x = net.relu(net.conv(x, f"block{block}_conv{number}", filters, 3))
        x = net.max_pool(x, 2, strides=2)
    x = net.flatten(x)
    for name in ("fc1", "fc2"):
        x = net.relu(net.dense(x, name, 4096))
    net.dense(x, "predictions", outputs)
