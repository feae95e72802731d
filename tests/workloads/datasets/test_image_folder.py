"""Class folders of pictures: numbered by name, chosen evenly, decoded once; every mistake is one line. Bytes and
floats of a picture, and its size."""

import collections
import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scalebench.core.errors import InputError
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache, image_folder, images
from tests.builders.configs import image_config

CLASSES = ("n01", "n02", "n10")


def picture(path, colour, mode="RGB", size=(40, 30), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, colour, colour)).convert(mode).save(path, **{"format": "JPEG", **options})


@pytest.fixture
def folder(tmp_path):
    """Three classes of four pictures; the brightness of each tells which it is."""
    for number, name in enumerate(CLASSES):
        for place in range(4):
            picture(tmp_path / "data" / name / f"{place}.JPEG", 60 * number + 10 * place)
    return tmp_path / "data"


def prepare(folder, **changes):
    changes = {"path": str(folder), **changes}
    return cache.open_arrays(datasets.prepare(image_config("imagenet", folder.parent / "cache", 16, **changes)))


def brightness(inputs):
    return [round(float(picture.mean()), -1) for picture in inputs]


def test_every_picture_with_the_number_of_its_class(folder):
    (folder / "readme.txt").touch()
    (folder / ".hidden").mkdir()
    (folder / "n01" / "notes.txt").touch()
    inputs, targets = prepare(folder)
    assert inputs.shape == (12, 16, 16, 3) and inputs.dtype == np.uint8 and targets.dtype == np.int64
    assert np.array_equal(prepare(folder, dtype="float32")[0], inputs / np.float32(127.5) - 1)
    expected = {60 * number + 10 * place: number for number in range(3) for place in range(4)}
    assert dict(zip(brightness(inputs), targets.tolist(), strict=True)) == expected
    assert targets.tolist() != sorted(targets.tolist())  # shuffled, so that what validates has all classes
    folder.rename(folder.parent / "train")
    (folder.parent / "val" / "n01").mkdir(parents=True)
    config = image_config("imagenet", folder.parent / "cache", 16, path=str(folder.parent))
    assert len(cache.open_arrays(datasets.prepare(config))[0]) == 12


def test_pictures_are_chosen_evenly_and_by_the_seed(folder):
    inputs, targets = prepare(folder, size=6)
    assert collections.Counter(targets.tolist()) == {0: 2, 1: 2, 2: 2}
    assert len(prepare(folder)[0]) == 12
    others = {tuple(brightness(prepare(folder, size=6, seed=seed)[0])) for seed in range(3)}
    assert len(others) == 3 and tuple(brightness(inputs)) in others


def test_grey_cmyk_and_png_pictures(folder, monkeypatch):
    """Several processes decode the same."""
    for place, options in enumerate(({"mode": "L"}, {"mode": "CMYK"}, {"mode": "RGBA", "format": "PNG"})):
        picture(folder / "n11" / f"{place}.jpeg", 200, **options)
    inputs, targets = prepare(folder)
    assert brightness(inputs[targets == 3]) == [200, 200, 200]
    monkeypatch.setattr(image_folder, "MIN_POOL_PICTURES", 0)
    monkeypatch.setattr(image_folder, "CHUNK", 5)
    pooled = prepare(folder, cache=str(folder.parent / "other"))
    assert np.array_equal(inputs, pooled[0]) and np.array_equal(targets, pooled[1])
    (folder / "n02" / "9.JPEG").symlink_to(folder / "n01" / "0.JPEG")  # a link to a picture is one
    assert len(prepare(folder)[0]) == 16


def test_decoded_once_and_again_when_files_come_or_go(folder, monkeypatch):
    decoded = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda path, *more: (decoded.append(path), decode(path, *more))[1])
    prepare(folder)
    prepare(folder)
    assert len(decoded) == 12
    os.remove(folder / "n02" / "1.JPEG")
    assert len(prepare(folder)[0]) == 11


def cut(path):
    picture(path, 90, size=(400, 300))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {
    "cut": cut,
    "another format": lambda path: Image.new("RGB", (40, 30)).save(path, format="GIF"),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize(("damage", "pooled"), [("cut", True), *((damage, False) for damage in DAMAGES)])
def test_a_damaged_picture_is_named(folder, damage, pooled, monkeypatch):
    if pooled:
        monkeypatch.setattr(image_folder, "MIN_POOL_PICTURES", 0)
    DAMAGES[damage](folder / "n02" / "2.JPEG")
    with pytest.raises(InputError, match=r"n02/2\.JPEG is not a complete JPEG file \(") as caught:
        prepare(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert [path.suffix for path in (folder.parent / "cache").iterdir()] == [".lock"]


def test_pictures_are_regular_files(folder):
    """Reading a pipe would wait, without a limit, for somebody who writes into it."""
    os.mkfifo(folder / "n02" / "odd.jpg")
    (folder / "n02" / "zero.jpg").symlink_to("/dev/zero")
    assert len(prepare(folder)[0]) == 12


def test_no_path_and_no_folders(tmp_path):
    data = tmp_path / "data"

    def fails(message, read=lambda: prepare(data)):
        with pytest.raises(InputError, match=message):
            read()

    unset = image_config("imagenet", tmp_path)
    fails(r"read from files: have a folder .*image-net.*, then set dataset\.path", lambda: datasets.prepare(unset))
    fails(r"data cannot be read \(No such file")
    data.mkdir()
    fails("has no class folders: have a folder")
    (data / "n01").mkdir()
    fails("n01 has no JPEG files")


def test_any_picture_may_be_chosen_for_any_position():
    chosen = [image_folder.choose_pictures([100, 1], 2, seed) for seed in range(20)]
    assert len({tuple(row) for rows in chosen for row in rows.tolist() if row[0] == 0}) > 10
    places = [np.flatnonzero(image_folder.choose_pictures([100, 1], 101, seed)[:, 0] == 1)[0] for seed in range(20)]
    assert max(places) > 50 and min(places) < 50


def test_another_size_of_pictures_and_more_classes_than_outputs(folder):
    with pytest.raises(InputError, match=r"has 3 class folders, dataset\.classes=2 \(model=net has 10 outputs\)"):
        prepare(folder, classes=2)
    config = image_config("imagenet", folder.parent / "cache", 16, path=str(folder))
    for side in (16, 20):
        config.model.input_shape = [side, side, 3]
        assert cache.open_arrays(datasets.prepare(config))[0].shape == (12, side, side, 3)
    config.model.input_shape = [16, 20, 3]
    with pytest.raises(InputError, match=r"takes \(16, 20, 3\): .*or set dataset.image_size$"):
        datasets.prepare(config)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 60), st.integers(0, 5))
def test_chosen_evenly_and_none_twice(counts, size, seed):
    chosen = image_folder.choose_pictures(counts, size, seed)
    assert len(chosen) == min(size, sum(counts)) == len(set(map(tuple, chosen.tolist())))
    taken = np.bincount(chosen[:, 0], minlength=len(counts))
    for c, (chosen_of_class, all_of_class) in enumerate(zip(taken, counts, strict=True)):
        assert chosen_of_class == all_of_class or chosen_of_class >= max(taken) - 1
        assert (chosen[chosen[:, 0] == c, 1] < all_of_class).all()
    assert np.array_equal(chosen, image_folder.choose_pictures(counts, size, seed))


def test_without_pillow_no_process_is_started(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr(cache, "ensure_folder", lambda *_: pytest.fail("began to unpack"))
    with pytest.raises(InputError, match=r"dataset=imagenet reads .* pip install 'scalebench-train\[images\]'"):
        prepare(folder)


def test_the_central_square_keeps_the_middle_and_is_antialiased():
    wide = np.zeros((256, 512, 3), np.uint8)
    wide[16:240, 144:368] = 200  # the central 224 x 224
    cut = images.crop_and_resize(Image.fromarray(wide), 224)
    assert cut.shape == (224, 224, 3) and (cut == 200).all()
    assert (images.crop_and_resize(Image.fromarray(np.swapaxes(wide, 0, 1)), 224) == 200).all()
    gradient = np.repeat(np.linspace(0, 255, 512).astype(np.uint8)[None, :, None], 256, 0).repeat(3, 2)
    assert np.array_equal(images.crop_and_resize(Image.fromarray(gradient), 224), gradient[16:240, 144:368])
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    cut = images.crop_and_resize(Image.fromarray(stripes), 28)
    assert 120 < cut.mean() < 135 and cut.std() < 20
