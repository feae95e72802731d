"""One rank: steps, weights of uneven shards, ways of feeding, metrics, options, memory, and errors during set-up."""

import re
import weakref
from contextlib import nullcontext
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity

from scalebench.core.errors import InputError
from scalebench.core.machine import gpus
from scalebench.strategies.base import NotMeasured, Unsupported
from scalebench.strategies.deepspeed import DeepSpeedZero3, choose_engine_arguments
from scalebench.strategies.torch import base, devices
from scalebench.strategies.torch import batches as feeding
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.data_parallel import SingleProcessDataParallel
from scalebench.strategies.torch.ddp import choose_device_ids
from scalebench.strategies.torch.devices import PeakMemory, choose_backend, choose_device, count_state_bytes
from scalebench.strategies.torch.group import choose_bound_device
from scalebench.strategies.torch.lightning.trainer import choose_trainer_devices
from scalebench.strategies.torch.profiling import choose_activities
from scalebench.workloads.source import Source
from tests.strategies.builders import make_images, run_training
from tests.strategies.torch.conftest import spec_of, user_model


def test_errors_of_the_setup_are_raised(strategy):
    with pytest.raises(RuntimeError, match="153441 parameters here and 7 in its YAML"):
        strategy("bare_torch", model__params=7)
    with pytest.raises(InputError, match="adam"):
        strategy("ddp_gloo", train__optimizer="adamm")  # after the group was joined; the fixture closes it


@pytest.mark.parametrize(
    ("name", "newest", "needed"),
    [("pipeline_1f1b", "2.9.1+cpu", "2.10"), ("fsdp_tp", "2.8.0", "2.9"), ("hsdp", "2.8", "2.9")],
)
def test_an_older_pytorch_is_unsupported(strategy, monkeypatch, name, newest, needed):
    monkeypatch.setattr(torch, "__version__", newest)
    message = f"^{name} needs PyTorch {needed} or newer, found {re.escape(newest)}: update"
    with pytest.raises(Unsupported, match=message):
        strategy(name)


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
@pytest.mark.parametrize(("chosen", "expected"), [
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
], ids=lambda value: value[0].__name__ if isinstance(value, tuple) else str(value))  # fmt: skip
def test_choices_by_kind_of_device(chosen, expected):
    choose, *arguments = chosen
    assert choose(*arguments) == expected


def test_a_loss_on_another_device_is_not_waited_for(strategy, source):
    bare = strategy("bare_torch")
    batch = next(iter(bare.feed(source())))
    _, elsewhere = bare.forward(lambda *_: torch.ones((), device="meta", requires_grad=True), batch)
    assert elsewhere.loss_sum.is_meta and not elsewhere.loss_sum.requires_grad


def test_batches_are_pinned_once_per_shape(strategy, source, monkeypatch):
    """Batches are pinned once for each shape and copied each time, here to the meta device."""
    bare = strategy("bare_torch")
    batches = list(islice(bare.feed(source()), 6))  # the last has another shape
    with pytest.raises(NotMeasured, match="nothing is copied"):
        bare.copy_batch(batches[0])
    pinned, copied, bare.device, plain = [], [], torch.device("meta"), torch.Tensor.to

    def copy(tensor, *to, **how):
        copied.append((*to, how))
        return plain(tensor, *to, **how)

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(len(tensor)) or tensor)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    for batch in batches:
        bare.copy_batch(batch)
    assert pinned == [20, 20, 1, 1]
    assert copied == [(bare.device, {"non_blocking": True})] * 12


@pytest.fixture
def gpus_seen(monkeypatch):
    """Return gpus_seen(count, **others) -> the numbers of the GPUs that a rank makes its own."""

    def see(count, driver=None, cuda="13.0", available=True, codes=("sm_75", "sm_90"), capabilities=((9, 0),) * 4):
        current, has_gpus = [], available and count > 0
        monkeypatch.setattr(gpus, "detect_gpus", lambda: gpus.GpuFacts([], None, driver, None))
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpus)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(codes) if has_gpus else [])
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capabilities[number])
        monkeypatch.setattr(torch.cuda, "set_device", current.append)
        return current

    return see


@pytest.mark.gpu
@pytest.mark.parametrize(("cuda", "driver", "available", "index", "reason"), [
    (None, None, False, 0, f"PyTorch {torch.__version__} is a build without CUDA: uv pip"),
    ("13.0", "535.183.01", False, 0, "needs NVIDIA driver 580 or newer, and 535.183.01 is installed: uv pip"),
    ("13.0", None, False, 0, "sees 0 GPUs and this rank needs number 0"),
    ("13.0", "535.183.01", True, 1, "has no code for compute capability 7.0, only for sm_75 sm_90: uv pip"),
    ("13.0", "535.183.01", True, 0, None),  # by the compatibility package of a container
    ("13.0", "580.65.06", True, 2, "sees 2 GPUs and this rank needs number 2"),
])  # fmt: skip
def test_a_gpu_that_pytorch_cannot_use_is_unsupported(gpus_seen, cuda, driver, available, index, reason):
    gpus_seen(2, driver, cuda, available, capabilities=[(9, 0), (7, 0)])
    if reason is None:
        assert choose_device("cuda", index) == torch.device("cuda", index)
        return
    with pytest.raises(Unsupported, match=re.escape(reason)):
        choose_device("cuda", index)


@pytest.mark.gpu
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_it_sees(gpus_seen):
    """All of the node, one for each rank, or the only one; not of too few."""
    for visible, index, chosen in ((4, 3, 3), (1, 3, 0), (1, 0, 0)):
        current = gpus_seen(visible)
        assert [choose_device("cuda", index)] == current == [torch.device("cuda", chosen)]
    for visible, index in ((2, 3), (0, 0)):
        gpus_seen(visible)
        with pytest.raises(Unsupported, match=f"sees {visible} GPUs and this rank needs number {index}"):
            choose_device("cuda", index)


def test_probes_need_a_training_and_versions_an_installed_library(strategy, monkeypatch):
    adapter = strategy("ddp_gloo")
    for probe in (lambda: adapter.profile(1, None), adapter.backend_used):
        with pytest.raises(RuntimeError, match="there was no training"):
            probe()
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert "cudnn" not in adapter.versions()
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90100)
    assert adapter.versions()["cudnn"] == "90100"


BATCHES = 14  # over two ends of epochs; 101 samples in batches of 20 end with one of a single sample


def first_batches(source, feed, ahead="none"):
    return list(islice(feeding.feed_batches(source, CPU, feed, ahead), BATCHES))


@pytest.mark.parametrize("replica", [0, 1, 2])
@pytest.mark.parametrize("ways", [("host", "none"), ("device", "none"), ("host", "queue"), ("device", "queue")])
def test_batches_are_those_of_the_source(source, ways, replica):
    part = source(replica, 3, first=7)
    for batch, actual in zip(islice(part, BATCHES), first_batches(part, *ways), strict=True):
        assert (actual.inputs.numpy() == batch.inputs).all()
        assert (actual.targets.numpy() == batch.targets).all()
        assert (actual.global_samples, actual.samples) == (batch.global_samples, len(batch.inputs))


def test_a_fixed_batch_is_made_once(source):
    actual = first_batches(source(feed="fixed"), "fixed")
    assert all(batch is actual[0] for batch in actual)
    assert torch.equal(actual[0].inputs, first_batches(source(), "host")[0].inputs)


def test_next_copy_is_issued_after_waiting_for_this_one(source, monkeypatch):
    """The double buffer, with fake streams, yields the same batches and waits before it issues the next copy."""
    notes, stream = [], SimpleNamespace(wait_stream=lambda other: notes.append("wait"))

    def copying(stream):
        notes.append("copy")
        return nullcontext()

    for name, fake in (("Stream", lambda _: stream), ("current_stream", lambda _: stream), ("stream", copying)):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: notes.append("record"))
    actual = list(islice(feeding._copy_ahead(feeding.feed_batches(source(), CPU, "host", "none"), CPU), BATCHES))
    for batch, expected in zip(actual, first_batches(source(), "host"), strict=True):
        assert torch.equal(batch.inputs, expected.inputs)
    assert notes == ["copy"] + ["wait", "record", "record", "copy"] * BATCHES


IMAGES = make_images(70)
EVALUATED_STEPS = (1, 3, 4)  # after the last step of an epoch, and after consecutive steps


def images(first=0, last=50, batch=20):
    return Source(*IMAGES, first=first, last=last, global_batch=batch, seed=3, replica=0, replicas=1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cifar10_cnn", "resnet20_cifar10"])
@pytest.mark.parametrize(("name", "changes"), [
    ("bare_torch", {}),
    ("ddp_gloo", {"strategy__options__broadcast_buffers": True}),
    ("lightning_ddp_gloo", {}),
    ("bare_torch", {"dataset__feed": "device"}),
    ("bare_torch", {"dataset__prefetch": "queue", "train__accumulate": 3}),
])  # fmt: skip
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


def test_the_peak_excludes_pauses(strategy, source, monkeypatch):
    """The GPU's allocator is replaced by a fake. An evaluation is one."""
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
    within = []
    monkeypatch.setattr(PeakMemory, "paused", lambda peak, device: within.append(device) or torch.no_grad())
    strategy("bare_torch").evaluate(source())
    assert within == [torch.device("cpu")]


@pytest.mark.parametrize(("name", "optimizers"), [("bare_torch", 1), ("fsdp_gloo", 1), ("zero1", 2)])
def test_the_peak_begins_after_setup(strategy, name, optimizers, monkeypatch):
    """It begins once the optimizer of the complete weights is gone, which would hold them."""
    built, alive, build = [], [], base.optimizer.build_optimizer

    def remember(*arguments):
        built.append(weakref.ref(made := build(*arguments)))
        return made

    monkeypatch.setattr(base.optimizer, "build_optimizer", remember)
    monkeypatch.setattr(devices, "reset_peak", lambda device: alive.append([each() is not None for each in built]))
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


def test_state_bytes_of_zero3_are_parts_and_the_small_tensors_that_stay_complete():
    """As DeepSpeed leaves them: the part in `ds_tensor`, and beside it a complete tensor or an empty one."""
    model = torch.nn.Linear(3, 2)
    model.weight.ds_tensor, model.bias.ds_tensor = torch.zeros(3), torch.zeros(1)
    model.weight.data = torch.empty(0)
    optimizer = SimpleNamespace(param_groups=[])
    adapter = SimpleNamespace(model=model, optimizer=optimizer, optimizer_state=dict, device=torch.device("cpu"))
    assert DeepSpeedZero3.state_bytes(adapter) == [4 * (3 + 1 + 2)]


def test_state_bytes_of_statistics_of_shared_tensors_and_of_other_devices(strategy):
    adapter = strategy("bare_torch", model="resnet20_cifar10")
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in adapter.model.buffers())
    assert buffers > 0 and adapter.state_bytes() == [4 * adapter.num_params() + buffers]
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight  # counts once
    state = {0: {"moment": torch.zeros(5), "far": torch.zeros(7, device="meta"), "step": 3}}
    assert count_state_bytes(model, state, torch.device("cpu")) == 4 * (9 + 3 + 3 + 5)
    assert count_state_bytes(model, state, torch.device("meta")) == 4 * 7


def test_a_module_that_keeps_tensors_of_an_evaluation_can_be_trained_on(strategy, source):
    """Tensors made in inference_mode cannot be saved for the backward pass."""
    bare = strategy("bare_torch", **user_model("Caching"))
    bare.evaluate(source())
    run_training(bare, source(), 2)
    assert len(bare.model.module.factors) > 1, "the evaluation had batches of a size that the check had not"
