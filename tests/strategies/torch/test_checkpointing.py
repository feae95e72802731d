"""Activation checkpointing changes no gradient and no moving statistic, and keeps fewer activations."""

import pytest
import torch
from torch import nn

from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.checkpointing import checkpoint_user_module
from scalebench.strategies.torch.model import NetworkModule, load_weights
from scalebench.workloads import networks
from scalebench.workloads.weights import initial_weights
from tests.strategies.torch.conftest import model_spec

SHAPES = {"materials_cnn": (200, 3), "resnet20_cifar10": (32, 32, 3), "densenet40_k12": (32, 32, 3)}


def make_inputs(name):
    torch.manual_seed(1)
    return torch.randint(512, (3, 64)) if name == "gpt_small" else torch.randn(4, *SHAPES[name])


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
