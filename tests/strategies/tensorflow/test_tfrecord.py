"""TFRecord files that TensorFlow has written, read without it."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from scalebench.core.errors import InputError
from scalebench.workloads.datasets import cache, images, tfrecord
from scalebench.workloads.datasets.picture_reader import PictureReader, Pictures
from scalebench.workloads.source import Source
from tests.builders.configs import image_config, take

COUNT, CLASSES, SIDE = 16, 4, 48
WORKERS = pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(COUNT):
        pixels = rng.integers(0, 255, (60 + number, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{number}.JPEG", format="PNG" if number == 3 else "JPEG")
    return path


def write_records(folder, out, first_label=1, keys=None):
    """Write three TFRecord files with 5, 5 and 6 records; return the folder of their index."""
    image_key, label_key = keys or (key.decode() for key in tfrecord.KEYS)
    for file in range(3):
        with tf.io.TFRecordWriter(str(out / f"train-{file:05d}-of-00003")) as writer:
            for number in range(5 * file, COUNT if file == 2 else 5 * file + 5):
                encoded = tf.train.BytesList(value=[(folder / f"{number}.JPEG").read_bytes()])
                label = tf.train.Int64List(value=[number % CLASSES + first_label])
                feature = {
                    "image/height": tf.train.Feature(int64_list=tf.train.Int64List(value=[300])),
                    "image/ratio": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
                    image_key: tf.train.Feature(bytes_list=encoded),
                    label_key: tf.train.Feature(int64_list=label),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    config = image_config("imagenet_tfrecord", out / "cache", SIDE, path=str(out), size=1000)
    return tfrecord.index_files(config, out / "cache", out)


def open_source(root, index, workers=0, replica=0):
    arrays = cache.open_arrays(index)
    reader = PictureReader(Pictures(str(root), SIDE, "uint8", 5, True, workers, CLASSES, records=True), *arrays)
    shares = {"replica": replica, "replicas": 2, "devices": 2}
    return Source(*arrays, global_batch=6, seed=1, reader=reader, shuffled=False, **shares)


@WORKERS
def test_records_are_shared_in_the_order_of_the_files(folder, tmp_path, workers):
    index = write_records(folder, tmp_path)
    shares = [take(open_source(tmp_path, index, workers, replica), 6) for replica in range(2)]
    targets = [int(label) for parts in zip(*shares, strict=True) for part in parts for label in part.targets]
    assert targets == [number % CLASSES for number in range(COUNT)] * 2
    assert [part.samples for part in shares[0]] == [3, 3, 2] * 2
    in_order = list(open_source(tmp_path, index, workers, 1).in_order())
    assert [batch.targets.tolist() for batch in in_order] == [[3, 0, 1], [1, 2, 3], [2, 3]]
    assert np.array_equal(in_order[0].inputs[0], images.decode(str(folder / "3.JPEG"), SIDE))


def test_mistakes_in_records_are_one_line(folder, tmp_path):
    def fail(number, **changes):
        out = tmp_path / str(number)
        out.mkdir()
        with pytest.raises(InputError) as caught:
            take(open_source(out, write_records(folder, out, **changes)), 3)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "has label 0, and those of ImageNet's layout are 1 to dataset.classes=4" in fail(0, first_label=0)
    assert "has label 5" in fail(1, first_label=2)
    missing = fail(2, keys=("image/encoded", "label"))
    assert missing.endswith("has records without image/class/label: write tf.train.Example as for ImageNet")
    write_records(folder, tmp_path)
    cut = tmp_path / "train-00001-of-00003"
    cut.write_bytes(cut.read_bytes()[:-7])
    with pytest.raises(InputError, match=rf"^{cut} is not a complete TFRecord file"):
        write_records_index(tmp_path)
    with pytest.raises(InputError, match=r"has no files train-\*-of-\*"):
        write_records_index(folder)


def write_records_index(path):
    return tfrecord.index_files(image_config("imagenet_tfrecord", path / "cache", SIDE), path / "cache", path)


def test_a_rank_reads_only_its_own_records(folder, tmp_path):
    """One of them is damaged, and so are all that the other rank reads, each in the first bytes of its data."""
    index = write_records(folder, tmp_path)
    rows = list(zip(*cache.open_arrays(index), strict=True))

    def damage(which):
        for name, offset in (rows[row] for row in which):
            with (tmp_path / name.decode()).open("r+b") as file:
                file.seek(offset + tfrecord.HEADER_BYTES)
                file.write(b"!!!!")

    def read():
        return [int(label) for batch in take(open_source(tmp_path, index), 3) for label in batch.targets]

    own = [0, 1, 2, 6, 7, 8, 12, 13]
    damage([row for row in range(COUNT) if row not in own])
    assert read() == [row % CLASSES for row in own]
    damage([7])
    damaged = tmp_path / "train-00001-of-00003"
    with pytest.raises(InputError, match=rf"^{damaged} has a damaged record \(.+\): copy or make it again$"):
        read()
    Path(damaged).unlink()
    with pytest.raises(InputError, match=rf"^{damaged} has a damaged record \(.+\): copy or make it again$"):
        read()
