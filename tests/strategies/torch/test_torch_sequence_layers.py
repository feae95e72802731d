"""Transformers in PyTorch against torch.nn's own layer, and their memory layout."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from scalebench.strategies.torch import evaluation, optimizer
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.model import Lstm, NetworkModule, load_weights
from scalebench.strategies.torch.profiling import count_flops
from scalebench.workloads import networks
from scalebench.workloads.network import Network

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


def module(net):
    """Return the module with random arrays, so that no offset is 0 and no scale is 1, and these arrays."""
    rng = np.random.default_rng(1)
    arrays = {a.name: rng.normal(scale=0.3, size=a.shape).astype(np.float32) for a in net.arrays}
    made = NetworkModule(net)
    load_weights(made, arrays)
    return made, arrays


class Reference(nn.Module):
    """The same transformer with torch.nn.TransformerEncoderLayer, whose attention has fused projections."""

    def __init__(self, arrays):
        super().__init__()
        self.arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self.blocks = nn.ModuleList(self._block(f"block{number}") for number in range(1, LAYERS + 1))

    def _block(self, name):
        block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, lambda x: functional.gelu(x, approximate="tanh"), 1e-5, True, norm_first=True
        )
        a = self.arrays
        parts = [f"{name}_{part}" for part in ("query", "key", "value")]
        biases = [a.get(f"{part}/bias", torch.zeros(WIDTH)) for part in parts]
        given = {
            "self_attn.in_proj_weight": torch.cat([a[f"{part}/kernel"].T for part in parts]),
            "self_attn.in_proj_bias": torch.cat(biases),
        }
        for ours, theirs in (("project", "self_attn.out_proj"), ("expand", "linear1"), ("contract", "linear2")):
            given |= {f"{theirs}.weight": a[f"{name}_{ours}/kernel"].T, f"{theirs}.bias": a[f"{name}_{ours}/bias"]}
        for norm in ("norm1", "norm2"):
            given |= {f"{norm}.weight": a[f"{name}_{norm}/gamma"], f"{norm}.bias": a[f"{name}_{norm}/beta"]}
        block.load_state_dict(given)
        return block

    def forward(self, tokens):
        """Return (samples, positions, logits)."""
        a = self.arrays
        x = functional.one_hot(tokens.long(), VOCABULARY).float() @ a["tokens/embeddings"] + a["positions/embeddings"]
        for block in self.blocks:
            x = block(x, src_mask=nn.Transformer.generate_square_subsequent_mask(LENGTH), is_causal=True)
        return functional.layer_norm(x, (WIDTH,), a["norm/gamma"], a["norm/beta"]) @ a["head/kernel"]


def test_outputs_and_gradients_are_those_of_torchs_layers():
    made, arrays = module(gpt())
    reference = Reference(arrays)
    assert made(TOKENS).shape == (4, VOCABULARY, LENGTH)
    torch.testing.assert_close(made(TOKENS).movedim(1, -1), reference(TOKENS), rtol=1e-4, atol=1e-5)
    for model in (made, reference):
        model(TOKENS).square().mean().backward()
    expected = reference.blocks[0].self_attn.in_proj_weight.grad.chunk(3)
    for name, gradient in zip(("query", "key", "value"), expected, strict=True):
        actual = made.get_submodule(f"block1_{name}").weight.grad
        torch.testing.assert_close(actual, gradient, rtol=1e-4, atol=1e-6)


def test_channels_stay_contiguous_and_are_not_moved():
    made, _ = module(gpt())
    assert [step.module for step in made.plan if "/" in step.module] == ["head/first"]
    observed = []
    for name, layer in made.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _, args, name=name: observed.append((name, args[0].is_contiguous())))
    assert made(TOKENS).stride(1) == 1
    assert len(observed) == 6 * LAYERS + 1 and all(contiguous for _, contiguous in observed)


def test_sequence_layers_between_convolutions():
    """Each layer reads channels in the order that it needs, whatever the previous layer returned."""
    net = Network("net", (8, 3))
    x = net.conv(net.input, "conv", 4, 3)
    y = net.relu(net.dense(x, "dense", 4))
    net.global_avg_pool(net.conv(net.layer_norm(net.add(x, y), "norm"), "last", 5, 1))
    made, arrays = module(net)
    x = torch.from_numpy(RNG.normal(size=(2, 8, 3)).astype(np.float32))
    a = {name: torch.from_numpy(array) for name, array in arrays.items()}
    reference = functional.conv1d(x.mT, a["conv/kernel"].permute(2, 1, 0), a["conv/bias"], padding=1).mT
    reference = reference + (reference @ a["dense/kernel"] + a["dense/bias"]).relu()
    reference = functional.layer_norm(reference, (4,), a["norm/gamma"], a["norm/beta"])
    reference = (reference @ a["last/kernel"][0] + a["last/bias"]).mean(1)
    torch.testing.assert_close(made(x), reference, rtol=1e-4, atol=1e-5)


def test_a_part_of_the_width_is_a_part_of_the_heads():
    """Tensor parallelism gives each device some of the heads."""
    attention = module(gpt())[0].get_submodule("block1_attention")
    complete = [torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    head = WIDTH // HEADS
    parts = [attention(*(x[..., i * head : (i + 1) * head] for x in complete)) for i in range(HEADS)]
    torch.testing.assert_close(torch.cat(parts, -1), attention(*complete))


def test_flops_are_those_that_pytorch_counts():
    """The count includes masked pairs."""
    net = gpt()
    made, _ = module(net)
    with torch.no_grad():
        assert count_flops(lambda: made(TOKENS)) == len(TOKENS) * net.forward_flops


def test_the_loss_is_the_mean_over_all_tokens():
    made, _ = module(gpt())
    outputs, labels = made(TOKENS), TOKENS.roll(-1, 1)
    reference = functional.cross_entropy(outputs, labels.long())
    torch.testing.assert_close(optimizer.select_loss("cross_entropy")(outputs, labels), reference)
    sums = evaluation._sum_classification(made, TorchBatch(TOKENS, labels, len(TOKENS)))
    assert sums is not None
    loss, right = sums.tolist()
    assert loss / len(TOKENS) == pytest.approx(reference.item(), rel=1e-5)
    assert right / len(TOKENS) == pytest.approx((outputs.argmax(1) == labels).float().mean().item())
