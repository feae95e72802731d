"""PyTorch's weights for Keras, by order and kind."""

from __future__ import annotations

import numpy as np
import pytest

from scalebench.testing.model_worker import UnmappableWeights, map_torch_weights

GIVEN = {
    "0.weight": np.arange(24.0).reshape(4, 2, 3),  # conv1d: out, in, width
    "0.bias": np.arange(4.0),
    "1.weight": np.arange(4.0) + 10,  # batch normalisation
    "1.running_mean": np.zeros(4),
    "1.num_batches_tracked": np.array(0),
    "2.weight": np.arange(16.0).reshape(4, 4),  # a dense layer, whose shape does not tell which way round it is
    "3.weight": np.arange(20.0).reshape(5, 4),  # an embedding
}
WANTED = [
    ("net/conv/kernel", (3, 2, 4)),
    ("net/conv/bias", (4,)),
    ("net/norm/gamma", (4,)),
    ("net/dense/kernel:0", (4, 4)),
    ("net/embedding/embeddings", (5, 4)),
]


def test_kernels_are_transposed_and_the_rest_is_copied() -> None:
    conv, bias, gamma, dense, embedding = map_torch_weights(GIVEN, WANTED)
    np.testing.assert_array_equal(conv, GIVEN["0.weight"].transpose(2, 1, 0))
    np.testing.assert_array_equal(bias, GIVEN["0.bias"])
    np.testing.assert_array_equal(gamma, GIVEN["1.weight"])
    np.testing.assert_array_equal(dense, GIVEN["2.weight"].T)
    np.testing.assert_array_equal(embedding, GIVEN["3.weight"])


def test_kernels_of_pictures() -> None:
    kernel = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)  # out, in, height, width
    (actual,) = map_torch_weights({"weight": kernel}, [("conv/kernel", (4, 5, 3, 2))])
    assert actual[1, 2, 0, 1] == kernel[1, 0, 1, 2]


@pytest.mark.parametrize(
    ("wanted", "arguments"),
    [
        (WANTED[:-1], "PyTorch's network has 5 trained arrays and Keras' has 4"),
        (
            [WANTED[1], WANTED[0], *WANTED[2:]],
            r"number 1 is 0\.weight \(4, 2, 3\) in PyTorch, which would be \(4, 2, 3\) in Keras, where net/conv/bias",
        ),
    ],
)
def test_weights_that_cannot_be_mapped_are_an_error(wanted: list[tuple[str, tuple[int, ...]]], arguments: str) -> None:
    with pytest.raises(UnmappableWeights, match=arguments):
        map_torch_weights(GIVEN, wanted)
