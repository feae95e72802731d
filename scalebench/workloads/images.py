"""Images as the data sets hold them: bytes or floats, and how pictures are cut to size. Layer 1."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import Config, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

SCALE = 127.5
LABEL_DTYPE = "int64"  # what torch's cross entropy takes; Keras takes it too
# Of the shorter side: a picture is made 256 pixels high and the central 224 are kept, as ImageNet models are evaluated.
CROP_SHARE = 224 / 256


def as_float32(images: NDArray[Any]) -> NDArray[np.float32]:
    """Bytes 0 .. 255 as float32 from -1 to 1: `images / SCALE - 1`, which adapters compute on the device.

    A data set is the same picture by picture in either dtype.
    """
    floats = images.astype(np.float32)
    floats /= np.float32(SCALE)
    floats -= np.float32(1)
    return floats


def in_dtype(images: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Bytes as `dataset.dtype` says."""
    return as_float32(images) if dtype == "float32" else images


def check(config: Config) -> None:
    """InputError unless the model takes images and gives as many classes as the data set has."""
    model, dataset = config.model, config.dataset
    if len(model.input_shape) != 3:
        raise InputError(
            f"dataset={dataset.name} has images, model={model.name} takes samples of {tuple(model.input_shape)}: "
            "choose a model of images, or another dataset"
        )
    if dataset.dtype == "int32":
        raise InputError(f"dataset.dtype=int32 is for token numbers: dataset={dataset.name} has uint8 or float32")
    if dataset.classes is None:
        raise InputError(
            f"dataset.classes=null: the images of dataset={dataset.name} have a number of classes, give it"
        )
    if model.target_shape or model.outputs < dataset.classes:
        raise InputError(
            f"dataset={dataset.name} has {dataset.classes} classes, model={model.name} has {model.outputs} outputs"
            f"{' that are quantities' if model.target_shape else ''}: choose another model, or lower dataset.classes"
        )


def check_pictures(config: Config) -> None:
    """InputError unless the model takes square pictures in red, green and blue, as those of files are made."""
    height, width, channels = config.model.input_shape
    if height != width or channels != 3:
        raise InputError(
            f"dataset={config.dataset.name} has square pictures of 3 channels, "
            f"model={config.model.name} takes {(height, width, channels)}: set dataset.image_size, or another model"
        )


def pillow(dataset: str) -> ModuleType:
    """The module PIL.Image; InputError where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError(
            f"dataset={dataset} reads pictures with Pillow, which is not installed: pip install 'scalebench[images]'"
        ) from None
    return Image


def resized(image: Image, side: int) -> NDArray[np.uint8]:
    """The whole image as (side, side, 3), bilinear."""
    from PIL.Image import Resampling

    return np.asarray(image.resize((side, side), Resampling.BILINEAR))


def central_square(image: Image, side: int) -> NDArray[np.uint8]:
    """The middle of the image as (side, side, 3): resized and cropped in one step, bilinear and antialiased."""
    from PIL.Image import Resampling

    edge = CROP_SHARE * min(image.size)
    left, top = ((length - edge) / 2 for length in image.size)
    box = (left, top, left + edge, top + edge)
    return np.asarray(image.resize((side, side), Resampling.BILINEAR, box))
