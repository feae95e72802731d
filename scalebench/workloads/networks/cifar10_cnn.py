"""The small CNN of Keras' example cifar10_cnn.py, which @avolkov1 trained on several GPUs."""

from __future__ import annotations

from scalebench.workloads.network import Network


def cifar10_cnn(net: Network, outputs: int) -> None:
    """1,250,858 parameters with inputs of 32 x 32 and 10 outputs."""
    x = net.input
    for block, filters in enumerate((32, 64)):
        x = net.relu(net.conv(x, f"conv{2 * block + 1}", filters, 3))
        x = net.relu(net.conv(x, f"conv{2 * block + 2}", filters, 3, padding="valid"))
        x = net.dropout(net.max_pool(x, 2, strides=2), 0.25)
    x = net.dropout(net.relu(net.dense(net.flatten(x), "dense1", 512)), 0.5)
    net.dense(x, "dense2", outputs)
