"""Batches of the Python archive: read as Python 2 wrote them, and nothing that is in them is ever run."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.workloads.datasets.cifar10 import parse_pickle
from tests.workloads.cifar10_files import number, python_batch, string

PIXELS = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6)
LABELS = [3, 9, 0, 255]


def batch(pixels=PIXELS, labels=LABELS, **options) -> bytes:
    return python_batch(pixels, labels, **options)


def test_the_batch_is_a_pickle_of_python_2():
    """The outside check of the test's own writer: pickle itself reads it."""
    loaded = pickle.loads(batch(), encoding="bytes")
    assert np.array_equal(loaded[b"data"], PIXELS) and loaded[b"labels"] == LABELS


@pytest.mark.parametrize("fortran", [False, True])
def test_images_and_labels(fortran):
    pixels, labels = parse_pickle(batch(fortran=fortran), 4, 6)
    assert pixels.dtype == labels.dtype == np.uint8
    assert np.array_equal(pixels, PIXELS) and labels.tolist() == LABELS


class Call:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


CALLS = {
    "system": Call(os.system, "touch ran"),
    "eval": Call(eval, "open('ran', 'w')"),
    "getattr": Call(getattr, "", "join"),
    "memmap": Call(np.memmap, "ran", np.uint8, "w+", 0, (1,)),
}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_called(tmp_path, name, protocol):
    with pytest.raises(ValueError, match="it would call"):
        parse_pickle(pickle.dumps({b"data": CALLS[name], b"labels": []}, protocol), 4, 6)
    assert not (tmp_path / "ran").exists()


def test_the_names_that_are_known_stand_for_nothing_of_numpy():
    """numpy.ndarray itself could be told to look at foreign memory, or to take all there is."""
    huge = b"\x80\x02}(" + string(b"labels") + b"]" + string(b"data")
    huge += b"cnumpy\nndarray\n(" + number(2**30) + number(2**30) + b"t\x85Ru."
    with pytest.raises(ValueError, match="data that are no array"):
        parse_pickle(huge, 4, 6)


BAD = {
    "list": (pickle.dumps([1]), "without data and labels"),
    "other keys": (pickle.dumps({b"data": 1}), "without data and labels"),
    "text": (pickle.dumps({b"data": b"x" * 24, b"labels": LABELS}), "no array"),
    "rows": (batch(PIXELS[:3]), r"shape \(3, 6\)"),
    "dtype": (batch(dtype=b"u2"), "expected bytes"),
    "fewer labels": (batch(labels=LABELS[:3]), "no list of 4"),
    "labels": (batch(labels=[1, 2, 3, 256]), "no class numbers"),
    "negative": (batch(labels=[1, 2, 3, -1]), "no class numbers"),
    "cut array": (batch().replace(string(PIXELS.tobytes()), string(PIXELS.tobytes()[:-1])), "cut short"),
}


@pytest.mark.parametrize("case", BAD)
def test_another_layout(case):
    content, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        parse_pickle(content, 4, 6)


def test_a_garbled_index_takes_no_memory():
    with pytest.raises(ValueError, match="without data"):
        parse_pickle(b"\x80\x02}r\xff\xff\xff\xff.", 4, 6)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_raises_or_changes_values_only(data):
    whole = bytearray(batch())
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
        whole[position] = data.draw(st.integers(0, 255))
    try:
        pixels, labels = parse_pickle(bytes(whole[: data.draw(st.integers(len(whole) // 2, len(whole)))]), 4, 6)
    except Exception:
        return
    assert pixels.shape == (4, 6) and labels.shape == (4,)
