"""Networks for ImageNet other than ResNets: AlexNet, GoogLeNet, InceptionV3, LeNet, OverFeat, VGG and a trivial one.

Those of tf_cnn_benchmarks (tensorflow/benchmarks, models/) are alexnet, googlenet, lenet, overfeat and trivial with its
layer names, and vgg11 and vgg19 with those of Keras. They have 1000 outputs, where tf_cnn_benchmarks has 1001. vgg16
and inception_v3 (Szegedy et al. 2015, "Rethinking the Inception Architecture for Computer Vision", without the
auxiliary classifier) are those of keras.applications. InceptionV3's layers are numbered in the order in which Keras
makes them, since it does not name them.
"""

from __future__ import annotations

from scalebench.workloads.network import Network, Node

Kernel = int | tuple[int, int]
COLUMN, ROW = (7, 1), (1, 7)
VGG_FILTERS = (64, 128, 256, 512, 512)  # of the convolutions of each block

# The filters of each module of GoogLeNet: 1x1; 3x3 and the 1x1 before it; 5x5 and the 1x1 before it; 1x1 behind the
# pooling (Szegedy et al. 2014, "Going deeper with convolutions", table 1).
GOOGLENET_STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)  # fmt: skip


def alexnet(net: Network, outputs: int) -> None:
    """Build AlexNet for ImageNet; 61,838,248 parameters with inputs of 224 x 224 and 1000 outputs.

    The original takes images of 227 x 227 without padding; 2 zeros on every side give the same 55 x 55 positions from
    224 x 224, as in torchvision. Torchvision has 256 filters in the fourth convolution, tf_cnn_benchmarks 384.
    """
    x = net.max_pool(_conv_relu(net, net.input, 64, 11, strides=4, padding=2), 3, strides=2)
    x = net.max_pool(_conv_relu(net, x, 192, 5), 3, strides=2)
    for filters in (384, 384, 256):
        x = _conv_relu(net, x, filters, 3)
    _classify(net, net.max_pool(x, 3, strides=2), outputs, (4096, 4096), dropout=0.5)


def googlenet(net: Network, outputs: int) -> None:
    """Build GoogLeNet; 6,998,552 parameters with 1000 outputs.

    As in tf_cnn_benchmarks it has neither auxiliary classifiers nor normalization nor dropout. The mean over all
    positions is the original's pooling for images of 224 x 224, and allows other sizes.
    """
    x = net.max_pool(_conv_relu(net, net.input, 64, 7, strides=2), 3, strides=2, padding="same")
    x = _conv_relu(net, _conv_relu(net, x, 64, 1), 192, 3)
    for modules in GOOGLENET_STAGES:
        x = net.max_pool(x, 3, strides=2, padding="same")
        for single, before3, conv3, before5, conv5, pooled in modules:
            ends = [_conv_relu(net, x, single, 1), _conv_relu(net, _conv_relu(net, x, before3, 1), conv3, 3)]
            ends.append(_conv_relu(net, _conv_relu(net, x, before5, 1), conv5, 5))
            ends.append(_conv_relu(net, net.max_pool(x, 3, strides=1, padding="same"), pooled, 1))
            x = net.concat(*ends)
    _classify(net, net.global_avg_pool(x), outputs)


def lenet(net: Network, outputs: int) -> None:
    """Build LeNet as TensorFlow's old MNIST tutorial had it; 2,172,840 parameters with inputs of 28 x 28 x 3 and 1000
    outputs."""
    x = net.max_pool(_conv_relu(net, net.input, 32, 5), 2, strides=2)
    x = net.max_pool(_conv_relu(net, x, 64, 5), 2, strides=2)
    _classify(net, x, outputs, (512,))


def overfeat(net: Network, outputs: int) -> None:
    """Build the fast network of OverFeat (Sermanet et al. 2013); 145,920,872 parameters with inputs of 231 x 231 and
    1000 outputs."""
    x = net.max_pool(_conv_relu(net, net.input, 96, 11, strides=4, padding="valid"), 2, strides=2)
    x = net.max_pool(_conv_relu(net, x, 256, 5, padding="valid"), 2, strides=2)
    for filters in (512, 1024, 1024):
        x = _conv_relu(net, x, filters, 3)
    _classify(net, net.max_pool(x, 2, strides=2), outputs, (3072, 4096), dropout=0.5)


def trivial(net: Network, outputs: int) -> None:
    """Build tf_cnn_benchmarks' network for measuring the input pipeline; 4,259,780 parameters with inputs of 227 x 227
    and 1000 outputs."""
    _classify(net, net.input, outputs, (1, 4096))


def vgg(net: Network, outputs: int, convolutions: tuple[int, ...], dropout: float) -> None:
    """Build a VGG (Simonyan and Zisserman 2014) with this number of convolutions in each block.

    With inputs of 224 x 224 and 1000 outputs VGG11 (configuration A) has 132,863,336 parameters, VGG16 (D), which has
    no dropout in Keras, 138,357,544, and VGG19 (E) 143,667,240.
    """
    init = "he_uniform" if dropout else "glorot_uniform"  # as in tf_cnn_benchmarks, or as in Keras
    x = net.input
    for block, (filters, count) in enumerate(zip(VGG_FILTERS, convolutions, strict=True), start=1):
        for number in range(1, count + 1):
            x = net.relu(net.conv(x, f"block{block}_conv{number}", filters, 3, init=init))
        x = net.max_pool(x, 2, strides=2)
    x = net.flatten(x)
    for name in ("fc1", "fc2"):
        x = net.relu(net.dense(x, name, 4096, init=init))
        x = net.dropout(x, dropout) if dropout else x
    net.dense(x, "predictions", outputs)


def _conv_relu(net: Network, x: Node, filters: int, kernel: int, strides: int = 1, padding: str | int = "same") -> Node:
    """Append a convolution with the name that tf_cnn_benchmarks gives it, and a relu."""
    name = f"conv{net.count('conv')}"
    return net.relu(net.conv(x, name, filters, kernel, strides, padding, init="he_uniform"))


def _classify(net: Network, x: Node, outputs: int, widths: tuple[int, ...] = (), dropout: float = 0.0) -> None:
    """Append hidden dense layers, each with a relu and a dropout unless that is 0, and the last layer."""
    x = net.flatten(x) if len(x.shape) > 1 else x
    for number, width in enumerate(widths):
        x = net.relu(net.dense(x, f"affine{number}", width, init="he_uniform"))
        x = net.dropout(x, dropout) if dropout else x
    net.dense(x, f"affine{len(widths)}", outputs)


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
