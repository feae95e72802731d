"""The multilayer perceptron of @kuza55's article on multi-GPU training with Keras."""

from __future__ import annotations

from scalebench.workloads.network import Network


def mlp(net: Network, outputs: int) -> None:
    """41,157,101 parameters with inputs of 8000 and 1 output.

    The article has a tanh behind the first layer and a sigmoid behind the last; here relu and nothing.
    """
    x = net.input
    for number, units in enumerate((4000, 2000, 500, 300), start=1):
        x = net.relu(net.dense(x, f"dense{number}", units))
    net.dense(x, "dense5", outputs)
