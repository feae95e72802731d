"""Functions that users may name as model.torch: modules that train, and functions with one error each."""

import random
import sys
import threading
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Series(nn.Module):
    """(n, 3, 200) -> (n, outputs), with features of users' modules: `view`, frozen and tied weights, a counter."""

    def __init__(self, width=4, outputs=2, rate=0.0):
        super().__init__()
        self.first = nn.Conv1d(3, width, 5, stride=5)
        self.norm = nn.BatchNorm1d(width)
        self.square = nn.Linear(width, width)
        self.again = nn.Linear(width, width)
        self.again.weight = self.square.weight
        self.dropout = nn.Dropout(rate)
        self.last = nn.Linear(width * 40, outputs)
        self.scale = nn.Parameter(torch.tensor([1.0]), requires_grad=False)
        self.order = nn.Parameter(torch.arange(width), requires_grad=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        flat = x.view(len(x), -1)  # as samples without an axis of channels would not allow
        x = functional.relu(self.norm(self.first(flat.view(x.shape)))) * self.scale
        x = self.again(self.square(x.movedim(1, 2))).movedim(1, 2)[:, self.order]
        if self.training:
            self.calls += 1
        return self.last(self.dropout(x.flatten(1)))


class Images(nn.Module):
    """(n, 3, 32, 32) -> (n, classes)."""

    def __init__(self, classes=10, view=True):
        super().__init__()
        self.view = view
        self.first, self.last = nn.Conv2d(3, 8, 3, stride=2), nn.Linear(8 * 15 * 15, classes)

    def forward(self, x):
        x = functional.relu(self.first(x))
        return self.last(x.view(len(x), -1) if self.view else x.flatten(1))


class Tensors(nn.Module):
    """(n, 3, 200) -> (n, 2, 3): targets of two axes."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(600, 6)

    def forward(self, x):
        return self.last(x.flatten(1)).reshape(-1, 2, 3)


class Changed(Series):
    def __init__(self, change, **options):
        super().__init__(**options)
        self.change = change

    def forward(self, x):
        return self.change(self, super().forward(x))


class Plain(nn.Module):
    """Two dense layers without batch statistics, which would differ between shards."""

    def __init__(self, outputs=2):
        super().__init__()
        self.first, self.last = nn.Linear(600, 16), nn.Linear(16, outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.reshape(len(x), -1))))


class Idle(Plain):
    """A module with a layer on which no output depends."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(3, 3)


class Stateful(Plain):
    """A module with state between its batches in plain attributes: the first batch's mean, a memory with one row per
    sample, and `how` it cannot be copied: by a lock, or by a function that leads back to the original."""

    def __init__(self, how=""):
        super().__init__()
        self.mean = None
        self.memory = None
        if how == "lock":
            self.lock = threading.Lock()
        if how == "closure":
            self.last.register_forward_pre_hook(lambda layer, inputs: (torch.tanh(self.first.bias) + inputs[0],))

    def forward(self, x):
        if self.mean is None:
            self.mean = x.detach().mean(0)
        outputs = super().forward(x - self.mean)
        self.memory = outputs.detach() if self.memory is None else (self.memory + outputs.detach()) / 2
        return outputs + self.memory


class TwoHeads(Plain):
    """Trains another head than it evaluates; `layers` are in a plain list, so that they are not part of it."""

    def __init__(self, layers=0):
        super().__init__()
        self.final = nn.Linear(16, 2)
        self.layers = [nn.Linear(16, 16) for _ in range(layers)]

    def forward(self, x):
        hidden = self.first(x.flatten(1).requires_grad_())  # as for a derivative with respect to the inputs
        for layer in self.layers:
            hidden = layer(hidden)
        return (self.last if self.training else self.final)(hidden)


class Recomputed(Plain):
    """Computes its last layer again in the backward pass, in PyTorch's old way; one more gets no gradient."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(16, 2)

    def forward(self, x):
        return checkpoint(self.last, torch.tanh(self.first(x.flatten(1))), use_reentrant=True)


class Noisy(nn.Module):
    """All layers of torch.nn that have dropout."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.memory = nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
        self.drop = nn.ModuleList([nn.Dropout1d(0.5), nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5)])
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(20, 2)

    def forward(self, x):
        x = functional.pad(x[:, :, :5], (0, 0, 0, 1)).movedim(1, 2)
        x = self.layer(self.memory(self.attention(x, x, x)[0])[0])
        for drop in self.drop:
            x = drop(x)
        return self.last(self.norm(x.movedim(1, 2)).flatten(1))


class Transformer(nn.Module):
    """A layer whose fused form for evaluation is not counted, over 6 positions of 4 numbers."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Linear(24, 2)

    def forward(self, x):
        return self.last(self.layer(x.flatten(1)[:, :24].reshape(-1, 6, 4)).flatten(1))


class Uncountable(Plain):
    """A module that does not work under a mode that watches its operators."""

    def forward(self, x):
        if torch._C._len_torch_dispatch_stack():
            raise TypeError("no operators to watch")
        return super().forward(x)


def seeded():
    torch.manual_seed(1)
    np.random.seed(1)
    return Plain()


def drawn_elsewhere():
    """Draw weights from numpy's and Python's own generators."""
    model = Plain()
    with torch.no_grad():
        model.last.weight.copy_(torch.from_numpy(np.random.normal(size=(2, 16))))
        model.last.bias.copy_(torch.tensor([random.random(), random.random()]))
    return model


def from_file(path):
    model = Plain()
    model.load_state_dict(torch.load(Path(path), weights_only=True))
    return model.eval()  # as one who only wants to use it


def unseeded():
    model = Plain()
    with torch.no_grad():
        model.last.bias.copy_(torch.from_numpy(np.random.default_rng().normal(size=2)))
    return model


def fails():
    raise KeyError("weights of last year")


def on_meta():
    with torch.device("meta"):
        return Plain()


FAULTS = {
    "leaves": lambda: sys.exit("nothing to do"),
    "loader": lambda: DataLoader([1]),
    "the_class": lambda: Plain,
    "wrapped": lambda: nn.DataParallel(Plain()),
    "lazy": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(2)),
    "double": lambda: Plain().double(),
    "spectrum": lambda: nn.ParameterDict({"spectrum": torch.ones(2, dtype=torch.complex64)}),
    "frozen": lambda: Plain().requires_grad_(False),
    "on_meta": on_meta,
    "numpy_noise": lambda: Changed(lambda module, x: x * np.random.uniform()),
    "python_noise": lambda: Changed(lambda module, x: x * random.random()),
    "functional_dropout": lambda: Changed(lambda module, x: functional.dropout(x, 0.5, module.training)),
    "two_outputs": lambda: Changed(lambda module, x: (x, x) if module.calls > 1 else x),  # the check makes one call
    "two_samples": lambda: Changed(lambda module, x: x + torch.zeros(2, 2) if module.calls > 1 else x),
    "routed": lambda: Changed(lambda module, x: x.detach() * module.last.bias if module.calls > 1 else x),
    "no_evaluation": lambda: Changed(lambda module, x: x if module.training else (x, x)),
    "detached": lambda: Changed(lambda module, x: x.detach()),
    "numbers": lambda: Changed(lambda module, x: x.argmax(1, keepdim=True).expand(-1, 2)),
    "table": lambda: Changed(lambda module, x: {"logits": x}),
}


def nothing_returned():
    """Return nothing, as a function does that forgets to."""


def fault(kind):
    return FAULTS[kind]()


def too_large():
    raise MemoryError


instance = Plain()
NUMBER = 3


class Caching(Series):
    """Keeps a factor for each size of a batch, in the manner of position encodings that are computed once."""

    def __init__(self):
        super().__init__()
        self.factors = {}

    def forward(self, x):
        return super().forward(x) * self.factors.setdefault(len(x), x.new_ones(1) * 2)


class Block(nn.Module):
    """(n, length, width) -> the same."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.dense(self.norm(x))


class Blocks(nn.Module):
    """(n, 3, 200) -> (n, 2), with weights inside of its blocks and outside."""

    def __init__(self, depth=3, width=8):
        super().__init__()
        self.embed, self.head = nn.Linear(3, width), nn.Linear(width, 2)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        x = self.embed(x[:, :, ::20].transpose(1, 2))
        for block in self.blocks:
            x = self.apply_block(block, x)
        return self.head(x.mean(1))

    def apply_block(self, block, x):
        return block(x)


class UncalledBlocks(Blocks):
    """It uses its blocks by their method, which runs no hooks."""

    def apply_block(self, block, x):
        return block.forward(x)
