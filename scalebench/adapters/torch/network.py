"""A network of `workloads.network` as a torch module."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scalebench.adapters.torch.layers import CHANNELS_LAST, EITHER_ORDER, Moved, modules_of
from scalebench.workloads.datasets.images import PIXEL_SCALE
from scalebench.workloads.network import Network, Node

# No backward pass of these reads their output, so that it may be overwritten.
OVERWRITABLE = ("conv", "dense", "batch_norm", "add", "concat")


@dataclass(frozen=True)
class Step:
    """One module of the forward pass: what it reads, what its output is called, what nobody reads after it."""

    module: str
    inputs: tuple[str, ...]
    output: str
    spent: tuple[str, ...] = ()


class NetworkModule(nn.Module):
    """(samples, *input_shape) -> (samples, outputs); arrays are parameters and buffers of their node's module.

    Outputs for each position come as (samples, outputs, positions), as torch's losses take them. Inputs are float32,
    uint8 that becomes -1 .. 1 (see datasets.images), or whole numbers to look up. Images lie in memory channels last,
    as they come, or with `data_format` nchw channels first. Without `dropout` such nodes let everything through.
    Weights are uninitialised: see weights.load_weights.
    """

    def __init__(self, network: Network, data_format: str = "nhwc", dropout: bool = True) -> None:
        super().__init__()
        self.network = network
        self.images = len(network.input.shape) == 3
        self.channels_first = self.images and data_format == "nchw"
        self._shapes = {node.name: node.shape for node in network.nodes}
        self._last: set[str] = set()  # values whose channels stand behind the positions
        steps: list[Step] = []
        for node in _overwriting(_padding_inside(network.nodes)):
            if node.op == "dropout" and not dropout:
                node = dataclasses.replace(node, settings={"rate": 0.0})
            if node.op != "input":
                steps += self._add(node)
        steps += self._moved([network.output.name], to_last=False)[1]
        self.plan = _with_spent(steps)
        if self.images and not self.channels_first:
            self.to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.movedim(-1, 1) if inputs.dim() > 2 else inputs
        if self.channels_first:
            x = x.contiguous()
        values = {self.network.input.name: x.div(PIXEL_SCALE).sub(1) if x.dtype == torch.uint8 else x}
        for step in self.plan:
            values[step.output] = getattr(self, step.module)(*[values[name] for name in step.inputs])
            for name in step.spent:
                del values[name]
        return values[self.plan[-1].output]

    def keep_outputs(self, modules: Collection[str]) -> None:
        """From now on nobody overwrites what these give: for outputs that are views, which autograd either does not let
        be overwritten, or forgets the hooks of."""
        for step in self.plan:
            if not set(modules).isdisjoint(step.inputs):
                reader = getattr(self, step.module)
                for setting, off in (("inplace", False), ("overwrites", None)):
                    if hasattr(reader, setting):
                        setattr(reader, setting, off)

    def _add(self, node: Node) -> list[Step]:
        """Registers the modules of a node; the last one, which holds its arrays, bears its name."""
        to_last = node.inputs[0] in self._last if node.op in EITHER_ORDER else node.op in CHANNELS_LAST
        read, steps = self._moved(node.inputs, to_last)
        if to_last and len(node.shape) > 1:
            self._last.add(node.name)
        modules = modules_of(node, self._shapes[node.inputs[0]][:-1])
        names = [f"{node.name}/{i}" for i in range(len(modules) - 1)] + [node.name]
        for name, module in zip(names, modules, strict=True):
            self.add_module(name, module)
        inputs = [tuple(read)] + [(name,) for name in names[:-1]]
        return steps + [Step(name, read, name) for name, read in zip(names, inputs, strict=True)]

    def _moved(self, names: Sequence[str], to_last: bool) -> tuple[list[str], list[Step]]:
        """What these values are called where their channels stand last, or not, and the steps that bring them there."""
        called, steps = [], []
        for name in names:
            moved = name
            if len(self._shapes[name]) > 1 and (name in self._last) != to_last:
                moved = f"{name}/{'last' if to_last else 'first'}"
                if moved not in self._modules:
                    self.add_module(moved, Moved(to_last))
                    steps.append(Step(moved, (name,), moved))
            called.append(moved)
        return called, steps


def _padding_inside(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with each zero_pad that a convolution alone reads drawn into it: no padded copy is made."""
    readers = Counter(name for node in nodes for name in node.inputs)
    by_name = {node.name: node for node in nodes}
    made, gone = [], set()
    for node in nodes:
        before = by_name[node.inputs[0]] if node.op == "conv" else None
        if before is not None and before.op == "zero_pad" and readers[before.name] == 1:
            both = zip(node.settings["pads"], before.settings["pads"], strict=True)
            pads = tuple((a[0] + b[0], a[1] + b[1]) for a, b in both)
            node = dataclasses.replace(node, inputs=before.inputs, settings={**node.settings, "pads": pads})
            gone.add(before.name)
        made.append(node)
    return [node for node in made if node.name not in gone]


def _overwriting(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with each relu and sum told which input it may overwrite: what it is the only reader of."""
    readers = Counter(name for node in nodes for name in node.inputs)
    free = {node.name for node in nodes if node.op in OVERWRITABLE and readers[node.name] == 1}
    made = []
    for node in nodes:
        place = next((i for i, name in enumerate(node.inputs) if name in free), None)
        if node.op in ("relu", "add") and place is not None:
            node = dataclasses.replace(node, settings={**node.settings, "overwrites": place})
        made.append(node)
    return made


def _with_spent(steps: Sequence[Step]) -> list[Step]:
    """The steps, each with the values that it is the last to read."""
    seen = {steps[-1].output}
    made = []
    for step in reversed(steps):
        spent = tuple(dict.fromkeys(name for name in step.inputs if name not in seen))
        seen.update(step.inputs)
        made.append(dataclasses.replace(step, spent=spent))
    return made[::-1]
