"""One rank, bare: updates, weights of uneven shards, metrics, and what goes wrong at set-up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from scalebench.core.errors import InputError
from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER, NotMeasured, Unsupported
from scalebench.strategies.torch import batches, optimizer
from scalebench.strategies.torch.base import choose_device
from scalebench.workloads import networks
from scalebench.workloads.source import Source
from scalebench.workloads.weights import initial_weights


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_loss_decreases(strategy: Any, source: Callable[..., Source], optimizer: str) -> None:
    rate = 1e-3 if optimizer == "adam" else 0.02
    bare = strategy("bare_torch", train__optimizer=optimizer, train__learning_rate=rate)
    losses = [part.loss_sum / part.samples for part in map(bare.step, islice(bare.feed(source()), 60))]
    assert np.mean([float(loss) for loss in losses[-12:]]) < 0.5 * float(losses[0])


def test_starts_from_the_seeds_weights(strategy: Any) -> None:
    bare = strategy("bare_torch", seed=5)
    arrays = networks.build_network(bare.spec.config.model).arrays
    for name, array in initial_weights(((a.name, a.shape, a.init) for a in arrays), 5).items():
        np.testing.assert_array_equal(bare.parameters()[name], array)
    assert bare.num_params() == 153441


def test_loss_is_reported_as_a_lazy_sum(strategy: Any, source: Callable[..., Source]) -> None:
    bare = strategy("bare_torch")
    batch = next(iter(bare.feed(source())))
    with torch.no_grad():
        expected = (bare.model(batch.inputs) - batch.targets).square().mean(1).sum()
    part = bare.step(batch)
    assert isinstance(part.loss_sum, torch.Tensor)
    assert not part.loss_sum.requires_grad
    assert (part.samples, float(part.loss_sum)) == (20, pytest.approx(float(expected), rel=1e-6))


def test_weighted_shards_average_to_the_whole_batch(strategy: Any, source: Callable[..., Source]) -> None:
    """Three replicas of 7, 7 and 6 samples; plain averaging would be off by far more."""
    bare = strategy("bare_torch")
    whole = batches.as_tensors(next(iter(source())))
    expected = gradients(bare, whole)
    shards = [batches.as_tensors(next(iter(source(replica, 3)))) for replica in range(3)]
    assert [shard.samples for shard in shards] == [7, 7, 6]
    bare.shard = lambda: (0, 3)
    averaged = [sum(parts) / 3 for parts in zip(*(gradients(bare, shard) for shard in shards), strict=True)]
    for found, wanted in zip(averaged, expected, strict=True):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-6)
    plain = [sum(parts) / 3 for parts in zip(*(unweighted(bare, shard) for shard in shards), strict=True)]
    assert max(float((a - b).abs().max()) for a, b in zip(plain, expected, strict=True)) > 1e-4


def gradients(bare: Any, batch: batches.TorchBatch) -> list[torch.Tensor]:
    bare.model.zero_grad()
    bare.forward(bare.net, batch)[0].backward()
    return [parameter.grad.clone() for parameter in bare.model.parameters()]


def unweighted(bare: Any, batch: batches.TorchBatch) -> list[torch.Tensor]:
    return gradients(bare, batch._replace(global_samples=batch.samples * bare.shard()[1]))


def test_equal_shards_are_not_weighted() -> None:
    assert optimizer.shard_weight(75, 600, 8) == 1
    assert optimizer.shard_weight(38, 75, 2) > 1 > optimizer.shard_weight(37, 75, 2)


def test_evaluate_is_the_mean_over_all_samples(
    strategy: Any, source: Callable[..., Source], samples: tuple[np.ndarray, np.ndarray]
) -> None:
    bare = strategy("bare_torch")
    inputs, targets = (torch.from_numpy(array) for array in samples)
    with torch.no_grad():
        errors = (bare.model(inputs) - targets).double().square()
    found = bare.evaluate(source())
    assert found == pytest.approx(
        {"mse": float(errors.mean()), "mse_G0": float(errors[:, 0].mean()), "mse_a": float(errors[:, 1].mean())},
        rel=1e-6,
    )
    assert bare.model.training
    assert all(parameter.grad is None for parameter in bare.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "independent_torch", "lightning_ddp_gloo"])
def test_contract_of_one_rank(strategy: Any, source: Callable[..., Source], name: str) -> None:
    one = strategy(name)
    batch = next(iter(one.feed(source())))
    assert one.step(batch).samples == 20
    one.synchronize()
    one.set_gradient_sync(False)
    one.set_gradient_sync(True)
    assert one.broadcast(2.5) == 2.5
    assert one.peak_memory_bytes() == [None]
    assert one.versions()["torch"] == torch.__version__
    exchanges = name in ("ddp_gloo", "lightning_ddp_gloo")
    assert one.message_sizes() == ([4 * 153441] if exchanges else [])
    assert one.backend_used() == ("gloo" if exchanges else None)
    one.close()
    one.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "lightning_ddp_gloo", "independent_torch"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_parts_of_an_update(strategy: Any, source: Callable[..., Source], name: str, precision: str) -> None:
    one = strategy(name, train__precision=precision)
    batch = next(iter(one.feed(source())))
    one.step(batch)

    def weights() -> torch.Tensor:
        return torch.cat([parameter.detach().flatten().clone() for parameter in one.model.parameters()])

    before = weights()
    for part, gradients in ((FORWARD, 0), (BACKWARD, 8), (FORWARD, 0), (BACKWARD, 8), (BACKWARD, 8)):
        one.partial_step(batch, part)
        assert sum(parameter.grad is not None for parameter in one.model.parameters()) == gradients
        assert torch.equal(weights(), before)
    once = [parameter.grad.clone() for parameter in one.model.parameters()]
    one.partial_step(batch, OPTIMIZER)
    for parameter, gradient in zip(one.model.parameters(), once, strict=True):  # of one pass, not added up over several
        assert torch.equal(parameter.grad, gradient) or precision == "float16"  # whose scaler takes its factor out
    assert not torch.equal(weights(), before)


def test_copies_of_a_batch(strategy: Any, source: Callable[..., Source], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned once for each shape, copied each time: here to a device that holds nothing."""
    bare = strategy("bare_torch")
    batches = list(islice(bare.feed(source()), 6))  # the last has another shape
    with pytest.raises(NotMeasured, match="nothing is copied"):
        bare.copy_batch(batches[0])
    pinned, copied, bare.device = [], [], torch.device("meta")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(len(tensor)) or tensor)
    plain = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, *to, **how: copied.append((*to, how)) or plain(tensor, *to, **how)
    )
    for batch in batches:
        bare.copy_batch(batch)
    assert pinned == [20, 20, 1, 1]
    assert copied == [(bare.device, {"non_blocking": True})] * 12


def test_wrong_parameter_count(strategy: Any) -> None:
    with pytest.raises(RuntimeError, match="153441 parameters here and 7 in its YAML"):
        strategy("bare_torch", model__params=7)


def test_unknown_loss(strategy: Any) -> None:
    with pytest.raises(InputError, match="mse"):
        strategy("bare_torch", model__loss="msee")


def test_close_before_setup(strategy: Any) -> None:
    with pytest.raises(InputError, match="adam"):
        strategy("ddp_gloo", train__optimizer="adamm")  # after the group was joined; the fixture closes it


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu() -> None:
    with pytest.raises(Unsupported, match="sees 0 GPUs"):
        choose_device("cuda", 0)


def test_versions_of_what_is_there_only(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = strategy("bare_torch")
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert "cudnn" not in one.versions()
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90100)
    assert one.versions()["cudnn"] == "90100"
