"""Keras' fit under scalebench's loop: it trains on each batch once, ends when the loop is over, and raises errors."""

import threading
import time
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf
from keras.src import backend
from keras.src.utils import python_utils

from scalebench.measure.timed_loop import LoopPhase, TimedLoop, fixed_length_phase
from scalebench.strategies.tensorflow.keras_fit import BatchPipeline
from scalebench.workloads.source import Batch
from tests.strategies.builders import count_batches, train_blocks
from tests.strategies.tensorflow.builders import BARE, FIT, MIRRORED

SPECS = (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec((None,), tf.float32))


def batch(number, samples=3):
    return Batch(np.full((samples, 2), number, np.float32), np.full(samples, number, np.float32), 2 * samples)


def test_the_pipeline_yields_each_batch_once():
    """In order, with weights that make the sum of losses the mean over the global batch. Fit under a strategy inspects
    it first, and then begins again; what it saw there is drawn a second time."""
    noted, batches = [], [batch(number, 3 + number) for number in range(4)]
    pipeline = BatchPipeline(batches, noted.append, probe_samples=2)
    dataset = pipeline.dataset(SPECS, 0)
    assert [x.tolist() for x, _, _ in dataset.as_numpy_iterator()] == [[[0, 0], [0, 0]]]
    assert noted == []
    found = list(dataset.as_numpy_iterator())
    assert [(len(x), x[0, 0], y[0]) for x, y, _ in found] == [(3 + n, n, n) for n in range(4)]
    for (_, _, weights), one in zip(found, batches, strict=True):
        np.testing.assert_allclose(weights, np.full(one.samples, 1 / one.global_samples))
    assert noted == batches
    assert pipeline.sizes == [3, 4, 5, 6]


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_pipeline_reads_as_many_batches_ahead_as_configured(ahead):
    drawn = []
    batches = count_batches((batch(number) for number in range(100)), drawn)
    iterator = iter(BatchPipeline(batches, lambda one: None, probe_samples=0).dataset(SPECS, ahead))
    list(islice(iterator, 3))
    time.sleep(0.3)
    assert 3 + ahead <= len(drawn) <= 4 + ahead


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_pipeline_reads_nothing_after_stop(ahead):
    """A batch that is being drawn is waited for: the loop's clock is not to be touched behind its back."""
    drawn, drawing, may_go_on = [], threading.Event(), threading.Event()

    def batches():
        for number in range(100):
            if number == 3:
                drawing.set()
                may_go_on.wait(10)
            drawn.append(number)
            yield batch(number)

    pipeline = BatchPipeline(batches(), lambda one: None, probe_samples=0)
    iterator = iter(pipeline.dataset(SPECS, ahead))
    reader = threading.Thread(target=lambda: list(islice(iterator, 4)))
    reader.start()
    assert drawing.wait(10)
    stopping = threading.Thread(target=pipeline.stop)
    stopping.start()
    stopping.join(0.2)
    assert stopping.is_alive()
    may_go_on.set()
    stopping.join(10)
    reader.join(10)
    assert not stopping.is_alive() and not reader.is_alive()
    time.sleep(0.2)  # in which it could draw more
    assert drawn == [0, 1, 2, 3]


@pytest.mark.gpu
def test_fit_waits_for_no_result_between_steps(strategy, source, monkeypatch):
    """In the thread that trains, which would wait for a GPU with every step, unless this Keras lets everybody do so."""
    monkeypatch.setattr(backend, "IS_THREAD_SAFE", True)
    parts = []
    fetching = []
    fetch = python_utils.pythonify_logs

    def note_thread(logs):
        if logs and len(parts) < 3:
            fetching.append(threading.current_thread())
        return fetch(logs)

    class ThreeSteps:
        def __iter__(self):
            yield from fit.feed(source())

        def done(self, part):
            parts.append(part)
            return len(parts) == 3

    monkeypatch.setattr(python_utils, "pythonify_logs", note_thread)
    fit = strategy(*BARE, FIT)
    fit.train(ThreeSteps())
    assert len(parts) == 3 and all(part is not None and tf.is_tensor(part.loss_sum) for part in parts)
    assert threading.current_thread() not in fetching


@pytest.mark.parametrize("words", [
    BARE,
    pytest.param(MIRRORED, marks=pytest.mark.slow),
    pytest.param((*BARE, "dataset.prefetch=queue"), marks=pytest.mark.slow),
])  # fmt: skip
def test_same_losses_as_the_plain_loop(strategy, source, words):
    """Over the end of an epoch, and over the end of a training; each batch is drawn once, but for those ahead."""
    fit, plain = strategy(*words, FIT), strategy(*BARE)
    batches = {"first": 8, "global_batch": 31}  # of 93 samples
    for blocks in (3, 1):
        (drawn, losses, _), (_, wanted, _) = (train_blocks(one, source(**batches), blocks, 2) for one in (fit, plain))
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)
        ahead = drawn - 2 * blocks
        assert 0 <= ahead <= (1 if words == BARE else 5)  # fit under a strategy always has some ready


def test_batches_that_run_out_end_the_training(strategy, source):
    """Batches that end before the stage does end the training, once."""
    with pytest.warns(UserWarning, match="ran out of data"):
        drawn, _, seconds = train_blocks(strategy(*BARE, FIT), source(), 1, 100, last=3)
    assert (drawn, seconds) == (3, [])


@pytest.mark.parametrize("after", [0, 2])
def test_an_error_in_the_source_or_in_the_loop_is_raised(strategy, source, after):
    def batches(good):
        yield from islice(good, after)
        raise ValueError("a file that is cut")

    def decide(series):
        raise RuntimeError("failed as configured")

    fit = strategy(*BARE, FIT)
    with pytest.raises(Exception, match="a file that is cut"):
        fit.train(TimedLoop(fit, batches(iter(fit.feed(source()))), [fixed_length_phase("some", 1, 100)]))
    stage = LoopPhase("some", lambda before: 1, decide)
    with pytest.raises(RuntimeError, match="failed as configured"):
        fit.train(TimedLoop(fit, fit.feed(source()), [stage]))
