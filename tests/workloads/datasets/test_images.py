"""Bytes and floats of a picture, its size, and models that do not take it."""

import builtins

import numpy as np
import pytest
from PIL import Image

from scalebench.core.errors import InputError
from scalebench.workloads.datasets import images


def test_twice_the_size_is_bilinear_between_pixel_centres():
    """As tf.image.resize does it: weights of 3/4 and 1/4, and the edge pixel beyond the edge."""
    picture = np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8)
    got = images.resize(Image.fromarray(picture), 12)
    padded = np.pad(picture.astype(float), ((1, 1), (1, 1), (0, 0)), "edge")
    for axis in (0, 1):
        low = np.take(padded, range(padded.shape[axis] - 1), axis)
        high = np.take(padded, range(1, padded.shape[axis]), axis)
        pairs = np.stack([0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high], axis + 1)
        shape = list(low.shape)
        shape[axis] *= 2
        padded = np.take(pairs.reshape(shape), range(1, shape[axis] - 1), axis)
    assert np.abs(got - padded).max() <= 1


def test_the_central_square_keeps_the_middle_and_the_proportions():
    wide = np.zeros((256, 512, 3), np.uint8)
    wide[16:240, 144:368] = 200  # the central 224 x 224
    cut = images.crop_and_resize(Image.fromarray(wide), 224)
    assert cut.shape == (224, 224, 3) and (cut == 200).all()
    assert (images.crop_and_resize(Image.fromarray(np.swapaxes(wide, 0, 1)), 224) == 200).all()
    gradient = np.repeat(np.linspace(0, 255, 512).astype(np.uint8)[None, :, None], 256, 0).repeat(3, 2)
    assert np.array_equal(images.crop_and_resize(Image.fromarray(gradient), 224), gradient[16:240, 144:368])


def test_the_central_square_is_antialiased():
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    cut = images.crop_and_resize(Image.fromarray(stripes), 28)
    assert 120 < cut.mean() < 135 and cut.std() < 20


def test_pillow_that_is_not_installed_is_one_line(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"dataset=imagenet reads .* pip install 'scalebench\[images\]'"):
        images.load_pillow("imagenet")
