"""Networks for ImageNet other than ResNets: AlexNet, VGG16 and InceptionV3.

alexnet is that of tf_cnn_benchmarks (tensorflow/benchmarks, models/alexnet_model.py) with its layer names. vgg16
(Simonyan and Zisserman 2014, configuration D) and inception_v3 (Szegedy et al. 2015, "Rethinking the Inception
Architecture for Computer Vision", without the auxiliary classifier) are those of keras.applications. VGG16 has Keras'
layer names; InceptionV3's layers are numbered in the order in which Keras makes them, since it does not name them.
"""

from __future__ import annotations

from scalebench.workloads.network import Network, Node

Kernel = int | tuple[int, int]
COLUMN, ROW = (7, 1), (1, 7)


def alexnet(net: Network, outputs: int) -> None:
    """Build AlexNet for ImageNet; 61,838,248 parameters with inputs of 224 x 224 and 1000 outputs.

    The original takes images of 227 x 227 without padding; 2 zeros on every side give the same 55 x 55 positions from
    224 x 224, as in torchvision. Torchvision has 256 filters in the fourth convolution, tf_cnn_benchmarks 384.
    """
    x = net.relu(net.conv(net.input, "conv0", 64, 11, strides=4, padding=2, init="he_uniform"))
    x = net.max_pool(x, 3, strides=2)
    x = net.relu(net.conv(x, "conv1", 192, 5, init="he_uniform"))
    x = net.max_pool(x, 3, strides=2)
    for name, filters in (("conv2", 384), ("conv3", 384), ("conv4", 256)):
        x = net.relu(net.conv(x, name, filters, 3, init="he_uniform"))
    x = net.flatten(net.max_pool(x, 3, strides=2))
    for name in ("affine0", "affine1"):
        x = net.dropout(net.relu(net.dense(x, name, 4096, init="he_uniform")), 0.5)
    net.dense(x, "affine2", outputs)


def vgg16(net: Network, outputs: int) -> None:
    """Build VGG16; 138,357,544 parameters with inputs of 224 x 224 and 1000 outputs. It has no dropout, as in Keras."""
    x = net.input
    for block, (filters, convolutions) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], start=1):
        for number in range(1, convolutions + 1):
            x = net.relu(net.conv(x, f"block{block}_conv{number}", filters, 3))
        x = net.max_pool(x, 2, strides=2)
    x = net.flatten(x)
    for name in ("fc1", "fc2"):
        x = net.relu(net.dense(x, name, 4096))
    net.dense(x, "predictions", outputs)


def inception_v3(net: Network, outputs: int) -> None:
    """Build InceptionV3; 23,817,352 parameters with 1000 outputs; inputs of at least 75 x 75."""
    x = _conv_bn_relu(net, net.input, 32, 3, strides=2, padding="valid")
    x = _conv_bn_relu(net, x, 32, 3, padding="valid")
    x = _conv_bn_relu(net, x, 64, 3)
    x = net.max_pool(x, 3, strides=2)
    x = _conv_bn_relu(net, x, 80, 1, padding="valid")
    x = _conv_bn_relu(net, x, 192, 3, padding="valid")
    x = net.max_pool(x, 3, strides=2)
    for pool_filters in (32, 64, 64):
        ends = _chain(net, x, (64, 1)), _chain(net, x, (48, 1), (64, 5)), _chain(net, x, (64, 1), (96, 3), (96, 3))
        x = net.concat(*ends, _pool_branch(net, x, pool_filters))
    x = net.concat(
        _reduce(net, x, 384), _reduce(net, _chain(net, x, (64, 1), (96, 3)), 96), net.max_pool(x, 3, strides=2)
    )
    for width in (128, 160, 160, 192):
        short = _chain(net, x, (192, 1)), _chain(net, x, (width, 1), (width, ROW), (192, COLUMN))
        long = _chain(net, x, (width, 1), (width, COLUMN), (width, ROW), (width, COLUMN), (192, ROW))
        x = net.concat(*short, long, _pool_branch(net, x, 192))
    short_end = _reduce(net, _chain(net, x, (192, 1)), 320)
    long_end = _reduce(net, _chain(net, x, (192, 1), (192, ROW), (192, COLUMN)), 192)
    x = net.concat(short_end, long_end, net.max_pool(x, 3, strides=2))
    for _ in range(2):
        single, once = _chain(net, x, (320, 1)), _fork(net, _chain(net, x, (384, 1)))
        x = net.concat(single, once, _fork(net, _chain(net, x, (448, 1), (384, 3))), _pool_branch(net, x, 192))
    net.dense(net.global_avg_pool(x), "predictions", outputs)


def _conv_bn_relu(net: Network, x: Node, filters: int, kernel: Kernel, strides: int = 1, padding: str = "same") -> Node:
    number = net.count("conv")
    tail = f"_{number}" if number else ""
    x = net.conv(x, f"conv2d{tail}", filters, kernel, strides, padding, bias=False)
    return net.relu(net.batch_norm(x, f"batch_normalization{tail}", scale=False))


def _chain(net: Network, x: Node, *convolutions: tuple[int, Kernel]) -> Node:
    """Append consecutive convolutions, each given as (filters, kernel)."""
    for filters, kernel in convolutions:
        x = _conv_bn_relu(net, x, filters, kernel)
    return x


def _reduce(net: Network, x: Node, filters: int) -> Node:
    return _conv_bn_relu(net, x, filters, 3, strides=2, padding="valid")


def _pool_branch(net: Network, x: Node, filters: int) -> Node:
    return _conv_bn_relu(net, net.avg_pool(x, 3, strides=1, padding="same"), filters, 1)


def _fork(net: Network, x: Node) -> Node:
    return net.concat(_conv_bn_relu(net, x, 384, (1, 3)), _conv_bn_relu(net, x, 384, (3, 1)))
