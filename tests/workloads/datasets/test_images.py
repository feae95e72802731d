"""Bytes and floats of a picture, its size, and models that do not take it."""

import builtins
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalebench.spec import InputError
from scalebench.workloads.datasets import images
from tests.workloads.configs import image_config


def test_bytes_become_floats_from_minus_one_to_one():
    floats = images.to_float32(np.array([0, 51, 255], np.uint8))
    assert floats.dtype == np.float32
    assert floats.tolist() == pytest.approx([-1.0, 51 / 127.5 - 1, 1.0], abs=1e-7)


def test_dtype_is_what_the_data_set_says():
    picture = np.arange(12, dtype=np.uint8)
    assert images.to_dtype(picture, "uint8") is picture
    assert np.array_equal(images.to_dtype(picture, "float32"), images.to_float32(picture))


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


MISFITS = {
    "curves": ({"input_shape": [200, 3]}, {}, r"dataset=cifar10 has images, model=net takes samples of \(200, 3\)"),
    "classes": ({"outputs": 9}, {}, "has 10 classes, model=net has 9 outputs:"),
    "quantities": ({"target_shape": [10]}, {}, "has 10 classes, model=net has 10 outputs that are quantities"),
    "no classes": ({}, {"classes": None}, r"dataset\.classes=null"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_model_that_does_not_fit_is_one_line(case):
    model, dataset, message = MISFITS[case]
    config = image_config("cifar10", Path(), **dataset)
    config.model = dataclasses.replace(config.model, **model)
    with pytest.raises(InputError, match=message) as caught:
        images.check_model_takes_images(config)
    assert "\n" not in str(caught.value)


def test_a_model_that_fits():
    images.check_model_takes_images(image_config("cifar10", Path()))
    images.check_model_takes_square_rgb(image_config("cifar10", Path()))


@pytest.mark.parametrize("shape", [[8, 9, 3], [8, 8, 1]])
def test_pictures_of_files_are_square_and_coloured(shape):
    config = image_config("cifar10", Path())
    config.model.input_shape = shape
    with pytest.raises(InputError, match=r"square pictures of 3 channels, model=net takes \(8, "):
        images.check_model_takes_square_rgb(config)


def test_pillow_that_is_not_installed_is_one_line(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"dataset=imagenet reads .* pip install 'scalebench\[images\]'"):
        images.load_pillow("imagenet")
