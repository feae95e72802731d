"""Evaluations in the midst of a training: what the training does next is as if they had not been."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from scalebench.strategies.torch.memory import Peak
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import pictures, taught

IMAGES = pictures(70)
LOOKS = (1, 3, 4)  # after the last update of an epoch, and twice in a row


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
def test_changes_nothing(strategy: Any, name: str, model: str, changes: dict[str, Any]) -> None:
    """Of dropout and of batch normalisation, to the last bit; and each finds what a model of those weights gives."""
    settings = {"model": model, "train__learning_rate": 0.01, "train__dropout": True, **changes}
    plain = strategy(name, **settings)
    torch.manual_seed(7)
    wanted = taught(plain, images(), 6)
    weights = plain.parameters()
    plain.close()  # one group for a process
    looking = strategy(name, **settings)
    torch.manual_seed(7)
    found = taught(looking, images(), 6, looks=LOOKS, validation=images(50, 70, 8))
    assert found.sums == wanted.sums
    assert sorted(found.found) == list(LOOKS)
    assert len({metrics["cross_entropy"] for metrics in found.found.values()}) == len(LOOKS)
    assert all(np.array_equal(array, looking.parameters()[key]) for key, array in weights.items())
    assert all(torch.equal(*pair) for pair in zip(plain.model.buffers(), looking.model.buffers(), strict=True))


def test_finds_what_the_model_gives_by_then(strategy: Any) -> None:
    one, other = (strategy("bare_torch", model="resnet20_cifar10", train__learning_rate=0.01) for _ in range(2))
    found = taught(one, images(), 3, looks=[2], validation=images(50, 70, 8)).found[2]
    for batch in islice(other.feed(images()), 2):
        other.step(batch)
    inputs, labels = (torch.from_numpy(array[50:]) for array in IMAGES)
    with torch.no_grad():
        outputs = other.model.eval()(inputs)
    assert found["cross_entropy"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((outputs.argmax(1) == labels).float().mean()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "lightning_ddp_gloo"])
def test_leaves_random_numbers_and_modes_alone(strategy: Any, name: str) -> None:
    one = strategy(name, model="cifar10_cnn")
    states: list[Any] = []
    plain = one.evaluate

    def evaluate(source: Source) -> dict[str, float]:
        before = torch.get_rng_state(), torch.is_grad_enabled()
        found = plain(source)
        after = torch.get_rng_state(), torch.is_grad_enabled()
        states.append(torch.equal(before[0], after[0]) and before[1] == after[1])
        assert all(module.training for module in one.model.modules())
        return found

    one.evaluate = evaluate
    taught(one, images(), 2, looks=[1, 2], validation=images(50, 70))
    assert states == [True, True]


@pytest.mark.usefixtures("strategy")
def test_memory_of_evaluations_is_not_in_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the GPU's allocator."""
    peak, device, seen = Peak(), torch.device("cuda", 0), {"bytes": 100}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: seen["bytes"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: seen.update(bytes=40))
    assert peak.of(device) == 100
    with pytest.raises(RuntimeError), peak.paused(device):
        seen["bytes"] = 900
        raise RuntimeError
    assert peak.of(device) == 100
    seen["bytes"] = 120
    assert peak.of(device) == 120
    with peak.paused(torch.device("cpu")):
        assert peak.of(torch.device("cpu")) is None


def test_evaluations_are_out_of_the_peak(
    strategy: Any, source: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, within = strategy("bare_torch"), []
    monkeypatch.setattr(Peak, "paused", lambda peak, device: within.append(device) or torch.no_grad())
    bare.evaluate(source())
    assert within == [torch.device("cpu")]
