"""Strain-stress curves -> the two parameters of the soil model behind them."""

from __future__ import annotations

from scalebench.workloads.network import Network


def materials_cnn(net: Network, outputs: int) -> None:
    """Two convolutions with max-pooling, two dense layers; 153,441 parameters for an input of (200, 3)."""
    x = net.input
    for name, filters in (("conv1", 16), ("conv2", 24)):
        x = net.relu(net.conv(x, name, filters, kernel=7))
        x = net.max_pool(x, window=2, strides=2)
    x = net.relu(net.dense(net.flatten(x), "dense1", 125))
    net.dense(x, "dense2", outputs)
