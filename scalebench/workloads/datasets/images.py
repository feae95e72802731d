"""Images as the datasets store them, bytes or floats, and how pictures from files are cropped and resized."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.core.spec import Config

if TYPE_CHECKING:
    from PIL.Image import Image

PIXEL_SCALE = 127.5
LABEL_DTYPE = "int64"  # PyTorch's cross-entropy needs it, and Keras takes it too
# Share of the shorter side that is kept. ImageNet models are evaluated on pictures made 256 pixels high, of which the
# central 224 are kept.
CROP_SHARE = 224 / 256


def to_float32(images: NDArray[Any]) -> NDArray[np.float32]:
    """Map bytes 0 .. 255 to float32 from -1 to 1: `images / PIXEL_SCALE - 1`, which adapters compute on the device.

    A dataset therefore has the same pictures in either dtype.
    """
    floats = images.astype(np.float32)
    floats /= np.float32(PIXEL_SCALE)
    floats -= np.float32(1)
    return floats


def to_dtype(images: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Return the bytes as `dataset.dtype` says: float32 from -1 to 1, or unchanged."""
    return to_float32(images) if dtype == "float32" else images


def check_model_takes_images(config: Config) -> None:
    """Raise InputError unless the model takes images and has at least as many outputs as the dataset has classes."""
    model, dataset = config.model, config.dataset
    if len(model.input_shape) != 3:
        raise InputError(
            f"dataset={dataset.name} has images, model={model.name} takes samples of {tuple(model.input_shape)}: "
            "choose a model for images, or another dataset"
        )
    if dataset.dtype == "int32":
        raise InputError(f"dataset.dtype=int32 is for token numbers: dataset={dataset.name} has uint8 or float32")
    if dataset.classes is None:
        raise InputError(f"dataset.classes=null: set the number of classes of the images of dataset={dataset.name}")
    if model.target_shape or model.outputs < dataset.classes:
        raise InputError(
            f"dataset={dataset.name} has {dataset.classes} classes, model={model.name} has {model.outputs} outputs"
            f"{' that are quantities' if model.target_shape else ''}: choose another model, or lower dataset.classes"
        )


def check_model_takes_square_rgb(config: Config) -> None:
    """Raise InputError unless the model takes square pictures with three channels, as those from files are made."""
    height, width, channels = config.model.input_shape
    if height != width or channels != 3:
        raise InputError(
            f"dataset={config.dataset.name} has square pictures of 3 channels, "
            f"model={config.model.name} takes {(height, width, channels)}: set dataset.image_size, or another model"
        )


def load_pillow(dataset: str) -> ModuleType:
    """Return the module PIL.Image. Raises InputError where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError(
            f"dataset={dataset} reads images with Pillow, which is missing: pip install 'scalebench-train[images]'"
        ) from None
    return Image


def resize(image: Image, side: int) -> NDArray[np.uint8]:
    """Return the complete image as (side, side, 3), bilinearly resized."""
    from PIL.Image import Resampling

    return np.asarray(image.resize((side, side), Resampling.BILINEAR))


def crop_and_resize(image: Image, side: int) -> NDArray[np.uint8]:
    """Return the central square as (side, side, 3), cropped and resized in one step, bilinear and antialiased."""
    from PIL.Image import Resampling

    edge = CROP_SHARE * min(image.size)
    left, top = ((length - edge) / 2 for length in image.size)
    box = (left, top, left + edge, top + edge)
    return np.asarray(image.resize((side, side), Resampling.BILINEAR, box))
