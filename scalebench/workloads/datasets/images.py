"""Images as the datasets store them, bytes or floats, and how pictures from files are decoded, cropped and resized."""

from __future__ import annotations

import io
import math
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

PIXEL_SCALE = 127.5
LABEL_DTYPE = "int64"  # PyTorch's cross-entropy needs it, and Keras takes it too
# Share of the shorter side that is kept. ImageNet models are evaluated on pictures made 256 pixels high, of which the
# central 224 are kept.
CROP_SHARE = 224 / 256
FORMATS = ("JPEG", "PNG")  # one picture of ILSVRC2012's training set is a PNG file named .JPEG
# Random crops for training: 8 to 100 % of the area at an aspect ratio of 3/4 to 4/3 (Szegedy et al. 2014,
# arXiv:1409.4842, section 6).
MIN_CROP_AREA, MAX_CROP_ASPECT = 0.08, 4 / 3
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels


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


def load_pillow(dataset: str) -> ModuleType:
    """Return the module PIL.Image. Raises InputError where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError(
            f"dataset={dataset} reads images with Pillow, which is missing: pip install 'scalebench-train[images]'"
        ) from None
    return Image


def resize(image: Image, side: int, box: tuple[float, float, float, float] | None = None) -> NDArray[np.uint8]:
    """Return the image, or the box (left, top, right, bottom) of it, as (side, side, 3), bilinear and antialiased."""
    from PIL.Image import Resampling

    return np.asarray(image.resize((side, side), Resampling.BILINEAR, box))


def crop_and_resize(image: Image, side: int) -> NDArray[np.uint8]:
    """Return the central square as (side, side, 3), cropped and resized in one step."""
    edge = CROP_SHARE * min(image.size)
    left, top = ((length - edge) / 2 for length in image.size)
    return resize(image, side, (left, top, left + edge, top + edge))


def draw_crops(seed: int, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (width, height, left, top, flip) of a random crop of each row, the same for equal (seed, epoch, row).

    Width and height are shares of the root of the picture's area, left and top shares of what the crop leaves over; the
    picture is flipped where the last number is below 0.5.
    """
    # The counter of this generator stands for the seed of a sample: hashing one takes twenty times as long.
    generators = (np.random.Generator(np.random.Philox(key=seed, counter=(0, row, epoch, 0))) for row in rows.tolist())
    draws = np.array([generator.random(5) for generator in generators]).reshape(len(rows), 5)
    area = MIN_CROP_AREA + (1 - MIN_CROP_AREA) * draws[:, 0]
    aspect = np.exp(math.log(MAX_CROP_ASPECT) * (2 * draws[:, 1] - 1))
    return np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect), *draws[:, 2:].T], axis=1)


def compute_box(crop: NDArray[np.float64], width: int, height: int) -> Box:
    """Return the box of a crop in a picture of this size. A crop longer than the picture is cut off; torchvision's
    RandomResizedCrop draws again."""
    root = math.sqrt(width * height)
    crop_width, crop_height = (
        max(1, min(size, int(share * root))) for share, size in zip(crop, (width, height), strict=False)
    )
    left, top = int(crop[2] * (width - crop_width + 1)), int(crop[3] * (height - crop_height + 1))
    return left, top, left + crop_width, top + crop_height


def decode(
    path: str, side: int, crop: NDArray[np.float64] | None = None, encoded: bytes | None = None
) -> NDArray[np.uint8]:
    """Return the picture at `path`, or the `encoded` one of a record there, as (side, side, 3): a crop of draw_crops,
    or else the central square.

    Raises InputError, with the path, where it is not a complete picture.
    """
    pillow = load_pillow("imagenet")
    try:
        with pillow.open(path if encoded is None else io.BytesIO(encoded), formats=FORMATS) as file:
            picture = file.convert("RGB")
            if crop is None:
                return crop_and_resize(picture, side)
            pixels = resize(picture, side, compute_box(crop, *picture.size))
            return pixels[:, ::-1] if crop[4] < 0.5 else pixels
    except Exception as error:  # a damaged picture raises several kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        subject = "is not a complete JPEG file" if encoded is None else "has a record that is no complete JPEG file"
        raise InputError(f"{path} {subject} ({reason}): repair or remove it") from None
