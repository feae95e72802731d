"""Which samples the process that calls a user's function (here called in this process) accepts, and which problems it
reports."""

import errno
import re
import sys

import numpy as np
import pytest

from scalebench.core.errors import InputError, PluginError
from scalebench.core.json_files import read_record
from scalebench.workloads import records
from scalebench.workloads.datasets import cache, sample_writer, user_function
from scalebench.workloads.datasets.sample_writer import UnusableSamples
from scalebench.workloads.datasets.user_function import FunctionCall

SMALL_CODE = """\
import sys
import numpy as np
from scalebench.core.errors import InputError


def build(size, seed, body="", noise=0.0):
    exec(body)
    inputs = np.full((size, 3), seed + noise)
    return inputs, inputs


number = 3
"""
FLOATS = np.linspace(0, 1, 24).reshape(6, 4)


@pytest.fixture(autouse=True)
def user_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "made_here.py").write_text(SMALL_CODE)
    yield
    for name in ("made_here", "lengths"):
        sys.modules.pop(name, None)


def respond(folder, reference="made_here:build", size=5, **options):
    call = FunctionCall(reference, f"dataset.builder={reference}", size, 7, options)
    user_function.make_samples(call, folder)
    return read_record(folder / sample_writer.READING_FILE, sample_writer.Reading)


PROBLEMS = {
    "exits": ({"body": "sys.exit(3)"}, "fails: SystemExit: 3"),
    "memory": ({"body": "raise MemoryError"}, "ran out of memory: lower dataset.size"),
    "options": ({"nose": 1}, "fails: TypeError: build() got an unexpected keyword argument"),
    "unusable": ({"noise": float("nan")}, "returns NaN or an infinite value in inputs, first at sample 0"),
    "no function": ({"reference": "made_here:number"}, "is not a function"),
    "missing": ({"reference": "made_here:biuld"}, "cannot be loaded"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems_are_one_line(tmp_path, case):
    arguments, line = PROBLEMS[case]
    reference = re.escape(arguments.get("reference", "made_here:build"))
    with pytest.raises(PluginError, match=f"^dataset.builder={reference} {re.escape(line)}[^\n]*$") as caught:
        respond(tmp_path, **arguments)
    assert ("Traceback" in caught.value.log) == (case != "no function")


def test_input_errors_and_failed_writes_are_not_the_functions_fault(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"^noise should be positive$"):
        respond(tmp_path, body="raise InputError('noise should be positive')")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "create_array", full)
    with pytest.raises(OSError) as caught:
        respond(tmp_path)
    assert caught.value.errno == errno.ENOSPC


def write(inputs, targets, folder):
    sample_writer.write_samples((inputs, targets), folder, 10**9)
    return cache.open_arrays(folder)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8"])
def test_floats_become_float32(tmp_path, dtype):
    inputs, targets = write(FLOATS.astype(dtype), FLOATS[:, 1].astype(dtype), tmp_path)
    assert inputs.dtype == targets.dtype == np.float32
    assert np.array_equal(inputs, FLOATS.astype(dtype).astype(np.float32))
    assert targets.shape == (6, 1) and np.array_equal(targets, inputs[:, 1:2])


def test_integer_targets_are_class_numbers_and_pictures_stay_bytes(tmp_path, monkeypatch):
    """Also of arrays larger than a block, and of memory maps."""
    pictures = np.arange(6 * 2 * 2 * 3, dtype=np.uint8).reshape(6, 2, 2, 3)
    for dtype in ("int64", "int8", "uint16", "bool"):
        inputs, targets = write(pictures, np.array([0, 1, 1, 0, 1, 0]).astype(dtype), tmp_path)
        assert inputs.dtype == np.uint8 and np.array_equal(inputs, pictures)
        assert targets.dtype == np.int64 and targets.tolist() == [0, 1, 1, 0, 1, 0]
    monkeypatch.setattr(sample_writer, "BLOCK_BYTES", 40)
    np.save(tmp_path / "mapped.npy", FLOATS)
    inputs, _ = write(np.load(tmp_path / "mapped.npy", mmap_mode="r"), FLOATS, tmp_path)
    assert np.array_equal(inputs, FLOATS.astype(np.float32))
    broken = FLOATS.copy()
    broken[4, 2] = np.nan
    with pytest.raises(UnusableSamples, match="first at sample 4: "):
        write(broken, FLOATS, tmp_path)


class Tensor:
    """Stands for an array of another package."""


class Table:
    """Stands for a Dataset of torch."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, row):
        return self.samples[row]


TOKENS = np.arange(24).reshape(6, 4)
RECORDS = {
    "tokens": ((TOKENS, FLOATS), "f0 int64 (4,)", None),
    "a dict": (({"ids": TOKENS, "mask": TOKENS > 3}, FLOATS), "ids int64 (4,), mask bool (4,)", None),
    "its targets": ({"ids": TOKENS.astype(">i4"), "labels": FLOATS}, "ids int32 (4,), labels float32 (4,)", ""),
    "a tuple": (((TOKENS, FLOATS), FLOATS), "f0 int64 (4,), f1 float32 (4,)", None),
    "several targets": ((FLOATS, (FLOATS, TOKENS)), "", "f0 float32 (4,), f1 int64 (4,)"),
    "a table of pairs": (Table([(FLOATS[row], int(TOKENS[row, 0])) for row in range(6)]), "f0 float32 (4,)", None),
    "a table of dicts": (Table([{"ids": row} for row in TOKENS]), "ids int64 (4,)", ""),
}  # what is returned -> fields of its inputs, and of its targets (None: one array)


@pytest.mark.parametrize("case", RECORDS)
def test_several_arrays_of_a_sample_and_integers_are_kept_as_records(tmp_path, case, monkeypatch):
    monkeypatch.setattr(sample_writer, "BLOCK_BYTES", 100)
    result, input_fields, target_fields = RECORDS[case]
    sample_writer.write_samples(result, tmp_path, 10**9)
    facts = user_function.read_facts.__wrapped__(tmp_path)
    inputs, targets = cache.open_arrays(tmp_path)
    assert (facts.fields or "", facts.samples) == (input_fields, 6)
    assert facts.needs_loss == (target_fields is not None)
    if target_fields is not None:
        assert records.describe_fields(targets.dtype) == (target_fields or "no_targets uint8 ()")
    kept = records.list_fields(records.split_fields(inputs, lambda array: array))
    arrays = [FLOATS] if case in ("several targets", "a table of pairs") else [TOKENS]
    assert np.array_equal(kept[0], arrays[0].astype(kept[0].dtype))


UNUSABLE = {
    "None": (None, r"^None: it should return \(inputs, targets\), a dict of arrays or a Dataset$"),
    "an array": (FLOATS, r"^a numpy ndarray: it should"),
    "three": ((FLOATS, FLOATS, FLOATS), r"^3 values: it should"),
    "lists": ((FLOATS.tolist(), FLOATS), r"^a list as inputs: it should be a numpy array$"),
    "tensors": ((FLOATS, Tensor()), r"^a tests Tensor as targets: it should be a numpy array$"),
    "one axis": ((FLOATS[0], FLOATS[0]), r"^inputs of shape \(4,\): they should be \(n, \.\.\.\)"),
    "lengths": ((FLOATS, FLOATS[1:]), r"^inputs of shape \(6, 4\) and targets of shape \(5, 4\): they should"),
    "no samples": ((FLOATS[:0], FLOATS[:0]), r"^no samples: "),
    "strings": ((FLOATS, np.array(["a"] * 6)), r"^targets of <U1: cast it to float32, or to integers"),
    "strings in a dict": ({"ids": FLOATS, "text": np.array(["a"] * 6)}, r"^'text' of <U1 in inputs: cast it"),
    "lengths in a dict": ({"ids": FLOATS, "mask": FLOATS[1:]},
     r"^'ids' of shape \(6, 4\) and 'mask' of shape \(5, 4\): they should have the same number of samples;"),
    "NaN in a dict": ({"ids": np.where(FLOATS > 0.9, np.nan, FLOATS)}, r"^NaN .* in 'ids', first at sample 5"),
    "no targets of an array": ((FLOATS, None), r"^None as targets: it should be a numpy array$"),
    "an empty table": (Table([]), r"^a Dataset without samples$"),
    "a table of other shapes": (Table([{"ids": FLOATS[0]}, {"ids": FLOATS[0, 1:]}]),
     r"^a Dataset whose sample 1 has \(3,\) of 'ids', and sample 0 \(4,\): pad or cut them to one shape$"),
    "a table of other fields": (Table([{"ids": FLOATS[0]}, {"mask": FLOATS[0]}]), r"sample 1 has no 'ids', "),
    "infinite": ((np.where(FLOATS > 0.9, np.inf, FLOATS), FLOATS), r"infinite value in inputs, first at sample 5"),
    "too large": ((FLOATS * 1e300, FLOATS), r"NaN or an infinite value in inputs, first at sample 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNUSABLE)
def test_results_that_cannot_be_trained_on(tmp_path, case):
    result, message = UNUSABLE[case]
    with pytest.raises(UnusableSamples, match=message):
        sample_writer.write_samples(result, tmp_path, 10**9)


@pytest.mark.parametrize(("targets", "unusable"), [
    (np.arange(6) - 2, "the negative class -2 in targets, first at sample 0"),
    (np.where(FLOATS > 0.9, -np.inf, FLOATS), "NaN or an infinite value in targets, first at sample 5"),
    ({"y": np.where(FLOATS > 0.9, np.nan, FLOATS)}, "NaN or an infinite value in 'y', first at sample 5"),
    (FLOATS, None),
])  # fmt: skip
def test_targets_for_a_loss_of_the_user_alone_are_kept(tmp_path, targets, unusable):
    sample_writer.write_samples((FLOATS, targets), tmp_path, 6)
    assert user_function.read_facts.__wrapped__(tmp_path).reading.unusable_targets == unusable
    written = cache.open_arrays(tmp_path)[1]
    as_dict = isinstance(targets, dict)
    np.testing.assert_allclose(written["y"] if as_dict else written, targets["y"] if as_dict else targets)


LENGTHS = """
import numpy as np
ONE = np.float32([1, 2]), np.float32([3])

class Wish:
    def __len__(self): return {length}
    def __getitem__(self, row): return ONE

class Broken(Wish):
    def __getitem__(self, row):
        if row < 5: return ONE
        raise OSError(9, "Bad file descriptor")

class Endless:
    def __getitem__(self, row): return ONE

class IterableDataset:  # as torch's
    def __getitem__(self, row): raise NotImplementedError
    def __iter__(self): return (ONE for _ in range({length}))

class Counted(IterableDataset):
    def __len__(self): return {length}

def build(size, seed, kind):
    return (np.zeros(({length}, 2)), np.zeros({length})) if kind == "arrays" else globals()[kind]()
"""


@pytest.mark.parametrize(("kind", "length", "count"), [
    ("Wish", 10**9, 100), ("Wish", 10**30, 100), ("Wish", 40, 40), ("Endless", 0, 100), ("Counted", 10**9, 100),
    ("Counted", 40, 40), ("IterableDataset", 10**9, 100), ("IterableDataset", 40, 40), ("arrays", 500, 100),
    ("arrays", 40, 40), ("Broken", 10, None),
])  # fmt: skip
def test_no_more_samples_are_taken_than_were_requested(tmp_path, kind, length, count):
    """A file that a data set cannot read is not blamed on the cache."""
    (tmp_path / "lengths.py").write_text(LENGTHS.replace("{length}", str(length)))
    if count is None:
        with pytest.raises(PluginError, match="Bad file descriptor"):
            respond(tmp_path, "lengths:build", 100, kind=kind)
        return
    is_known = length < sys.maxsize and kind in ("Wish", "Counted", "arrays")
    assert respond(tmp_path, "lengths:build", 100, kind=kind).available == (length if is_known else None)
    assert len(cache.open_arrays(tmp_path)[0]) == count
