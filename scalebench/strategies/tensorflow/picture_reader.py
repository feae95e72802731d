"""Pictures that are decoded during training, as TensorFlow reads them: a tf.data pipeline over JPEG or TFRecord files.

The crops are those that scalebench's own reader draws, so that every framework trains on the same part of a picture.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

from scalebench.core.errors import InputError
from scalebench.workloads.datasets import images
from scalebench.workloads.datasets.picture_reader import PictureReader, Pictures
from scalebench.workloads.datasets.tfrecord import KEYS
from scalebench.workloads.source import Batch, BatchRows, Source

BATCHES_AT_ONCE = 2  # in work at a time, so that no thread is idle at the end of a batch
RECORD_FEATURES = {
    KEYS[0].decode(): tf.io.FixedLenFeature([], tf.string),
    KEYS[1].decode(): tf.io.FixedLenFeature([], tf.int64),
}
CROP_NUMBERS = 5  # of images.draw_crops


def read_with_tensorflow(source: Source) -> Source:
    """Return the source; one of pictures in files reads them through tf.data from now on."""
    if isinstance(getattr(source, "reader", None), PictureReader):
        source.reader = TfPictureReader(source.reader)
    return source


class TfPictureReader:
    """Reads batches of pictures through tf.data, with as many threads as `pictures.workers`."""

    def __init__(self, reader: PictureReader) -> None:
        self.pictures: Pictures = reader.pictures
        self._targets = reader.targets  # of records the places in their files where they begin
        self._names = self.pictures.load_names()

    def read(self, batches: Iterable[BatchRows]) -> Generator[Batch, None, None]:
        """Yield the batches in order. Raises InputError, with the file, for a damaged one."""
        requests = iter(batches)
        first = next(requests, None)
        if first is None:
            return
        sent: deque[BatchRows] = deque()  # to the pipeline, which is ahead of what it has returned
        damage: list[InputError] = []  # which the pipeline would wrap in an error of its own

        def elements() -> Iterator[tuple[Any, Any, Any]]:  # runs in a thread of the pipeline
            try:
                for batch in chain([first], requests):
                    sent.append(batch)
                    yield self._prepare(batch)
            except InputError as error:
                damage.append(error)

        is_cropped = self.pictures.draw_crops(first.rows[:1], first.epoch) is not None
        with tf.device("/CPU:0"):
            pipeline = iter(self._build_pipeline(elements, is_cropped))
            while True:
                try:
                    element = next(pipeline, None)
                except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.DataLossError) as error:
                    raise InputError(self._find_damage(sent) or _first_line(error)) from None
                if element is None:
                    if damage:
                        raise damage[0]
                    return
                inputs, labels = (tensor.numpy() for tensor in element)
                if self.pictures.records and not 0 <= labels.min() <= labels.max() < self.pictures.classes:
                    wrong = int(labels.min() if labels.min() < 0 else labels.max()) + 1
                    raise InputError(
                        f"{self.pictures.root} has label {wrong}, and those of ImageNet's layout are 1 to "
                        f"dataset.classes={self.pictures.classes}: raise dataset.classes, or write the files with "
                        "labels from 1 on"
                    )
                batch = sent.popleft()
                yield Batch(images.to_dtype(inputs, self.pictures.dtype), labels, batch.global_samples)

    def _prepare(self, batch: BatchRows) -> tuple[Any, Any, Any]:
        """Return paths or records, classes and crops of a batch. Raises InputError, with the file, for a damaged
        record."""
        crops = self.pictures.draw_crops(batch.rows, batch.epoch)
        crops = np.zeros((len(batch.rows), CROP_NUMBERS)) if crops is None else crops
        files, places = [self.pictures.path(self._names, row) for row in batch.rows.tolist()], self._targets[batch.rows]
        if self.pictures.records:
            with tf.device("/CPU:0"):  # of this thread
                files = [read_record(path, place) for path, place in zip(files, places.tolist(), strict=True)]
        return files, places, crops.astype(np.float32)

    def _build_pipeline(
        self, elements: Callable[[], Iterator[tuple[Any, Any, Any]]], is_cropped: bool
    ) -> tf.data.Dataset:
        """Return a dataset of the pixels and classes of each batch. Within it each batch is a dataset of its own, of as
        many samples as it has: batches of unequal sizes fit no other form."""
        workers, options = self.pictures.workers, tf.data.Options()
        parallel = {"num_parallel_calls": workers, "deterministic": True} if workers else {}

        def decode(file: tf.Tensor, label: tf.Tensor, crop: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if self.pictures.records:
                features = tf.io.parse_single_example(file, RECORD_FEATURES)
                encoded, label = (features[key.decode()] for key in KEYS)
                label -= 1
            else:
                encoded = tf.io.read_file(file)
            return decode_picture(encoded, self.pictures.side, crop if is_cropped else None), label

        def decode_batch(files: tf.Tensor, labels: tf.Tensor, crops: tf.Tensor) -> tf.data.Dataset:
            samples = tf.data.Dataset.from_tensor_slices((files, labels, crops))
            return samples.map(decode, **parallel).batch(tf.size(labels, tf.int64))

        signature = (
            tf.TensorSpec((None,), tf.string),
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((None, CROP_NUMBERS), tf.float32),
        )
        steps = tf.data.Dataset.from_generator(elements, output_signature=signature)
        if workers:
            options.threading.private_threadpool_size = workers
            at_once = {"cycle_length": BATCHES_AT_ONCE, "num_parallel_calls": BATCHES_AT_ONCE}
            return steps.interleave(decode_batch, **at_once, deterministic=True).prefetch(1).with_options(options)
        options.experimental_optimization.inject_prefetch = False  # on by default
        return steps.flat_map(decode_batch).with_options(options)

    def _find_damage(self, batches: Iterable[BatchRows]) -> str | None:
        """Return the line of an error for the first file that cannot be decoded: TensorFlow names none."""
        for row in chain.from_iterable(batch.rows.tolist() for batch in batches):
            path = self.pictures.path(self._names, row)
            if self.pictures.records:
                return (
                    f"{path} or a file after it has a record that is not a picture of ImageNet's layout: make it again"
                )
            try:
                decode_picture(tf.io.read_file(path), self.pictures.side, None)
            except tf.errors.OpError as error:
                return f"{path} is not a complete JPEG file ({_first_line(error)}): repair or remove it"
        return None


def read_record(path: str, place: int) -> bytes:
    """Return the record that begins at this place of its file. Raises InputError, with the file, for a damaged one."""
    form: dict[str, Any] = {"output_types": [tf.string], "output_shapes": [[]]}
    settings = {"compression_type": "", "buffer_size": 0, "byte_offsets": [place]}
    try:
        records = tf.raw_ops.TFRecordDatasetV2(filenames=[path], **settings)
        first = tf.raw_ops.TakeDataset(input_dataset=records, count=1, **form)
        record: bytes = tf.raw_ops.DatasetToSingleElement(dataset=first, **form)[0].numpy()
    except tf.errors.OpError as error:
        raise InputError(f"{path} has a damaged record ({_first_line(error)}): copy or make it again") from None
    return record


def decode_picture(encoded: tf.Tensor, side: int, crop: tf.Tensor | None) -> tf.Tensor:
    """Return pixels (side, side, 3) of a JPEG or PNG file: a crop of images.draw_crops, or else the central square."""

    def crop_jpeg() -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(encoded)
        window = compute_window(crop, shape[0], shape[1])
        # Unlike TensorFlow's default, this method decodes to the same bytes as Pillow.
        return tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_ACCURATE")

    def crop_png() -> tf.Tensor:
        picture = tf.image.decode_png(encoded, channels=3)
        top, left, height, width = tf.unstack(compute_window(crop, tf.shape(picture)[0], tf.shape(picture)[1]))
        return picture[top : top + height, left : left + width]

    pixels = tf.cond(tf.io.is_jpeg(encoded), crop_jpeg, crop_png)
    pixels = tf.image.resize(pixels, (side, side), antialias=True)
    pixels = tf.cast(tf.round(pixels), tf.uint8)
    return pixels if crop is None else tf.cond(crop[4] < 0.5, lambda: tf.reverse(pixels, [1]), lambda: pixels)


def compute_window(crop: tf.Tensor | None, height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Return (top, left, height, width) in pixels, as images.compute_box does for a crop."""
    if crop is None:
        edge = tf.cast(tf.round(images.CROP_SHARE * tf.cast(tf.minimum(height, width), tf.float32)), tf.int32)
        return tf.stack([(height - edge) // 2, (width - edge) // 2, edge, edge])
    root = tf.sqrt(tf.cast(height * width, tf.float32))
    crop_width, crop_height = (
        tf.maximum(1, tf.minimum(size, tf.cast(share * root, tf.int32)))
        for share, size in zip(tf.unstack(crop)[:2], (width, height), strict=True)
    )
    left, top = (
        # In float32 a share just below 1 becomes 1.
        tf.minimum(rest, tf.cast(share * tf.cast(rest + 1, tf.float32), tf.int32))
        for share, rest in zip(tf.unstack(crop)[2:4], (width - crop_width, height - crop_height), strict=True)
    )
    return tf.stack([top, left, crop_height, crop_width])


def _first_line(error: Exception) -> str:
    """Return the first line of an error of TensorFlow, without the {{node}} that it begins with."""
    return re.sub(r"^\{\{.*?\}\} ", "", str(error).partition("\n")[0])
