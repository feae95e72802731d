"""A small transformer on tokens: batches are dicts of integers, the loss is a function, the optimizer is its own.

scalebench strategy=bare_torch,ddp,lightning_ddp,fsdp gpus=1,2 model=custom \\
    model.torch=token_transformer:build model.loss=token_transformer:loss \\
    dataset=custom dataset.builder=token_transformer:samples
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LENGTH = 128, 32


class Transformer(nn.Module):
    """(n, 32) tokens -> (n, 32, 128) scores of the next ones."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        block = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers)
        self.scores = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids, attention_mask):
        causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=input_ids.device).triu(1)
        x = self.tokens(input_ids) + self.positions
        return self.scores(self.blocks(x, mask=causal, src_key_padding_mask=~attention_mask))


def build(width=64, layers=2):
    """The module, and the optimizer that trains it."""
    model = Transformer(width, layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def loss(outputs, labels):
    """Mean over the tokens that count: those of padding have the label -100."""
    return functional.cross_entropy(outputs.flatten(0, 1), labels["next"].flatten(), ignore_index=-100)


def samples(size, seed):
    """Sequences in which each token follows from the one before it, in two ways."""
    random = np.random.default_rng(seed)
    tokens = np.empty((size, LENGTH + 1), np.int64)
    tokens[:, 0] = random.integers(VOCABULARY, size=size)
    for position in range(LENGTH):
        tokens[:, position + 1] = (5 * tokens[:, position] + random.integers(2, size=size)) % VOCABULARY
    inputs = {"input_ids": tokens[:, :-1], "attention_mask": np.ones((size, LENGTH), bool)}
    return inputs, {"next": tokens[:, 1:]}
