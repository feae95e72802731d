"""DistributedDataParallel: parts of a step without communication, synchronization after the backward pass, and hooks
that send as many bytes as they state; groups behind the meshes of FSDP; and activations that are not kept."""

import importlib
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from scalebench.cli.commands import new
from scalebench.strategies import registry
from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER, Unsupported
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.checkpointing import checkpoint_user_module
from scalebench.strategies.torch.ddp import Ddp
from scalebench.strategies.torch.model import NetworkModule, load_weights
from scalebench.strategies.torch.sharded.fsdp import Fsdp, Hsdp
from scalebench.workloads import networks
from scalebench.workloads.weights import initial_weights
from tests.strategies.torch.conftest import model_spec


@pytest.mark.parametrize("broadcast", [True, False])
def test_parts_of_a_step_send_nothing(strategy, broadcast):
    """Neither gradients are sent nor moving statistics, which the forward pass after a step would broadcast."""
    adapter = strategy("ddp_gloo", model="resnet20_cifar10", strategy__options__broadcast_buffers=broadcast)
    batch = TorchBatch(torch.rand(2, 32, 32, 3), torch.tensor([1, 2]), 2)
    expected = {"gloo:all_reduce"} | ({"gloo:broadcast"} if broadcast else set())
    for _ in range(3):  # the first steps rebuild the buckets and broadcast their order
        adapter.step(batch)
    assert gloo_events(lambda: adapter.step(batch)) == expected
    assert gloo_events(lambda: [adapter.partial_step(batch, part) for part in (FORWARD, BACKWARD, OPTIMIZER)]) == set()
    adapter.step(batch)
    assert gloo_events(lambda: adapter.step(batch)) == expected


def gloo_events(action):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        action()
    return {event.name for event in profiler.events() if event.name.startswith("gloo:")}


def test_the_strategy_of_a_new_plugin_steps_and_sends_what_it_states(strategy, tmp_path, monkeypatch):
    """The template of `scalebench new strategy` in one process: what it inherits must be there."""
    (text,) = [text for path, text in new.render("strategy", "mine").items() if path.name == "strategy.py"]
    (tmp_path / "strategy_of_a_new_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("strategy_of_a_new_plugin")
    monkeypatch.setattr(registry, "load_strategy", lambda name: module.Mine)
    adapter = strategy("ddp_gloo", strategy__options={"message_mb": 0.1})
    assert gloo_events(lambda: adapter.step(BATCH)) == {"gloo:all_reduce"}
    sizes = adapter.message_sizes()
    assert len(sizes) > 1 and sum(sizes) == 4 * sum(map(np.size, adapter.parameters().values()))
    assert gloo_events(lambda: adapter.run_isolated_sync(sizes)) == {"gloo:all_reduce"}
    assert adapter.backend_used() == "gloo"


def test_parts_of_a_step_where_nothing_is_wrapped(strategy, monkeypatch):
    """As Accelerate leaves the model of the only process."""
    monkeypatch.setattr(Ddp, "wrap", lambda self, model: model)
    adapter = strategy("ddp_gloo", train__accumulate=2)
    adapter.step(BATCH)
    adapter.set_gradient_sync(False)
    for part in (FORWARD, BACKWARD, OPTIMIZER):
        adapter.partial_step(BATCH, part)
    adapter.set_gradient_sync(True)
    assert (adapter.message_sizes(), adapter.backend_used()) == ([], None)


def test_a_bit_map_of_used_parameters_is_no_message(strategy):
    adapter = strategy("ddp_gloo", strategy__options__find_unused_parameters=True)
    adapter.step(BATCH)
    assert adapter.message_sizes() == [4 * adapter.num_params()]


BATCH = TorchBatch(torch.linspace(-1, 1, 20 * 600).reshape(20, 200, 3), torch.linspace(0, 1, 40).reshape(20, 2), 20)


def sync_starts(adapter):
    """Return when the all-reduces of a step were called, and when its gradients were ready."""
    for _ in range(3):  # the first steps rebuild the buckets
        adapter.step(BATCH)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        adapter.step(BATCH)
    actual = [(event.name, event.time_range.start) for event in profiler.events()]
    gradient = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    return tuple(sorted(start for name, start in actual if name == each) for each in ("c10d::allreduce_", gradient))


@pytest.mark.parametrize("overlap", [True, False])
def test_buckets_are_sent_during_or_after_the_backward_pass(strategy, overlap):
    adapter = strategy("ddp_gloo", strategy__options__bucket_cap_mb=0.01, strategy__options__overlap=overlap)
    starts, ready = sync_starts(adapter)
    assert len(starts) == len(adapter.message_sizes()) > 2
    assert sum(adapter.message_sizes()) == 4 * adapter.num_params() and len(ready) == 8
    assert (starts[0] < ready[-1]) == overlap


@pytest.mark.parametrize(
    "option", ["static_graph", "gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers"]
)
def test_weights_do_not_depend_on_overlap_under_any_option(strategy, option):
    """With gradient accumulation in two parts."""
    trained = []
    for overlap in (True, False):
        options = {f"strategy__options__{option}": True, "strategy__options__overlap": overlap}
        adapter = strategy("ddp_gloo", strategy__options__bucket_cap_mb=0.01, train__accumulate=2, **options)
        for _ in range(3):
            adapter.step(BATCH)
        trained.append(adapter.parameters())
        adapter.close()
    for name, array in trained[0].items():
        assert (array == trained[1][name]).all(), name


CURVES = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
WEIGHTS = 153441  # of the materials CNN
SEVERAL = {"strategy__options__bucket_cap_mb": 0.01}  # a bucket for nearly every layer


def sent_elements(action):
    """Return the elements of each tensor that Gloo sends during the action, by any thread."""
    threads = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=threads) as profiler:
        action()
    sent = [event for event in profiler.events() if event.name.startswith("gloo:all_")]
    return [size for event in sorted(sent, key=lambda event: event.time_range.start) for (size,) in event.input_shapes]


def train(strategy, hook, **changes):
    """Return rank 0 after the steps in which buckets are set up."""
    adapter = strategy("ddp_gloo", strategy__options__comm_hook=hook, **changes)
    for _ in range(4):
        adapter.step(CURVES)
    return adapter


@pytest.mark.parametrize("hook", ["bf16", "fp16"])
@pytest.mark.parametrize("changes", [{}, SEVERAL], ids=["one bucket", "several"])
def test_messages_are_those_that_are_sent(strategy, hook, changes):
    adapter = train(strategy, hook, **changes)
    sizes = adapter.message_sizes()
    expected = Counter(size // 2 for size in sizes)
    assert Counter(filter(None, sent_elements(lambda: adapter.step(CURVES)))) == expected
    adapter.run_isolated_sync(sizes)  # buffers are made and tried
    assert Counter(sent_elements(lambda: adapter.run_isolated_sync(sizes))) == expected
    assert sum(sizes) == 2 * WEIGHTS
    adapter.set_gradient_sync(False)
    assert sent_elements(lambda: adapter.step(CURVES)) == []


@pytest.fixture
def four_processes():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def strategy(kind, **options):
    made = object.__new__(kind)
    made.device = torch.device("cuda:0")
    made.spec = SimpleNamespace(processes=4, nodes=1, group_timeout_s=77.0)
    made.options = SimpleNamespace(**options)
    return made


@pytest.mark.usefixtures("four_processes")
def test_groups_of_meshes(monkeypatch):
    """That of all processes is the group itself: another one would have the backend that PyTorch prefers for GPUs, and
    its own time limit. Those along the axes have the limit of the run."""
    mesh = strategy(Fsdp).mesh
    assert mesh.get_group() is dist.group.WORLD and mesh.size() == 4
    made, new_group = [], dist.new_group

    def record(ranks=None, timeout=None, **more):
        made.append((ranks, timeout))
        return new_group(ranks, timeout, **more)

    monkeypatch.setattr(dist.distributed_c10d, "new_group", record)
    mesh = strategy(Hsdp, shards=2).mesh
    assert mesh.mesh_dim_names == ("copy", "shard") and mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert made and {timeout for _, timeout in made} == {timedelta(seconds=77)}
    groups = [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in ("copy", "shard")]
    assert groups == [[0, 2], [0, 1]]


def make_inputs(name):
    torch.manual_seed(1)
    pictures = torch.randn(4, 32, 32, 3)
    return {"gpt_small": torch.randint(512, (3, 64)), "materials_cnn": torch.randn(4, 200, 3)}.get(name, pictures)


def train_once(name, checkpointed, dropout=False):
    """Return (bytes kept between the passes, gradients and moving statistics after one step)."""
    network = networks.build_network(model_spec(name))
    model = NetworkModule(network, "nchw", dropout)
    load_weights(model, initial_weights(((array.name, array.shape, array.init) for array in network.arrays), 3))
    if checkpointed:
        model.checkpoint_activations()
    kept = {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def count(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = make_inputs(name)
    torch.manual_seed(2)  # of dropout
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        outputs = model(inputs)
    outputs.square().mean().backward()
    state = [parameter.grad for parameter in model.parameters()] + list(model.buffers())
    return sum(kept.values()), [each.clone() for each in state]


@pytest.mark.parametrize(
    ("name", "dropout"),
    [("materials_cnn", True), ("resnet20_cifar10", False), ("gpt_small", False), ("densenet40_k12", False)],
)
def test_a_step_is_the_same_and_keeps_less(name, dropout):
    kept, plain = train_once(name, False, dropout)
    kept_with, state = train_once(name, True, dropout)
    assert kept_with < 0.8 * kept
    for actual, expected in zip(state, plain, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


class Switchable(nn.Linear):
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs):
        self.switched = gradient_checkpointing_kwargs


def test_a_users_module_checkpoints_its_own_parts():
    module = Switchable(2, 2)
    checkpoint_user_module(module)
    assert module.switched == {"use_reentrant": False}
    with pytest.raises(Unsupported, match="Linear has no method gradient_checkpointing_enable"):
        checkpoint_user_module(nn.Linear(2, 2))
