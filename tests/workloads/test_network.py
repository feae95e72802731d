"""A network as data: what is refused (test_published_counts has the nodes); its initial weights; and the
learning rate of every update."""

import math
import zlib

import numpy as np
import pytest

from scalebench.core.errors import InputError
from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.workloads.learning_rate import LearningRateSchedule, list_step_limits
from scalebench.workloads.network import Network
from scalebench.workloads.weights import initial_weights
from tests.builders.runs import simulated_spec


def image(size=8, channels=3):
    return Network("net", (size, size, channels))


MISTAKES = {
    r"dense: flatten input of shape \(8, 8, 3\) first": lambda net, x: net.dense(x, "dense", 5),
    "add of input": lambda net, x: net.add(x, net.max_pool(x, 2, 2)),
    "concat of": lambda net, x: net.concat(x, net.max_pool(x, 2, 2)),
    "two nodes named conv": lambda net, x: [net.conv(x, "conv", 4, 3) for _ in range(2)],
    "padding full": lambda net, x: net.conv(x, "conv", 4, 3, padding="full"),
    r"window \(3,\) over spatial axes": lambda net, x: net.conv(x, "conv", 4, (3,)),
    r"more: flatten_1 of shape \(192,\) is not an input of numbers":
    lambda net, x: net.embedding(net.flatten(x), "more", 11, 6),
    r"other: 4 heads over \(8, 8, 3\)": lambda net, x: net.attention(x, x, x, "other", heads=4),
    "is not a sequence of vectors": lambda net, x: net.lstm(x, "lstm", 4),
}  # fmt: skip


def test_mistakes_of_a_programmer_and_of_a_user():
    for message, make in MISTAKES.items():
        with pytest.raises(ValueError, match=message):
            make(net := image(), net.input)
    with pytest.raises(InputError, match=r"^inputs of 2x2 are too small for net: conv slides a window of 3 over 2; "):
        (small := image(size=2)).conv(small.input, "conv", 4, 3, padding="valid")
    text = Network("net", (5, 6))
    with pytest.raises(ValueError, match="odd: 1 heads over"):
        text.attention(text.input, text.dense(text.input, "dense", 4), text.input, "odd", heads=1)


# Of an array named "kernel" and the seed 3: the root of its mean square, by its limit from the fans, and the digest.
# https://numpy.org/neps/nep-0019-rng-policy.html lets numpy change a stream; then the digests may change, too.
WEIGHTS = [
    ("he_uniform", (3, 5, 8, 32), math.sqrt(6 / 120) / math.sqrt(3), "ef849e4f"),
    ("glorot_uniform", (7, 16, 24), math.sqrt(6 / 280) / math.sqrt(3), "725486cc"),
    ("glorot_uniform", (300, 40), math.sqrt(6 / 340) / math.sqrt(3), "48cd525e"),
    ("normal:0.02", (60,), 0.02, "00b92795"),
    ("uniform:0.1", (4, 5), 0.1 / math.sqrt(3), "389d8bf0"),
    ("ones", (3,), 1.0, "dc7c4e94"),
    ("zeros", (3,), 0.0, "7bd5c66f"),
]


def test_weights_are_those_of_their_initializer_name_and_seed():
    for init, shape, deviation, digest in WEIGHTS:
        weights = initial_weights([("other", shape, init), ("kernel", shape, init)], seed=3)
        array = weights["kernel"]
        assert (list(weights), array.shape, array.dtype) == (["other", "kernel"], shape, np.float32)
        assert np.sqrt((array.astype(float) ** 2).mean()) == pytest.approx(deviation, rel=0.2), init
        assert f"{zlib.crc32(array.tobytes()):08x}" == digest
    for layers, message in (
        ([("a", (2, 2), "he_normal")], "unknown init he_normal"),
        ([("a", (2,), "he_uniform")], "no fan-in"),
        ([("a", (2,), "ones"), ("a", (3,), "ones")], "two layers have the same name"),
    ):
        with pytest.raises(ValueError, match=message):
            dict(initial_weights(layers, 0))


PER_EPOCH = 10


def rates(updates=0, **changes):
    """Those of the first updates, the highest being 1."""
    made = LearningRateSchedule(TrainSpec(**changes), 1.0, PER_EPOCH)
    return [made.at_step(number) for number in range(updates)]


def test_without_a_schedule_all_are_the_highest_after_a_linear_warm_up():
    assert rates(5) == [1.0] * 5
    assert LearningRateSchedule(TrainSpec(), 1.0, PER_EPOCH).is_constant
    assert not LearningRateSchedule(TrainSpec(warmup_epochs=0.1), 1.0, PER_EPOCH).is_constant
    assert not LearningRateSchedule(TrainSpec(schedule="step", decay_epochs=[1.0]), 1.0, PER_EPOCH).is_constant
    assert rates(6, warmup_epochs=0.4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_schedules_go_down_to_their_ends():
    """Linear to nothing and never below. Of cosine Loshchilov and Hutter's equation 5 by hand: (1 + cos(pi t / T)) / 2
    with T = 8 updates after two of warm-up. By steps after their epochs, where a fraction is the nearest step."""
    found = rates(10, schedule="linear", stop=StopSpec(epochs=1.0))
    assert found == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert rates(13, schedule="linear", stop=StopSpec(steps=10))[10:] == [0.0] * 3, "never below"
    found = rates(10, schedule="cosine", warmup_epochs=0.2, stop=StopSpec(steps=10, epochs=7.0))
    assert found[:2] == pytest.approx([1 / 3, 2 / 3])
    assert found[2::2] == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    found = rates(40, schedule="step", decay_epochs=[1.24, 3.0], decay=0.5)
    assert found == [1.0] * 12 + [0.5] * 18 + [0.25] * 10


def test_ends_that_are_counted_in_updates():
    for stop, ends in (
        (StopSpec(), []), (StopSpec(seconds=1.0, target=0.1), []), (StopSpec(epochs=2.5), [25]),
        (StopSpec(epochs=0.01), [1]), (StopSpec(steps=7), [7]), (StopSpec(epochs=1.0, steps=7), [10, 7]),
    ):  # fmt: skip
        assert list_step_limits(TrainSpec(stop=stop), PER_EPOCH) == ends


def test_the_highest_is_by_the_rule_for_the_global_batch():
    for rule, rate in (("none", 1e-3), ("linear", 4e-3), ("sqrt", 2e-3)):
        spec = simulated_spec(2, train=TrainSpec(10, learning_rate_rule=rule, base_batch=5))
        assert spec.learning_rate == pytest.approx(rate)
        assert LearningRateSchedule.from_spec(spec, PER_EPOCH).at_step(3) == spec.learning_rate
