"""Prefetching: order, errors, and no thread left behind."""

import gc
import threading
import time
from itertools import count, islice

import pytest

from scalebench.workloads.prefetch import prefetch


@pytest.fixture(autouse=True)
def no_thread_left():
    before = threading.active_count()
    yield
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 50])
def test_all_items_in_order(depth):
    assert list(prefetch(range(20), depth)) == list(range(20))
    assert list(prefetch([], depth)) == []


@pytest.mark.slow
def test_drawn_in_another_thread_up_to_depth_ahead():
    drawn = []
    reached = threading.Event()

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
def test_work_overlaps_with_the_consumer():
    def items():
        for item in range(5):
            time.sleep(0.04)
            yield item

    begin_s = time.perf_counter()
    for _ in prefetch(items()):
        time.sleep(0.04)
    assert time.perf_counter() - begin_s < 0.36  # 0.24 overlapped, 0.40 one after the other


@pytest.mark.slow
def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        raise KeyError("broken")

    ahead = prefetch(items())
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="broken"):
        next(ahead)
    assert list(ahead) == []


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("taken", [1, 5])
@pytest.mark.parametrize("wait_s", [0, 0.02])
def test_closing_early_ends_the_thread_at_once(depth, taken, wait_s):
    ahead = prefetch(count(), depth)
    assert list(islice(ahead, taken)) == list(range(taken))
    time.sleep(wait_s)  # the thread is now blocked, or not yet
    begin_s = time.perf_counter()
    ahead.close()
    assert time.perf_counter() - begin_s < 1
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.slow
def test_an_error_of_the_consumer_ends_the_thread():
    def consume():
        for item in prefetch(count()):
            if item == 3:
                raise RuntimeError("consumer")

    with pytest.raises(RuntimeError, match="consumer"):
        consume()


@pytest.mark.slow
def test_depth_is_checked_at_the_call():
    with pytest.raises(ValueError, match="depth=0"):
        prefetch([], 0)
