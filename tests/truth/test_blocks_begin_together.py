"""Blocks of all ranks begin together, also after updates that set them apart."""

import pytest

from scalebench.measure.probes import InterleavedLoop, Variant
from scalebench.measure.timing import time_blocks
from scalebench.strategies.base import OPTIMIZER
from tests.truth.simulated_group import Draws, Simulated, Times, spec_of, white

pytestmark = pytest.mark.truth
OFF = Variant("off", sync=False)


class Noted(Simulated):
    """Notes how far apart the ranks are whenever the clock is read."""

    def clock(self):
        self.apart_s = [*getattr(self, "apart_s", []), max(self._now_s) - min(self._now_s)]
        return super().clock()


@pytest.fixture
def strategy():
    return Noted(spec_of(3), 0, Times(), Draws.of(Times(), white(0.0), 3, 1000, 0), [])


def test_of_actions_alone(strategy):
    time_blocks(strategy, lambda: strategy.partial_step(None, OPTIMIZER), 5, 4, strategy.clock)
    assert strategy.apart_s[0::2] == [0.0] * 4
    assert min(strategy.apart_s[1::2]) == pytest.approx(5 * Times().straggler_s), "they came apart in each"


def test_of_updates_that_take_turns(strategy):
    """One update is not timed, and may set them apart by as much."""
    loop = InterleavedLoop(strategy, strategy.feed(None), [OFF], 5, 4, strategy.clock)
    strategy.train(loop)
    assert strategy.apart_s[0::2] == pytest.approx([Times().straggler_s] * 4)
