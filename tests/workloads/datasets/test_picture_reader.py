"""Pictures decoded during training: every worker and order gives the same samples; a worker that dies is an error."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from PIL import Image

from scalebench.core.errors import InputError
from scalebench.core.spec import ModelSpec
from scalebench.workloads import datasets
from scalebench.workloads.datasets import images, picture_reader
from tests.builders.configs import make_spec, take
from tests.builders.runs import find_running, wait_until

PICTURES, CLASSES, SIDE = 5, 3, 32
MODEL = ModelSpec("resnet20_cifar10", input_shape=[SIDE, SIDE, 3], outputs=10, loss="cross_entropy", metric="accuracy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of five noisy pictures of unequal sizes."""
    path, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(CLASSES):
        (path / f"n{number}").mkdir()
        for place in range(PICTURES):
            pixels = rng.integers(0, 255, (30 + place, 40 - 5 * number, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / f"n{number}" / f"{place}.JPEG", quality=95)
    return path


def pictures_spec(folder, tmp_path, replicas=1, batch=4, **keys):
    changes = {
        "model": MODEL, "dataset__name": "imagenet_jpeg",
        "dataset__path": str(folder), "dataset__classes": 10, "dataset__dtype": "uint8", "dataset__size": 1000,
        "dataset__validation_share": 0.2, "dataset__cache": str(tmp_path / "cache"), "dataset__workers": 0,
        "gpus": replicas, "train__batch_per_device": batch,
    }  # fmt: skip
    return make_spec(**{**changes, **keys})


def open_sources(folder, tmp_path, replica=0, replicas=1, batch=4, **keys):
    return datasets.open_sources(pictures_spec(folder, tmp_path, replicas, batch, **keys), replica, replicas)


def workers_alive():
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def equal(one, other):
    return all(
        np.array_equal(a.inputs, b.inputs) and np.array_equal(a.targets, b.targets) and a.samples == b.samples
        for a, b in zip(one, other, strict=True)
    )


def test_samples_do_not_depend_on_the_workers(folder, tmp_path):
    alone, validated = open_sources(folder, tmp_path, batch=5)
    ahead, validated_ahead = open_sources(folder, tmp_path, batch=5, dataset__workers=2)
    assert alone.steps_per_epoch == 3  # of 5, 5 and 2
    assert equal(take(alone, 8), take(ahead, 8))
    assert equal(list(validated.in_order()), list(validated_ahead.in_order()))
    assert not workers_alive()


def test_a_rank_has_a_worker_for_each_of_its_cores(folder, tmp_path):
    """Also where its place does not name them: ranks of other nodes take none of them."""
    for changes, workers in (
        ({"hardware__bind": "none"}, 3),
        ({"hardware__bind": "none", "strategy__processes": "one_for_all"}, 6),
        ({"hardware__this_machine": False, "hardware__hosts": ["a:1", "b:1"]}, 3),
    ):
        source, _ = open_sources(folder, tmp_path, 0, 2, dataset__workers=None, hardware__cpus_per_device=3, **changes)
        assert source.reader.pictures.workers == workers


def test_crops_differ_between_epochs_and_seeds_but_not_in_validation(folder, tmp_path):
    """A fixed permutation of one batch shows each picture once in every epoch."""
    source, validation = open_sources(folder, tmp_path, batch=12)
    other, same = open_sources(folder, tmp_path, batch=12, seed=1)
    central, _ = open_sources(folder, tmp_path, batch=12, dataset__augment=False)

    def sums(source):
        return [{int(picture.sum()) for picture in batch.inputs} for batch in take(source, 2)]

    first, second = sums(source)
    assert not first & second and not first & sums(other)[0]
    assert len(set(map(frozenset, sums(central)))) == 1
    assert equal(list(validation.in_order()), list(same.in_order()))


def test_the_first_samples_are_decoded_without_workers(folder, tmp_path, monkeypatch):
    central, _ = open_sources(folder, tmp_path, batch=3, dataset__augment=False)
    first = next(central.in_order())
    monkeypatch.delattr(picture_reader, "create_pool")
    samples = datasets.read_first_samples(pictures_spec(folder, tmp_path, dataset__workers=2), 3)
    assert equal([samples], [first]) and samples.inputs.shape == (3, SIDE, SIDE, 3)


def test_a_crop_is_a_part_of_the_picture(folder):
    """Area and aspect ratio are those of Inception's crops; the same (seed, epoch, row) has the same crop. A flipped
    picture is its mirror image."""
    rows = np.arange(2000)
    crops = images.draw_crops(7, 3, rows)
    assert np.array_equal(crops[5:9], images.draw_crops(7, 3, rows[5:9]))
    area, aspect = crops[:, 0] * crops[:, 1], crops[:, 0] / crops[:, 1]
    assert 0.08 <= area.min() < 0.1 and 0.98 < area.max() <= 1 and abs(area.mean() - 0.54) < 0.02
    assert 3 / 4 <= aspect.min() < 0.77 and 1.31 < aspect.max() <= 4 / 3 + 1e-9
    assert abs((crops[:, 4] < 0.5).mean() - 0.5) < 0.04
    for width, height in ((500, 375), (1, 1), (3, 700)):
        boxes = np.array([images.compute_box(crop, width, height) for crop in crops])
        assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] <= width).all() and (boxes[:, 3] <= height).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
    path = str(folder / "n0" / "0.JPEG")
    flipped, plain = (images.decode(path, SIDE, np.array([1.0, 1.0, 0.0, 0.0, half])) for half in (0.2, 0.7))
    assert np.array_equal(flipped[:, ::-1], plain)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_picture_is_named(folder, tmp_path, workers):
    copy = tmp_path / "copy"
    for file in folder.rglob("*.JPEG"):
        (copy / file.parent.name).mkdir(parents=True, exist_ok=True)
        data = file.read_bytes()
        (copy / file.parent.name / file.name).write_bytes(data[:600] if file.parent.name == "n1" else data)
    source, _ = open_sources(copy, tmp_path, dataset__workers=workers)
    with pytest.raises(InputError, match=rf"^{copy}/n1/\d\.JPEG is not a complete JPEG file \(.*\): repair or remove"):
        take(source, 3)
    assert not workers_alive()


def test_a_killed_worker_is_an_error_at_once(folder, tmp_path):
    source, _ = open_sources(folder, tmp_path, dataset__workers=2)
    batches = iter(source)
    next(batches)
    victim = workers_alive()[0]
    os.kill(victim.pid, signal.SIGKILL)
    begin_s = time.monotonic()
    with pytest.raises(InputError, match=r"decodes pictures \(dataset.workers=2\) was killed"):
        for _ in range(100):
            next(batches)
    assert time.monotonic() - begin_s < 30 and not workers_alive()


def test_mistakes_are_one_line(folder, tmp_path):
    for keys, message in (
        ({"dataset__path": "/missing"}, "cannot be read"),
        ({"batch": 13}, "has 12 pictures for training, fewer than one global batch of 13"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            open_sources(folder, tmp_path, **keys)
        assert "\n" not in str(caught.value)


POOL_SCRIPT = """
import os, sys, time
from pathlib import Path
from scalebench.workloads.datasets.picture_reader import create_pool

def work(_):
    Path(sys.argv[1], f"pid{os.getpid()}").touch()
    time.sleep(60)

if __name__ == "__main__":
    list(create_pool(2).map(work, range(100)))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(POOL_SCRIPT)
    parent = subprocess.Popen([sys.executable, script, tmp_path], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: len(list(tmp_path.glob("pid*"))) == 2)
        pids = [int(path.name[3:]) for path in tmp_path.glob("pid*")]
        parent.send_signal(how)
        if how == signal.SIGKILL:
            parent.communicate(timeout=60)
            wait_until(lambda: not find_running(pids), 5.0)
        else:
            time.sleep(0.5)
            assert find_running(pids)  # Ctrl-C of a terminal reaches them, too: the parent ends them
    finally:
        parent.kill()
        parent.communicate()
