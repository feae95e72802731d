"""Evaluations during a training do not change its later steps; the peak of memory, and the bytes of the state that a
strategy keeps from step to step."""

import weakref
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scalebench.strategies.deepspeed import DeepSpeedZero3, copy_without_values
from scalebench.strategies.torch import base
from scalebench.strategies.torch.base import PeakMemory, count_state_bytes
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.workloads.source import Source
from tests.strategies.builders import make_images, run_training
from tests.strategies.torch.conftest import user_model

IMAGES = make_images(70)
EVALUATED_STEPS = (1, 3, 4)  # after the last step of an epoch, and after consecutive steps


def images(first=0, last=50, batch=20):
    return Source(*IMAGES, first=first, last=last, global_batch=batch, seed=3, replica=0, replicas=1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cifar10_cnn", "resnet20_cifar10"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bare_torch", {}),
        ("ddp_gloo", {"strategy__options__broadcast_buffers": True}),
        ("lightning_ddp_gloo", {}),
        ("bare_torch", {"dataset__feed": "device"}),
        ("bare_torch", {"dataset__prefetch": "queue", "train__accumulate": 3}),
    ],
)
def test_evaluations_do_not_change_the_training(strategy, name, model, changes):
    """Dropout and batch normalization are the same to the last bit."""
    settings = {"model": model, "train__learning_rate": 0.01, "train__dropout": True, **changes}
    plain = strategy(name, **settings)
    torch.manual_seed(7)
    expected = run_training(plain, images(), 6)
    weights = plain.parameters()
    plain.close()  # one group for a process
    looking = strategy(name, **settings)
    torch.manual_seed(7)
    actual = run_training(looking, images(), 6, evaluate_after=EVALUATED_STEPS, validation=images(50, 70, 8))
    assert actual.sums == expected.sums
    assert sorted(actual.metrics) == list(EVALUATED_STEPS)
    assert len({metrics["cross_entropy"] for metrics in actual.metrics.values()}) == len(EVALUATED_STEPS)
    assert all(np.array_equal(array, looking.parameters()[key]) for key, array in weights.items())
    assert all(torch.equal(*pair) for pair in zip(plain.model.buffers(), looking.model.buffers(), strict=True))


def test_metrics_are_those_of_the_current_model(strategy):
    adapter, other = (strategy("bare_torch", model="resnet20_cifar10", train__learning_rate=0.01) for _ in range(2))
    actual = run_training(adapter, images(), 3, evaluate_after=[2], validation=images(50, 70, 8)).metrics[2]
    for batch in islice(other.feed(images()), 2):
        other.step(batch)
    inputs, labels = (torch.from_numpy(array[50:]) for array in IMAGES)
    with torch.no_grad():
        outputs = other.model.eval()(inputs)
    assert actual["cross_entropy"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
    assert actual["accuracy"] == pytest.approx(float((outputs.argmax(1) == labels).float().mean()))


@pytest.mark.usefixtures("strategy")
def test_the_peak_excludes_pauses(monkeypatch):
    """The GPU's allocator is replaced by a fake."""
    peak, device, observed = PeakMemory(), torch.device("cuda", 0), {"bytes": 100}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: observed["bytes"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: observed.update(bytes=40))
    assert peak.read_bytes(device) == 100
    with pytest.raises(RuntimeError), peak.paused(device):
        observed["bytes"] = 900
        raise RuntimeError
    assert peak.read_bytes(device) == 100
    observed["bytes"] = 120
    assert peak.read_bytes(device) == 120
    with peak.paused(torch.device("cpu")):
        assert peak.read_bytes(torch.device("cpu")) is None


def test_evaluations_pause_the_peak(strategy, source, monkeypatch):
    bare, within = strategy("bare_torch"), []
    monkeypatch.setattr(PeakMemory, "paused", lambda peak, device: within.append(device) or torch.no_grad())
    bare.evaluate(source())
    assert within == [torch.device("cpu")]


def test_zero3_evaluates_a_copy_that_shares_what_the_model_shares(strategy, source):
    """Without DeepSpeed, whose engine leaves the module as it is; two layers of it have the same weights."""
    bare = strategy("bare_torch", **user_model("Series"))
    zero3, empty = DeepSpeedZero3(bare.spec, 0), copy_without_values(bare.model, torch.device("meta"))
    assert {each.device.type for each in (*empty.parameters(), *empty.buffers())} == {"meta"}
    assert empty.module.again.weight is empty.module.square.weight
    zero3.__dict__.update({name: value for name, value in bare.__dict__.items() if name != "net"})
    zero3._empty_model, zero3.group = empty, SimpleNamespace(sum=lambda values: values)
    assert zero3.evaluate(source()) == bare.evaluate(source())


@pytest.mark.parametrize(("name", "optimizers"), [("bare_torch", 1), ("fsdp_gloo", 2), ("zero1", 2)])
def test_the_peak_begins_after_setup(strategy, name, optimizers, monkeypatch):
    """It begins once the optimizer of the complete weights is gone, which would hold them."""
    built, alive, build = [], [], base.optimizer.build_optimizer

    def remember(*arguments):
        built.append(weakref.ref(made := build(*arguments)))
        return made

    monkeypatch.setattr(base.optimizer, "build_optimizer", remember)
    monkeypatch.setattr(base, "reset_peak", lambda device: alive.append([each() is not None for each in built]))
    adapter = strategy(name)
    assert alive == [[False] * (optimizers - 1) + [True]] and adapter.net is not None


PARAMETERS = 153441  # of materials_cnn, in 8 tensors
BATCH = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
COUNTS = 4 * 8  # Adam's steps, of each tensor
# Adam keeps two moments of each weight, momentum one.
OF_OPTIMIZER = {"adam": 8 * PARAMETERS + COUNTS, "sgd": 0, "momentum": 4 * PARAMETERS}


@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "zero1", "fsdp_gloo"])
@pytest.mark.parametrize("optimizer", OF_OPTIMIZER)
def test_state_bytes_of_weights_gradients_and_optimizer(strategy, name, optimizer):
    """Adam keeps four times the weights, to the byte except for its step counts. One process has all shards."""
    adapter = strategy(name, train__optimizer=optimizer)
    assert adapter.state_bytes() == [4 * PARAMETERS]
    for _ in range(2):
        adapter.step(BATCH)
        assert adapter.state_bytes() == [8 * PARAMETERS + OF_OPTIMIZER[optimizer]]


def test_moving_statistics_are_part_of_the_state(strategy):
    adapter = strategy("bare_torch", model="resnet20_cifar10")
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in adapter.model.buffers())
    assert buffers > 0 and adapter.state_bytes() == [4 * adapter.num_params() + buffers]


def test_shared_tensors_count_once_and_tensors_of_other_devices_do_not_count():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    state = {0: {"moment": torch.zeros(5), "far": torch.zeros(7, device="meta"), "step": 3}}
    assert count_state_bytes(model, state, torch.device("cpu")) == 4 * (9 + 3 + 3 + 5)
    assert count_state_bytes(model, state, torch.device("meta")) == 4 * 7


def test_a_module_that_keeps_tensors_of_an_evaluation_can_be_trained_on(strategy, source):
    """Tensors made in inference_mode cannot be saved for the backward pass."""
    bare = strategy("bare_torch", **user_model("Caching"))
    bare.evaluate(source())
    run_training(bare, source(), 2)
    assert len(bare.model.module.factors) > 1, "the evaluation had batches of a size that the check had not"
