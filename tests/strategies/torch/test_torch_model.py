"""Networks in torch: the plan of the forward pass, weights, and every network of the zoo. The operations are in
test_network_operations.py, and what transformers compute in test_framework_parity.py."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from scalebench.strategies.torch.model import Lstm, NetworkModule, attend, load_weights
from scalebench.strategies.torch.profiling import count_flops
from scalebench.workloads import networks
from scalebench.workloads.network import Network
from tests.strategies.builders import random_arrays, random_floats, residual_network


def module(net, scale=1.0, **others):
    """Return the module with random arrays, including biases and statistics, and these arrays."""
    made, arrays = NetworkModule(net, **others), random_arrays(net, scale)
    load_weights(made, arrays)
    return made, arrays


def test_batch_norm_of_single_values():
    """The last batch of an epoch may have one sample: its output is the offset, and statistics stay as they are."""
    net = Network("net", (6,))
    net.batch_norm(net.input, "bn")
    made, arrays = module(net)
    outputs = made(torch.from_numpy(random_floats((6,), 1))).detach()
    np.testing.assert_allclose(outputs[0], arrays["bn/beta"], atol=1e-6)
    np.testing.assert_array_equal(made.get_submodule("bn").running_var, arrays["bn/moving_variance"])


def test_images_are_not_copied(monkeypatch):
    """A batch is channels_last in memory already, and every activation stays so."""
    made = module(residual_network())[0]
    observed = []
    for name in ("conv1", "conv2", "conv3"):
        made.get_submodule(name).register_forward_pre_hook(lambda _, args: observed.append(args[0]))
    x = torch.from_numpy(random_floats((10, 10, 3)))
    made(x)
    assert observed[0].data_ptr() == x.data_ptr()
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in observed)


def test_weights_that_do_not_match_are_named():
    made, arrays = module(networks.build_by_name("materials_cnn", (200, 3), 2))
    with pytest.raises(ValueError, match="dense3/bias"):
        load_weights(made, {**arrays, "dense3/bias": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="dense1/kernel"):
        load_weights(NetworkModule(networks.build_by_name("materials_cnn", (100, 3), 2)), arrays)


LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY = 2, 24, 3, 10, 17
RNG = np.random.default_rng(0)
TOKENS = torch.from_numpy(RNG.integers(0, VOCABULARY, (4, LENGTH)).astype(np.int32))


def gpt():
    options = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "sequence_length": LENGTH}
    return networks.build_by_name("gpt_small", (LENGTH,), VOCABULARY, options)


def test_an_lstm_on_a_gpu_has_its_weights_in_one_chunk(monkeypatch):
    """After each move, by the call with which nn.LSTM does it; on a CPU there is no need to."""
    calls = []
    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", lambda *arguments: calls.append(arguments))
    lstm = Lstm(3, 5).to("cpu")
    assert calls == []
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: True)
    lstm.to("cpu")
    ((weights, *settings),) = calls
    assert [tuple(each.shape) for each in weights] == [(20, 3), (20, 5), (20,), (20,)]
    assert not weights[3].any() and [*lstm.parameters()] == weights[:3]
    assert settings == [4, 3, 2, 5, 0, 1, True, False]  # weights, inputs, CUDNN_LSTM, units, ..., batch first


def test_the_count_of_flops_includes_masked_pairs():
    net = gpt()
    with torch.no_grad():
        assert count_flops(lambda: module(net, 0.3)[0](TOKENS)) == len(TOKENS) * net.forward_flops


def test_channels_stay_contiguous_and_are_not_moved():
    """Tensor parallelism gives each device some of the heads."""
    made, _ = module(gpt(), 0.3)
    assert [node.target for node in made.graph.nodes].count("movedim") == 1  # of the head's output
    observed = []
    for name, layer in made.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _, args, name=name: observed.append((name, args[0].is_contiguous())))
    assert made(TOKENS).stride(1) == 1
    assert len(observed) == 6 * LAYERS + 1 and all(contiguous for _, contiguous in observed)
    attention = partial(attend, WIDTH // HEADS)
    complete = [torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    head = WIDTH // HEADS
    parts = [attention(*(x[..., i * head : (i + 1) * head] for x in complete)) for i in range(HEADS)]
    torch.testing.assert_close(torch.cat(parts, -1), attention(*complete))


def test_sequence_layers_between_convolutions():
    """Each layer reads channels in the order that it needs, whatever the previous layer returned."""
    net = Network("net", (8, 3))
    x = net.conv(net.input, "conv", 4, 3)
    y = net.relu(net.dense(x, "dense", 4))
    net.global_avg_pool(net.conv(net.layer_norm(net.add(x, y), "norm"), "last", 5, 1))
    made, arrays = module(net, 0.3)
    x = torch.from_numpy(RNG.normal(size=(2, 8, 3)).astype(np.float32))
    a = {name: torch.from_numpy(array) for name, array in arrays.items()}
    reference = functional.conv1d(x.mT, a["conv/kernel"].permute(2, 1, 0), a["conv/bias"], padding=1).mT
    reference = reference + (reference @ a["dense/kernel"] + a["dense/bias"]).relu()
    reference = functional.layer_norm(reference, (4,), a["norm/gamma"], a["norm/beta"])
    reference = (reference @ a["last/kernel"][0] + a["last/bias"]).mean(1)
    torch.testing.assert_close(made(x), reference, rtol=1e-4, atol=1e-5)
