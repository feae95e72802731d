"""Evaluations during a training do not change its later steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from scalebench.strategies.torch.memory import PeakMemory
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import make_images, run_training

IMAGES = make_images(70)
EVALUATED_STEPS = (1, 3, 4)  # after the last step of an epoch, and after consecutive steps


def images(first: int = 0, last: int = 50, batch: int = 20) -> Source:
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
def test_evaluations_do_not_change_the_training(strategy: Any, name: str, model: str, changes: dict[str, Any]) -> None:
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


def test_metrics_are_those_of_the_current_model(strategy: Any) -> None:
    adapter, other = (strategy("bare_torch", model="resnet20_cifar10", train__learning_rate=0.01) for _ in range(2))
    actual = run_training(adapter, images(), 3, evaluate_after=[2], validation=images(50, 70, 8)).metrics[2]
    for batch in islice(other.feed(images()), 2):
        other.step(batch)
    inputs, labels = (torch.from_numpy(array[50:]) for array in IMAGES)
    with torch.no_grad():
        outputs = other.model.eval()(inputs)
    assert actual["cross_entropy"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
    assert actual["accuracy"] == pytest.approx(float((outputs.argmax(1) == labels).float().mean()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "lightning_ddp_gloo"])
def test_evaluations_keep_random_numbers_and_modes(strategy: Any, name: str) -> None:
    adapter = strategy(name, model="cifar10_cnn")
    states: list[Any] = []
    plain = adapter.evaluate

    def evaluate(source: Source) -> dict[str, float]:
        before = torch.get_rng_state(), torch.is_grad_enabled()
        actual = plain(source)
        after = torch.get_rng_state(), torch.is_grad_enabled()
        states.append(torch.equal(before[0], after[0]) and before[1] == after[1])
        assert all(module.training for module in adapter.model.modules())
        return actual

    adapter.evaluate = evaluate
    run_training(adapter, images(), 2, evaluate_after=[1, 2], validation=images(50, 70))
    assert states == [True, True]


@pytest.mark.usefixtures("strategy")
def test_the_peak_excludes_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_evaluations_pause_the_peak(
    strategy: Any, source: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, within = strategy("bare_torch"), []
    monkeypatch.setattr(PeakMemory, "paused", lambda peak, device: within.append(device) or torch.no_grad())
    bare.evaluate(source())
    assert within == [torch.device("cpu")]
