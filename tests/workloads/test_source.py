"""Seeded batches: partition, order, shards; whatever the sizes. Prefetching: order, errors, and no thread left
behind."""

import gc
import threading
import time
from itertools import count, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.errors import InputError
from scalebench.workloads.source import Source, prefetch


def arrays(samples):
    """Each sample's input and target say which sample it is."""
    rows = np.arange(samples)
    return np.repeat(rows[:, None], 3, axis=1).astype(np.float32), rows


def source(samples=20, global_batch=6, replica=0, replicas=1, seed=0, **options):
    return Source(*arrays(samples), global_batch=global_batch, seed=seed, replica=replica, replicas=replicas, **options)


def group(samples, global_batch, replicas, **options):
    return [source(samples, global_batch, replica, replicas, **options) for replica in range(replicas)]


@st.composite
def sizes(draw):
    replicas = draw(st.integers(1, 6))
    return draw(st.integers(replicas, 80)), draw(st.integers(replicas, 30)), replicas


@given(sizes(), st.integers(0, 3))
def test_every_sample_once_per_epoch_and_no_part_empty(size, epoch):
    sources = group(*size)
    updates = sources[0].steps_per_epoch
    parts = [[one.batch_indices(epoch, update) for one in sources] for update in range(updates)]
    assert sorted(np.concatenate([index for row in parts for index in row])) == list(range(size[0]))
    for update, row in enumerate(parts):
        counts = [len(index) for index in row]
        assert min(counts) >= 1 and max(counts) - min(counts) <= 1
        assert {one.global_samples(update) for one in sources} == {sum(counts)}
        # All but the last are full; the last takes a remainder too small to share out.
        assert sum(counts) == size[1] or update == updates - 1
        assert sum(counts) < size[1] + size[2]
    for number, one in enumerate(sources):
        for update, batch in enumerate(one.epoch(epoch)):
            indices = parts[update][number]
            assert np.array_equal(batch.targets, indices) and np.array_equal(batch.inputs[:, 1], indices)
            assert batch.global_samples == one.global_samples(update) and batch.samples == len(indices)
        assert update == updates - 1


@given(sizes(), st.integers(0, 3))
def test_batches_do_not_depend_on_the_number_of_replicas(size, epoch):
    samples, global_batch, _ = size
    sources, alone = group(*size), source(samples, global_batch)
    for update in range(sources[0].steps_per_epoch):
        together = np.concatenate([one.batch_indices(epoch, update) for one in sources])
        single = alone.batch_indices(epoch, update)
        if len(together) != len(single):  # the remainder joined, as one replica never makes it do
            assert update == sources[0].steps_per_epoch - 1
            single = np.concatenate([single, alone.batch_indices(epoch, update + 1)])
        assert np.array_equal(together, single)


@pytest.mark.parametrize(("samples", "global_batch", "settings", "expected"), [
    (12, 6, {"replicas": 2}, [6, 6]),
    (14, 6, {"replicas": 2}, [6, 6, 2]),  # a remainder that is enough for all
    (13, 6, {"replicas": 2}, [6, 7]),  # one that is not
    (13, 6, {"replicas": 1}, [6, 6, 1]),
    (5, 6, {"replicas": 2}, [5]),  # less than one batch
    (2, 6, {"replicas": 2}, [2]),
    (20, 8, {"replicas": 2, "fewest": 2}, [8, 8, 4]),
    (19, 8, {"replicas": 2, "fewest": 2}, [8, 11]),  # fewer samples per device than wanted
    (3, 8, {"replicas": 2, "fewest": 2}, [3]),
])  # fmt: skip
def test_batch_sizes(samples, global_batch, settings, expected):
    assert [batch.global_samples for batch in source(samples, global_batch, **settings).epoch(0)] == expected


def test_epochs_and_seeds_shuffle_anew():
    """Iterating continues through the epochs."""
    one = source(100, 100)
    orders = [one.batch_indices(epoch, 0).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert orders[0] != list(range(100))
    assert source(100, 100, seed=1).batch_indices(0, 0).tolist() != orders[0]
    one = source(20, 6)
    seen = [batch.targets.tolist() for batch in islice(one, 9)]
    expected = [one.batch_indices(epoch, update).tolist() for epoch in range(3) for update in range(4)]
    assert seen == expected[:9]


@given(sizes())
def test_in_order_gives_each_sample_once(size):
    samples, global_batch, replicas = size
    for source_replicas in (1, replicas):
        batches = [list(one.in_order()) for one in group(samples, global_batch, source_replicas)]
        seen = [index for one in batches for batch in one for index in batch.targets.tolist()]
        assert sorted(seen) == list(range(samples))
        assert all(batch.samples for one in batches for batch in one)
    # Replica 0 has a sample of every batch, and so yields them all.
    full = [batch.global_samples for batch in source(*size[:2], 0, replicas).in_order()]
    even = [list(one.in_order(even=True)) for one in group(samples, global_batch, source_replicas)]
    assert {len(each) for each in even} == {-(-samples // global_batch)}
    assert sum(batch.samples for each in even for batch in each if batch.global_samples) == samples
    assert full == [min(global_batch, samples - start) for start in range(0, samples, global_batch)]


def test_two_ranges_share_the_arrays():
    """The fixed feed gives the same ones again."""
    train, validation = source(20, 6, last=15), source(20, 6, first=15)
    assert train.samples == 15 and validation.samples == 5
    assert sorted(row for batch in train.epoch(0) for row in batch.targets) == list(range(15))
    assert [row for batch in validation.in_order() for row in batch.targets] == list(range(15, 20))
    assert sorted(row for batch in validation.epoch(0) for row in batch.targets) == list(range(15, 20))
    one = source(20, 6, replica=1, replicas=2, feed="fixed")
    first, *others = islice(one, 9)
    assert first.targets.tolist() == source(20, 6, replica=1, replicas=2).batch_indices(0, 0).tolist()
    assert all(other.inputs is first.inputs and other.targets is first.targets for other in others)
    assert len(list(one.epoch(3))) == one.steps_per_epoch == 4


def test_the_host_feed_gives_new_plain_arrays(tmp_path):
    inputs, targets = arrays(20)
    np.save(tmp_path / "inputs.npy", inputs)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    one = Source(mapped, targets, global_batch=6, seed=0, replica=0, replicas=1)
    first, second = islice(one, 2)
    assert type(first.inputs) is np.ndarray and first.inputs.flags.writeable
    assert not np.shares_memory(first.inputs, second.inputs)
    first.inputs[:] = -1
    assert inputs.min() == 0 and mapped.min() == 0


def test_contradicting_arguments():
    for samples, others, message in (
        (3, {"global_batch": 8, "replicas": 4}, r"3 samples for 4 replicas.*dataset\.size"),
        (20, {"global_batch": 8, "replicas": 4, "first": 17}, "3 samples for 4 replicas"),
        (20, {"global_batch": 3, "replicas": 4}, r"batch of 3 samples.*4 replicas.*train\.global_batch"),
    ):
        with pytest.raises(InputError, match=message):
            source(samples, **others)
    for wrong in ({"replica": 2, "replicas": 2}, {"first": 9, "last": 8}, {"last": 21}):
        with pytest.raises(ValueError):
            source(**wrong)
    with pytest.raises(ValueError, match="4 inputs, 5 targets"):
        Source(arrays(4)[0], arrays(5)[1], global_batch=2, seed=0, replica=0, replicas=1)
    for update in (-1, 4):  # past the epoch
        with pytest.raises(IndexError):
            source(20, 6).batch_indices(0, update)


@pytest.fixture(autouse=True)
def no_thread_left():
    before = threading.active_count()
    yield
    if threading.active_count() != before:
        gc.collect()
    assert threading.active_count() == before


@pytest.mark.slow
def test_items_are_drawn_in_order_in_another_thread():
    """Up to `depth` ahead, while the consumer works."""
    for depth in (1, 2, 50):
        assert list(prefetch(range(20), depth)) == list(range(20))
        assert list(prefetch([], depth)) == []
    with pytest.raises(ValueError, match="depth=0"):
        prefetch([], 0)
    drawn, reached = [], threading.Event()

    def items():
        for item in count():
            drawn.append(threading.current_thread())
            if item == 3:  # one taken, two in the queue, one in the thread's hand
                reached.set()
            yield item

    ahead = prefetch(items(), depth=2)
    assert next(ahead) == 0
    assert reached.wait(5)
    time.sleep(0.05)
    assert len(drawn) == 4 and threading.main_thread() not in drawn
    ahead.close()


@pytest.mark.slow
def test_an_error_comes_after_the_items_before_it_and_ends_the_thread():
    def items():
        yield 1
        raise KeyError("broken")

    ahead = prefetch(items())
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="broken"):
        next(ahead)
    assert list(ahead) == []

    def consume():
        for item in prefetch(count()):
            if item == 3:
                raise RuntimeError("consumer")

    with pytest.raises(RuntimeError, match="consumer"):
        consume()
    ahead = prefetch(count())
    assert next(ahead) == 0
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
