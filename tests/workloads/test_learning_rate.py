"""The learning rate of every update."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.workloads.learning_rate import LearningRateSchedule, list_step_limits
from tests.builders.runs import simulated_spec

PER_EPOCH = 10


def rates(updates=0, **changes):
    """Those of the first updates, the highest being 1."""
    made = LearningRateSchedule(TrainSpec(**changes), 1.0, PER_EPOCH)
    return [made.at_step(number) for number in range(updates)]


def test_without_a_schedule_all_are_the_highest():
    assert rates(5) == [1.0] * 5
    assert LearningRateSchedule(TrainSpec(), 1.0, PER_EPOCH).is_constant
    assert not LearningRateSchedule(TrainSpec(warmup_epochs=0.1), 1.0, PER_EPOCH).is_constant
    assert not LearningRateSchedule(TrainSpec(schedule="step", decay_epochs=[1.0]), 1.0, PER_EPOCH).is_constant


def test_warm_up_grows_linearly_and_ends_at_the_highest():
    assert rates(6, warmup_epochs=0.4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_linear_goes_down_to_nothing_at_the_end():
    found = rates(10, schedule="linear", stop=StopSpec(epochs=1.0))
    assert found == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert rates(13, schedule="linear", stop=StopSpec(steps=10))[10:] == [0.0] * 3, "never below"


def test_cosine_after_a_warm_up():
    """Loshchilov and Hutter's equation 5 by hand: (1 + cos(pi t / T)) / 2 with T = 8 updates after two of warm-up."""
    found = rates(10, schedule="cosine", warmup_epochs=0.2, stop=StopSpec(steps=10, epochs=7.0))
    assert found[:2] == pytest.approx([1 / 3, 2 / 3])
    assert found[2::2] == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_steps_fall_after_their_epochs():
    """A fraction of an epoch is the nearest step."""
    found = rates(40, schedule="step", decay_epochs=[1.24, 3.0], decay=0.5)
    assert found == [1.0] * 12 + [0.5] * 18 + [0.25] * 10


@given(
    st.floats(0.0, 3.0), st.sampled_from(["constant", "linear", "cosine", "step"]),
    st.integers(1, 100), st.integers(1, 30),
)  # fmt: skip
def test_it_is_never_above_the_highest_nor_below_nothing(warmup_epochs, schedule, steps, per_epoch):
    train = TrainSpec(schedule=schedule, warmup_epochs=warmup_epochs, decay_epochs=[1.0], stop=StopSpec(steps=steps))
    made = LearningRateSchedule(train, 0.5, per_epoch)
    found = [made.at_step(number) for number in range(steps)]
    assert all(0 < rate <= 0.5 for rate in found), "every update of the training has one"
    warm = round(warmup_epochs * per_epoch)
    assert found[:warm] == sorted(found[:warm]) and found[warm:] == sorted(found[warm:], reverse=True)


@pytest.mark.parametrize(
    ("stop", "ends"),
    [
        (StopSpec(), []),
        (StopSpec(seconds=1.0, target=0.1), []),
        (StopSpec(epochs=2.5), [25]),
        (StopSpec(epochs=0.01), [1]),
        (StopSpec(steps=7), [7]),
        (StopSpec(epochs=1.0, steps=7), [10, 7]),
    ],
)
def test_ends_that_are_counted_in_updates(stop, ends):
    assert list_step_limits(TrainSpec(stop=stop), PER_EPOCH) == ends


@pytest.mark.parametrize(("rule", "rate"), [("none", 1e-3), ("linear", 4e-3), ("sqrt", 2e-3)])
def test_the_highest_is_by_the_rule_for_the_global_batch(rule, rate):
    spec = simulated_spec(2, train=TrainSpec(10, learning_rate_rule=rule, base_batch=5))
    assert spec.learning_rate == pytest.approx(rate)
    assert LearningRateSchedule.from_spec(spec, PER_EPOCH).at_step(3) == spec.learning_rate
