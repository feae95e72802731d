"""Synthetic samples, and trainings with a learning rate for each step and evaluations in between."""

import dataclasses
from itertools import islice

import numpy as np

from scalebench.core.spec import StopSpec
from scalebench.measure.timed_loop import TimedLoop, fixed_length_phase
from scalebench.workloads.learning_rate import LearningRateSchedule
from scalebench.workloads.network import Network
from tests.builders.runs import StepLosses


def make_features(count):
    """Return (inputs, targets) that a network can learn from: the targets are features of the inputs."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(count, 200, 3)).astype(np.float32)
    targets = np.stack([inputs[:, :100, 0].mean(1), np.abs(inputs[:, :, 1]).mean(1)], 1)
    return inputs, targets


def pairs_of_curves(size, seed):
    """Return samples of two curves each and their targets, as a user's function that makes a data set."""
    curves = np.random.default_rng(seed).normal(size=(2, size, 200, 3))
    return (curves[0], curves[1]), curves.mean((0, 2))[:, :2]


def make_images(count, classes=10, side=32):
    """Return square images with 3 channels and their labels, which determine the brightness."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 60, (count, side, side, 3)) + 13 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def random_arrays(net, scale=1.0):
    """Return all arrays of a network, biases and statistics too, variances above zero."""
    rng = np.random.default_rng(0)
    arrays = {a.name: rng.normal(scale=scale, size=a.shape).astype(np.float32) for a in net.arrays}
    return {k: np.abs(v) + 0.5 if k.endswith("variance") else v for k, v in arrays.items()}


def random_floats(shape, samples=2):
    return np.random.default_rng(1).normal(size=(samples, *shape)).astype(np.float32)


def residual_network():
    """Return a network with a little of everything, padded as TensorFlow would not pad it."""
    net = Network("net", (10, 10, 3))
    x = net.relu(net.batch_norm(net.conv(net.input, "conv1", 8, 3, 2, padding=1, bias=False), "bn1"))
    y = net.conv(net.zero_pad(x, 1), "conv2", 8, 3, 1, "valid", bias=False)
    y = net.max_pool(net.relu(net.add(net.batch_norm(y, "bn2"), x)), 3, 2, padding=1)
    y = net.concat(net.lrn(y, 2, 1.0, 0.1, 0.75), net.avg_pool(y, 3, 1, "same"), net.conv(y, "conv3", 4, 3))
    net.dense(net.flatten(y), "dense", 3)
    return net


def scheduled_rates(spec, steps, steps_per_epoch):
    """Return the learning rate of each step with a warm-up of one epoch and a cosine decay to 0."""
    train = dataclasses.replace(spec.config.train, schedule="cosine", warmup_epochs=1.0, stop=StopSpec(steps=steps))
    rates = LearningRateSchedule(train, spec.learning_rate, steps_per_epoch)
    return [rates.at_step(number) for number in range(steps)]


def step_weight(train, state, weight, gradient, rate):
    """Return the weight after a step by the optimizer's formula; `state` is kept between steps."""
    name = train.optimizer
    if name == "adamw":
        weight = weight * (1 - rate * train.weight_decay)
    else:
        gradient = gradient + train.weight_decay * weight
    if name == "sgd":
        return weight - rate * gradient
    if name in ("momentum", "nesterov"):
        state["v"] = train.momentum * state.get("v", 0) + gradient
        return weight - rate * (state["v"] if name == "momentum" else gradient + train.momentum * state["v"])
    if name == "rmsprop":
        state["s"] = 0.9 * state.get("s", 0) + 0.1 * gradient**2
        return weight - rate * gradient / (state["s"] ** 0.5 + 1e-7)
    state["t"] = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    state["s"] = 0.999 * state.get("s", 0) + 0.001 * gradient**2
    mean, square = state["m"] / (1 - 0.9 ** state["t"]), state["s"] / (1 - 0.999 ** state["t"])
    return weight - rate * mean / (square**0.5 + 1e-7)


def count_batches(batches, fetched):
    """Yield them, and note each one that is fetched."""
    for batch in batches:
        fetched.append(batch)
        yield batch


def train_blocks(strategy, source, blocks, steps, last=None):
    """Train some blocks and return (number of fetched batches, mean loss of each step, seconds of each block)."""
    fetched, losses, stage = [], StepLosses(), fixed_length_phase("some", blocks, steps)
    batches = count_batches(islice(strategy.feed(source), last), fetched)
    strategy.train(TimedLoop(strategy, batches, [stage], observer=losses))
    return len(fetched), losses.values, stage.series.seconds


class RecordedTraining:
    """A Loop of some steps that records them: `losses` has the mean loss per sample of each step on this process, and
    `metrics` the evaluations by the number of steps before them."""

    def __init__(self, strategy, batches, steps, rates=(), evaluate_after=(), validation=None):
        """`rates`: the learning rate of each step, by default the strategy's. `evaluate_after`: numbers of steps after
        which to evaluate on `validation`."""
        self._strategy, self._batches, self._steps = strategy, batches, steps
        self._rates, self._evaluate_after, self._validation = rates, evaluate_after, validation
        self.losses, self.sums, self.metrics = [], [], {}
        self._set_rate()

    def __iter__(self):
        for batch in self._batches:
            yield batch
            if len(self.losses) == self._steps:
                return

    def done(self, part):
        self.sums.append(float(part.loss_sum))
        self.losses.append(self.sums[-1] / part.samples)
        finished = len(self.losses)
        if finished in self._evaluate_after:
            self.metrics[finished] = self._strategy.evaluate(self._validation)
        if finished < self._steps:
            self._set_rate()
        return finished == self._steps

    def _set_rate(self):
        if self._rates:
            self._strategy.set_learning_rate(self._rates[len(self.losses)])


def run_training(strategy, source, steps, **settings):
    """Train some steps and return what was recorded; `settings` are those of RecordedTraining."""
    training = RecordedTraining(strategy, strategy.feed(source), steps, **settings)
    strategy.train(training)
    return training


def exchange_tensors(action, values):
    """Return the results by rank of a collective operation of torch.distributed, for what each rank sends."""
    import torch

    kind, rank = action.message.kind, action._rank
    sent = action._part if kind in ("all_gather", "gather") else action._full
    sent.copy_(torch.from_numpy(values(rank)))
    action()
    if kind in ("reduce", "gather") and rank != action.message.root:
        return {}
    outputs = {"reduce_scatter": action._part, "scatter": action._part, "all_to_all": action._output}
    return {rank: outputs.get(kind, action._full).cpu().numpy().copy()}
