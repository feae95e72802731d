"""One replica or several: steps, uneven shards, metrics, state, errors of the set-up; and every way of feeding yields
the same batches in the same order, split over the devices."""

import math
import threading
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.base import Unsupported
from scalebench.strategies.tensorflow import batches as tf_batches
from tests.strategies.tensorflow.builders import BARE, FIT, MIRRORED, SMALL_IMAGES
from tests.strategies.tensorflow.conftest import DEVICES

USERS = "tests.strategies.tensorflow.user_models"


@pytest.mark.parametrize("words", [BARE, ("strategy=central_storage_cpu", "gpus=2")])
def test_batches_of_all_sizes_share_one_trace(strategy, source, words):
    """Losses are lazy; the smaller last batch of an epoch is not kept."""
    one = strategy(*words)
    parts = [one.step(batch) for batch in islice(one.feed(source(global_batch=45)), 3)]
    assert [part.samples for part in parts] == [45, 45, 11] and one.last_batch.samples == 45
    assert all(isinstance(part.loss_sum, tf.Tensor) for part in parts)
    one.evaluate(source(global_batch=30))
    for function in (one.step_function(), one._forward):
        assert function.experimental_get_tracing_count() == 1


@pytest.mark.usefixtures("small_network")
def test_state_bytes_are_weights_statistics_and_optimizer_state(strategy):
    """And two single numbers of the optimizer's: how many updates there were (8 bytes), and the learning rate (4)."""
    for optimizer, times in (("adam", 3), ("momentum", 2), ("sgd", 1)):
        one = strategy(*BARE, *SMALL_IMAGES, f"train.optimizer={optimizer}")
        moving = sum(variable.numpy().size for variable in one.model.moving_statistics)
        assert moving > 0 and one.state_bytes() == [4 * (times * one.num_params() + moving) + 12]


def test_state_bytes_are_counted_on_their_device(strategy):
    """Each replica's own; of one copy, on the device that has it."""
    full, momentum = 2 * 4 * 153441 + 12, "train.optimizer=momentum"
    assert strategy(*MIRRORED, momentum).state_bytes() == [full, full]
    assert strategy("strategy=multi_gpu_model", "gpus=2", momentum).state_bytes() == [full, 0]
    assert sum(strategy("strategy=model_parallel_tensorflow", "gpus=2", momentum).state_bytes()) == full + 12


REFUSED = [
    (f"mirrored {FIT} train.compile=true", "loop=fit hands the step of all devices to XLA as one"),
    (  # which its plan does not know
        f"central_storage_device train.accumulate=2 model=custom model.keras={USERS}:normalised",
        "without batch normalisation, or dropout",
    ),
]


@pytest.mark.parametrize(("words", "reason"), REFUSED)
def test_a_strategy_refuses_what_its_plan_does(made, words, reason):
    one = made(*f"strategy={words}".split(), "gpus=2")
    with pytest.raises(Unsupported, match=reason):
        one.setup()


def test_wrong_parameter_count(made):
    one = made(*BARE)
    one.spec.config.model.params = 7
    with pytest.raises(RuntimeError, match="153441 parameters here and 7 in the config"):
        one.setup()


def test_each_variable_is_on_the_device_with_the_fewest_bytes_before_it(strategy):
    one = strategy("strategy=central_storage_spread", "gpus=2", "train.optimizer=momentum")
    loads = [0, 0]
    for variable in one.model.trained:
        least = loads.index(min(loads))
        assert variable.value.device.endswith(f"CPU:{least}"), variable.name
        loads[least] += 4 * math.prod(variable.shape)
    # Slots are beside their weights; the optimizer's two single numbers are on either device.
    single_numbers = [size - 2 * load for size, load in zip(one.state_bytes(), loads, strict=True)]
    assert min(single_numbers) >= 0 and sum(single_numbers) == 12


STEPS = 14  # over two ends of epochs; 101 samples in batches of 20 end with one of a single sample
WAYS = [("device", "none"), ("host", "queue"), ("host", "device")]


def first_batches(source, feed, ahead="none", devices=DEVICES):
    return list(islice(tf_batches.feed_batches(source, devices, feed, ahead), STEPS))


@pytest.mark.parametrize("replica", [0, 1, 2])
@pytest.mark.parametrize("ways", WAYS)
def test_same_batches_as_from_the_host(source, ways, replica):
    part = source(replica, 3, first=7)
    for batch, found in zip(first_batches(part, "host"), first_batches(part, *ways), strict=True):
        for one, other in zip(batch.parts, found.parts, strict=True):
            np.testing.assert_array_equal(one[0], other[0], strict=True)
            np.testing.assert_array_equal(one[1], other[1], strict=True)
        assert (batch.samples, float(batch.global_samples)) == (found.samples, float(found.global_samples))


@pytest.mark.parametrize("ways", [("host", "none"), ("fixed", "none"), *WAYS])
def test_each_part_is_on_its_device(source, pictures, ways):
    """Labels and bytes keep their types."""
    devices = DEVICES[::-1]  # the first one is where everything is by default
    for batch in first_batches(source(feed="fixed" if "fixed" in ways else "host"), *ways, devices=devices):
        for device, part in zip(devices, batch.parts, strict=True):
            assert [tensor.device.endswith(device.removeprefix("/")) for tensor in part] == [True, True]
    if "fixed" not in ways:
        ((images, labels),) = first_batches(pictures(), *ways, devices=DEVICES[:1])[0].parts
        assert (images.dtype, labels.dtype) == (tf.uint8, tf.int64)


def test_a_fixed_batch_and_the_training_set_are_copied_once(source, monkeypatch):
    """Then only the numbers of its rows go to the device."""
    found = first_batches(source(feed="fixed"), "fixed")
    assert all(batch is found[0] for batch in found)
    np.testing.assert_array_equal(found[0].parts[1][0], first_batches(source(), "host")[0].parts[1][0])
    part = source(1, 3)
    monkeypatch.setattr(part.reader, "read", lambda batches: pytest.fail("read again"))
    first_batches(part, "device")
    assert (part.replica, part.replicas) == (1, 3)


@pytest.mark.parametrize(("ahead", "in_thread"), [("queue", False), ("device", True)])
def test_prefetches_in_a_thread_that_closing_ends(source, monkeypatch, ahead, in_thread):
    """Only prefetching to the device copies there."""
    names, place = [], tf_batches.place_batch

    def noting(*args):
        names.append(threading.current_thread().name)
        return place(*args)

    monkeypatch.setattr(tf_batches, "place_batch", noting)
    batches = tf_batches.feed_batches(source(), DEVICES, "host", ahead)
    list(islice(batches, 3))
    assert any(thread.name.startswith("prefetch") for thread in threading.enumerate())
    batches.close()
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())
    assert {name.startswith("prefetch") for name in names} == {in_thread}
