"""One rank: steps, weights of uneven shards, metrics, options, and errors during set-up."""

import re
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity

from scalebench.core.errors import InputError
from scalebench.core.machine import gpus
from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER, NotMeasured, Unsupported
from scalebench.strategies.deepspeed import choose_engine_arguments
from scalebench.strategies.torch import batches
from scalebench.strategies.torch.base import choose_backend, choose_device
from scalebench.strategies.torch.data_parallel import SingleProcessDataParallel
from scalebench.strategies.torch.ddp import choose_device_ids
from scalebench.strategies.torch.group import choose_bound_device
from scalebench.strategies.torch.lightning.trainer import choose_trainer_devices
from scalebench.strategies.torch.observed import choose_activities
from scalebench.workloads import networks
from scalebench.workloads.weights import initial_weights
from tests.strategies.torch.conftest import spec_of


def test_weights_start_from_the_seed(strategy):
    bare = strategy("bare_torch", seed=5)
    arrays = networks.build_network(bare.spec.config.model).arrays
    for name, array in initial_weights(((a.name, a.shape, a.init) for a in arrays), 5).items():
        np.testing.assert_array_equal(bare.parameters()[name], array)
    assert bare.num_params() == 153441


@pytest.mark.gpu
def test_memory_that_the_allocator_reserved(strategy, monkeypatch):
    bare = strategy("bare_torch")
    assert (bare.reserved_memory_bytes(), bare.allocator_retries()) == ([None], None)
    reserved, retries = {"cuda:1": 7 * 10**9}, {"cuda:1": {"num_alloc_retries": 3}}
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: reserved[str(device)])
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: retries[str(device)])
    bare.device = torch.device("cuda", 1)
    assert (bare.reserved_memory_bytes(), bare.allocator_retries()) == ([7 * 10**9], 3)


@pytest.mark.gpu
def test_data_parallel_on_one_gpu_sends_nothing():
    """Also where the process calls its only GPU by another number than the node; copies within its memory are none."""
    one = SingleProcessDataParallel(spec_of("data_parallel"), 0)
    one.place.devices, one.device = [3], torch.device("cuda", 0)
    assert (one.backend_used(), one._devices()) == (None, [one.device])
    one.place.devices = [3, 1]
    assert one._devices() == [torch.device("cuda", 3), torch.device("cuda", 1)]


GPU, CPU = torch.device("cuda", 3), torch.device("cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ((choose_backend, "auto", "cuda"), "nccl"),
        ((choose_backend, None, "cuda"), "nccl"),
        ((choose_backend, "gloo", "cuda"), "gloo"),
        ((choose_backend, "auto", "cpu"), "gloo"),
        ((choose_backend, "nccl", "cpu"), "nccl"),
        ((choose_device_ids, GPU), [3]),
        ((choose_device_ids, CPU), None),
        ((choose_bound_device, "nccl", GPU), GPU),
        ((choose_bound_device, "gloo", GPU), None),
        ((choose_bound_device, "gloo", CPU), None),
        ((choose_trainer_devices, "cuda", [3, 1]), {"accelerator": "gpu", "devices": [3, 1]}),
        ((choose_trainer_devices, "cpu", [3, 1]), {"accelerator": "cpu", "devices": 2}),
        ((choose_engine_arguments, GPU), SimpleNamespace(device_rank=3)),
        ((choose_engine_arguments, CPU), None),
        ((choose_activities, True), [ProfilerActivity.CPU, ProfilerActivity.CUDA]),
        ((choose_activities, False), [ProfilerActivity.CPU]),
    ],
    ids=lambda value: value[0].__name__ if isinstance(value, tuple) else str(value),
)
def test_choices_by_kind_of_device(chosen, expected):
    choose, *arguments = chosen
    assert choose(*arguments) == expected


def test_loss_is_reported_as_a_lazy_sum(strategy, source):
    bare = strategy("bare_torch")
    batch = next(iter(bare.feed(source())))
    with torch.no_grad():
        expected = (bare.model(batch.inputs) - batch.targets).square().mean(1).sum()
    part = bare.step(batch)
    assert isinstance(part.loss_sum, torch.Tensor)
    assert not part.loss_sum.requires_grad
    assert (part.samples, float(part.loss_sum)) == (20, pytest.approx(float(expected), rel=1e-6))


def test_weighted_shards_average_to_the_global_batch(strategy, source):
    """Three replicas have 7, 7 and 6 samples; without weights the average would differ by far more."""
    bare = strategy("bare_torch")
    complete = batches.to_tensors(next(iter(source())))
    expected = gradients(bare, complete)
    shards = [batches.to_tensors(next(iter(source(replica, 3)))) for replica in range(3)]
    assert [shard.samples for shard in shards] == [7, 7, 6]
    bare.shard = lambda: (0, 3)
    averaged = [sum(parts) / 3 for parts in zip(*(gradients(bare, shard) for shard in shards), strict=True)]
    for actual, reference in zip(averaged, expected, strict=True):
        assert torch.allclose(actual, reference, rtol=0, atol=1e-6)
    plain = [sum(parts) / 3 for parts in zip(*(unweighted(bare, shard) for shard in shards), strict=True)]
    assert max(float((a - b).abs().max()) for a, b in zip(plain, expected, strict=True)) > 1e-4


def gradients(bare, batch):
    bare.model.zero_grad()
    bare.forward(bare.net, batch)[0].backward()
    return [parameter.grad.clone() for parameter in bare.model.parameters()]


def unweighted(bare, batch):
    return gradients(bare, batch._replace(global_samples=batch.samples * bare.shard()[1]))


def test_evaluate_is_the_mean_over_all_samples(strategy, source, samples):
    bare = strategy("bare_torch")
    inputs, targets = (torch.from_numpy(array) for array in samples)
    with torch.no_grad():
        errors = (bare.model(inputs) - targets).double().square()
    actual = bare.evaluate(source())
    assert actual == pytest.approx(
        {"mse": float(errors.mean()), "mse_G0": float(errors[:, 0].mean()), "mse_a": float(errors[:, 1].mean())},
        rel=1e-6,
    )
    assert bare.model.training
    assert all(parameter.grad is None for parameter in bare.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "lightning_ddp_gloo", "independent_torch"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_parts_of_a_step(strategy, source, name, precision):
    adapter = strategy(name, train__precision=precision)
    batch = next(iter(adapter.feed(source())))
    adapter.step(batch)

    def weights():
        return torch.cat([parameter.detach().flatten().clone() for parameter in adapter.model.parameters()])

    before = weights()
    for part, gradients in ((FORWARD, 0), (BACKWARD, 8), (FORWARD, 0), (BACKWARD, 8), (BACKWARD, 8)):
        adapter.partial_step(batch, part)
        assert sum(parameter.grad is not None for parameter in adapter.model.parameters()) == gradients
        assert torch.equal(weights(), before)
    once = [parameter.grad.clone() for parameter in adapter.model.parameters()]
    adapter.partial_step(batch, OPTIMIZER)
    for parameter, gradient in zip(
        adapter.model.parameters(), once, strict=True
    ):  # of one pass, not added up over several
        assert torch.equal(parameter.grad, gradient) or precision == "float16"  # whose scaler takes its factor out
    assert not torch.equal(weights(), before)


def test_batches_are_pinned_once_per_shape(strategy, source, monkeypatch):
    """Batches are pinned once for each shape and copied each time, here to the meta device."""
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


def test_a_wrong_parameter_count_is_an_error(strategy):
    with pytest.raises(RuntimeError, match="153441 parameters here and 7 in its YAML"):
        strategy("bare_torch", model__params=7)


def test_close_after_a_failed_setup(strategy):
    with pytest.raises(InputError, match="adam"):
        strategy("ddp_gloo", train__optimizer="adamm")  # after the group was joined; the fixture closes it


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("cuda", "driver", "is_available", "index", "reason"),
    [
        (None, None, False, 0, f"PyTorch {torch.__version__} is a build without CUDA: pip install "),
        ("13.0", "535.183.01", False, 0, "needs NVIDIA driver 580 or newer, and 535.183.01 is installed: pip install "),
        ("13.0", None, False, 0, "sees 0 GPUs and this rank wants number 0"),
        ("13.0", "535.183.01", True, 1, "has no code for compute capability 7.0, only for sm_75 sm_90: pip install "),
        ("13.0", "535.183.01", True, 0, None),  # by the compatibility package of a container
        ("13.0", "580.65.06", True, 2, "sees 2 GPUs and this rank wants number 2"),
    ],
)
def test_a_gpu_that_pytorch_cannot_use_is_unsupported(monkeypatch, cuda, driver, is_available, index, reason):
    monkeypatch.setattr(gpus, "read_driver_version", lambda: driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"] if is_available else [])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: [(9, 0), (7, 0)][number])
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    if reason is None:
        assert choose_device("cuda", index) == torch.device("cuda", index)
    else:
        with pytest.raises(Unsupported, match=re.escape(reason)):
            choose_device("cuda", index)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("visible", "index", "chosen"),
    [(4, 3, 3), (1, 3, 0), (1, 0, 0), (2, 3, None), (0, 0, None)],
    ids=["all of the node", "one for each rank", "the only one", "too few", "none"],
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_it_sees(visible, index, chosen, monkeypatch):
    current = []
    for name, value in {
        "is_available": visible > 0,
        "device_count": visible,
        "get_arch_list": ["sm_90"],
        "get_device_capability": (9, 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *device, value=value: value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpus, "read_driver_version", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    if chosen is None:
        with pytest.raises(Unsupported, match=f"sees {visible} GPUs and this rank wants number {index}"):
            choose_device("cuda", index)
        return
    assert [choose_device("cuda", index)] == current == [torch.device("cuda", chosen)]


@pytest.mark.parametrize("probe", [lambda adapter: adapter.profile(1, None), lambda adapter: adapter.backend_used()])
def test_probes_need_a_training(strategy, probe):
    with pytest.raises(RuntimeError, match="there was no training"):
        probe(strategy("ddp_gloo"))


def test_versions_name_installed_libraries_only(strategy, monkeypatch):
    adapter = strategy("bare_torch")
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert "cudnn" not in adapter.versions()
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90100)
    assert adapter.versions()["cudnn"] == "90100"
