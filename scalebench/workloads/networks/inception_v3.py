"""InceptionV3 as keras.applications has it: Szegedy et al. 2015, "Rethinking the Inception Architecture for
Computer Vision", without the auxiliary classifier.

Convolutions and normalisations are numbered in the order in which Keras makes them, since it does not name them.
"""

from __future__ import annotations

from scalebench.workloads.network import Network, Node

Kernel = int | tuple[int, int]
THIN, FLAT = (7, 1), (1, 7)


def inception_v3(net: Network, outputs: int) -> None:
    """23,817,352 parameters with 1000 outputs; inputs from 75 x 75."""
    x = _conv(net, net.input, 32, 3, strides=2, padding="valid")
    x = _conv(net, x, 32, 3, padding="valid")
    x = _conv(net, x, 64, 3)
    x = net.max_pool(x, 3, strides=2)
    x = _conv(net, x, 80, 1, padding="valid")
    x = _conv(net, x, 192, 3, padding="valid")
    x = net.max_pool(x, 3, strides=2)
    for pooled in (32, 64, 64):
        ends = _chain(net, x, (64, 1)), _chain(net, x, (48, 1), (64, 5)), _chain(net, x, (64, 1), (96, 3), (96, 3))
        x = net.concat(*ends, _pooled(net, x, pooled))
    x = net.concat(
        _halved(net, x, 384), _halved(net, _chain(net, x, (64, 1), (96, 3)), 96), net.max_pool(x, 3, strides=2)
    )
    for n in (128, 160, 160, 192):
        short = _chain(net, x, (192, 1)), _chain(net, x, (n, 1), (n, FLAT), (192, THIN))
        long = _chain(net, x, (n, 1), (n, THIN), (n, FLAT), (n, THIN), (192, FLAT))
        x = net.concat(*short, long, _pooled(net, x, 192))
    short_end = _halved(net, _chain(net, x, (192, 1)), 320)
    long_end = _halved(net, _chain(net, x, (192, 1), (192, FLAT), (192, THIN)), 192)
    x = net.concat(short_end, long_end, net.max_pool(x, 3, strides=2))
    for _ in range(2):
        single, once = _chain(net, x, (320, 1)), _forked(net, _chain(net, x, (384, 1)))
        x = net.concat(single, once, _forked(net, _chain(net, x, (448, 1), (384, 3))), _pooled(net, x, 192))
    net.dense(net.global_avg_pool(x), "predictions", outputs)


def _conv(net: Network, x: Node, filters: int, kernel: Kernel, strides: int = 1, padding: str = "same") -> Node:
    number = net.count("conv")
    tail = f"_{number}" if number else ""
    x = net.conv(x, f"conv2d{tail}", filters, kernel, strides, padding, bias=False)
    return net.relu(net.batch_norm(x, f"batch_normalization{tail}", scale=False))


def _chain(net: Network, x: Node, *convolutions: tuple[int, Kernel]) -> Node:
    """Convolutions one behind the other, each as (filters, kernel)."""
    for filters, kernel in convolutions:
        x = _conv(net, x, filters, kernel)
    return x


def _halved(net: Network, x: Node, filters: int) -> Node:
    return _conv(net, x, filters, 3, strides=2, padding="valid")


def _pooled(net: Network, x: Node, filters: int) -> Node:
    return _conv(net, net.avg_pool(x, 3, strides=1, padding="same"), filters, 1)


def _forked(net: Network, x: Node) -> Node:
    return net.concat(_conv(net, x, 384, (1, 3)), _conv(net, x, 384, (3, 1)))
