"""Pictures through tf.data: the samples, crops and order of scalebench's own reader, from JPEG and TFRecord files."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from scalebench.core.errors import InputError
from scalebench.strategies.tensorflow.picture_reader import compute_window, read_with_tensorflow
from scalebench.workloads.datasets import cache, images, tfrecord
from scalebench.workloads.datasets.picture_reader import PictureReader, Pictures
from scalebench.workloads.source import Source
from tests.builders.configs import image_config, take

COUNT, CLASSES, SIDE = 16, 4, 48
WORKERS = pytest.mark.parametrize("workers", [2, pytest.param(0, marks=pytest.mark.slow)])
MAX_MEAN_DIFFERENCE = 1.0  # of 255: both resize in their own way, and central squares are up to half a pixel apart


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Smooth pictures, whose neighbouring pixels differ little, and one of them in a PNG file named .JPEG."""
    path, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(COUNT):
        small = Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8))
        picture = small.resize((120 + number, 90), Image.Resampling.BICUBIC)
        picture.save(path / f"{number}.JPEG", format="PNG" if number == 3 else "JPEG", quality=95)
    np.save(path / "names.npy", np.array([f"{number}.JPEG".encode() for number in range(COUNT)]))
    return path


def open_source(folder, workers, replica=0, names="names.npy", **keys):
    pictures = Pictures(str(folder / names), str(folder), SIDE, "uint8", 5, True, workers, **keys)
    targets = np.load(Path(names).with_name(cache.TARGETS)) if pictures.records else np.arange(COUNT) % CLASSES
    reader = PictureReader(pictures, targets)
    arrays, shares = (pictures.load_names(), targets), {"replica": replica, "replicas": 2, "devices": 2}
    return Source(*arrays, global_batch=6, seed=1, reader=reader, shuffled=not pictures.records, **shares)


@pytest.mark.parametrize("workers", [0, 2])
def test_both_readers_give_the_same_samples(folder, workers):
    for expected, batch in zip(
        take(open_source(folder, 0), 7), take(read_with_tensorflow(open_source(folder, workers)), 7), strict=True
    ):
        assert np.array_equal(expected.targets, batch.targets) and expected.global_samples == batch.global_samples
        assert batch.inputs.dtype == np.uint8 and batch.inputs.shape == expected.inputs.shape
        assert np.abs(batch.inputs.astype(float) - expected.inputs).mean() < MAX_MEAN_DIFFERENCE
    in_order = read_with_tensorflow(open_source(folder, workers)).in_order()
    for expected, batch in zip(open_source(folder, 0).in_order(), in_order, strict=True):
        assert np.array_equal(expected.targets, batch.targets)
        assert np.abs(batch.inputs.astype(float) - expected.inputs).mean() < 4 * MAX_MEAN_DIFFERENCE


def test_a_damaged_picture_is_named(folder, tmp_path):
    """Its header is cut off: of a picture that is cut off later TensorFlow decodes crops that are complete."""
    for file in folder.iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[:200] if file.name == "9.JPEG" else data)
    source = read_with_tensorflow(open_source(tmp_path, 2))
    with pytest.raises(InputError, match=rf"^{tmp_path}/9\.JPEG is not a complete JPEG file \(.+\): repair or remove"):
        take(source, 15)


def write_records(folder, out, first_label=1, keys=None):
    """Write three TFRecord files with 5, 5 and 6 records; return the config of a data set of them."""
    image_key, label_key = keys or (key.decode() for key in tfrecord.KEYS)
    for file in range(3):
        with tf.io.TFRecordWriter(str(out / f"train-{file:05d}-of-00003")) as writer:
            for number in range(5 * file, COUNT if file == 2 else 5 * file + 5):
                encoded = tf.train.BytesList(value=[(folder / f"{number}.JPEG").read_bytes()])
                label = tf.train.Int64List(value=[number % CLASSES + first_label])
                feature = {image_key: tf.train.Feature(bytes_list=encoded)}
                feature |= {label_key: tf.train.Feature(int64_list=label)}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return image_config("imagenet_tfrecord", out / "cache", SIDE, path=str(out), size=1000)


def index_names(config, out):
    index = tfrecord.index_files(config, out / "cache", out)
    return str(index / cache.INPUTS)


@WORKERS
def test_records_are_shared_in_the_order_of_the_files(folder, tmp_path, workers):
    names = index_names(write_records(folder, tmp_path), tmp_path)
    settings = {"names": names, "records": True, "classes": CLASSES}
    sources = [open_source(tmp_path, workers, replica, **settings) for replica in range(2)]
    shares = [take(read_with_tensorflow(source), 6) for source in sources]
    targets = [int(label) for parts in zip(*shares, strict=True) for part in parts for label in part.targets]
    assert targets == [number % CLASSES for number in range(COUNT)] * 2
    assert [part.samples for part in shares[0]] == [3, 3, 2] * 2
    in_order = read_with_tensorflow(open_source(tmp_path, workers, 1, **settings)).in_order()
    assert [batch.targets.tolist() for batch in in_order] == [[3, 0, 1], [1, 2, 3], [2, 3]]


def test_mistakes_in_records_are_one_line(folder, tmp_path):
    def fail(out, **changes):
        with pytest.raises(InputError) as caught:
            names = index_names(write_records(folder, out, **changes), out)
            take(read_with_tensorflow(open_source(out, 2, names=names, records=True, classes=CLASSES)), 3)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    folders = [tmp_path / str(number) for number in range(4)]
    for each in folders:
        each.mkdir()
    assert "has label 0, and those of ImageNet's layout are 1 to dataset.classes=4" in fail(folders[0], first_label=0)
    assert "has label 5" in fail(folders[1], first_label=2)
    missing = fail(folders[2], keys=("image/encoded", "label"))
    assert missing.endswith("has records without image/class/label: write tf.train.Example as for ImageNet")
    config = write_records(folder, folders[3])
    cut = folders[3] / "train-00001-of-00003"
    cut.write_bytes(cut.read_bytes()[:-7])
    with pytest.raises(InputError, match=rf"^{cut} is not a complete TFRecord file"):
        index_names(config, folders[3])
    with pytest.raises(InputError, match=r"has no files train-\*-of-\*"):
        tfrecord.index_files(image_config("imagenet_tfrecord", tmp_path, SIDE), tmp_path, tmp_path)


@WORKERS
def test_a_rank_reads_only_its_own_records(folder, tmp_path, workers):
    """One of them is damaged, and so are all that the other rank reads, each in the first bytes of its data."""
    names = index_names(write_records(folder, tmp_path), tmp_path)
    rows = list(zip(np.load(names), np.load(Path(names).with_name(cache.TARGETS)), strict=True))

    def damage(which):
        for name, offset in (rows[row] for row in which):
            with (tmp_path / name.decode()).open("r+b") as file:
                file.seek(offset + tfrecord.HEADER_BYTES)
                file.write(b"!!!!")

    def read():
        source = open_source(tmp_path, workers, names=names, records=True, classes=CLASSES)
        return [int(label) for batch in take(read_with_tensorflow(source), 3) for label in batch.targets]

    own = [0, 1, 2, 6, 7, 8, 12, 13]
    damage([row for row in range(COUNT) if row not in own])
    assert read() == [row % CLASSES for row in own]
    damage([7])
    damaged = tmp_path / "train-00001-of-00003"
    with pytest.raises(InputError, match=rf"^{damaged} has a damaged record \(.+\): copy or make it again$"):
        read()
    damaged.unlink()
    with pytest.raises(InputError, match=rf"^{damaged} has a damaged record \(.+\): copy or make it again$"):
        read()


def test_a_crop_ends_within_the_picture():
    """In float32 these shares of what the crop leaves over are 1."""
    crop = np.array([0.5, 0.5, 1 - 1e-12, 1 - 1e-12, 0])
    top, left, height, width = compute_window(tf.constant(crop, tf.float32), tf.constant(40), tf.constant(60)).numpy()
    assert (left, top, left + width, top + height) == images.compute_box(crop, 60, 40)
