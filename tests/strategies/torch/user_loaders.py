"""Functions that users may name as dataset.loader, and modules for what they give."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

SAMPLES = 50


class Curves(Dataset):
    """Samples whose first value is their number; `broken` cannot be read."""

    def __init__(self, broken=-1):
        self.broken = broken

    def __len__(self):
        return SAMPLES

    def __getitem__(self, row):
        if row == self.broken:
            raise ValueError(f"sample {row} is broken")
        return np.full((3, 200), row, np.float32), np.ones(2)


class Stream(IterableDataset):
    def __iter__(self):
        return (Curves()[row] for row in range(SAMPLES))


def from_workers(rank, world_size, batch, seed, workers=2):
    rows = Subset(Curves(), range(rank, SAMPLES, world_size))
    return DataLoader(rows, batch_size=batch, num_workers=workers, persistent_workers=workers > 0)


def same(rank, world_size, batch, seed):
    return DataLoader(Curves(), batch_size=batch)


def stream(rank, world_size, batch, seed):
    return DataLoader(Stream(), batch_size=batch)


def generator(rank, world_size, batch, seed):
    """Dicts of arrays, each time anew."""
    for start in range(0, SAMPLES, batch):
        rows = np.arange(start, min(start + batch, SAMPLES))
        yield {"numbers": np.repeat(rows[:, None], 5, 1) * 1.0, "labels": rows, "names": ["a"] * len(rows)}


def pairs(rank, world_size, batch, seed, shape=(3, 200), targets=(2,), kind="float32"):
    while True:
        yield [torch.ones(batch, *shape), torch.ones(batch, *targets, dtype=getattr(torch, kind))]


def broken(rank, world_size, batch, seed):
    return DataLoader(Curves(broken=SAMPLES - 1), batch_size=batch, num_workers=2)


def nothing(rank, world_size, batch, seed):
    pass


def empty(rank, world_size, batch, seed):
    return []


def small(rank, world_size, batch, seed):
    return DataLoader(Curves(), batch_size=7)


def no_arguments():
    return []


class OneDict(nn.Module):
    """Computes its loss from a dict with more than it needs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, batch):
        assert batch["names"][0] == "a"
        return {"loss": (self.layer(batch["numbers"])[:, 0] - batch["labels"]).square().mean()}


class Graphs:
    """The nodes of the graphs of a batch, and the graph of each node, in no container that anybody knows."""

    def __init__(self, nodes, graph):
        self.nodes, self.graph, self.num_graphs = nodes, graph, int(graph[-1]) + 1

    def to(self, device):
        return Graphs(self.nodes.to(device), self.graph.to(device))


def ragged(rank, world_size, batch, seed, kind="object"):
    """Batches of samples of 1 to 3 rows, the last batch smaller: as an object, a dict, a pair of tuples, or a tuple
    with a tensor for each sample."""
    for start in range(0, SAMPLES, batch):
        numbers = torch.arange(start, min(start + batch, SAMPLES))
        sizes = numbers % 3 + 1
        nodes = numbers.repeat_interleave(sizes)[:, None].repeat(1, 5).float()
        graph = torch.arange(len(numbers)).repeat_interleave(sizes)
        if kind == "object":
            yield Graphs(nodes, graph), numbers.float()
        elif kind == "dict":
            yield {"nodes": nodes, "graph": graph, "targets": numbers.float()}
        elif kind == "tuple":
            yield (nodes, graph), numbers.float()
        else:
            yield nodes.split(sizes.tolist()), tuple(numbers.float())


class NodeSums(nn.Module):
    """A number for each sample of `ragged`, from the sum of its rows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, first, graph=None):
        if isinstance(first, list):
            return torch.stack([self.layer(rows).sum() for rows in first])
        nodes, graph = (first.nodes, first.graph) if graph is None else (first, graph)
        return torch.zeros(int(graph[-1]) + 1).index_add_(0, graph, self.layer(nodes)[:, 0])


class NodeSumsOfDict(NodeSums):
    def forward(self, batch):
        return super().forward(batch["nodes"], batch["graph"])


def squares(outputs, targets):
    targets = targets["targets"] if isinstance(targets, dict) else targets
    return (outputs - (torch.stack(targets) if isinstance(targets, tuple) else targets)).square().mean() / SAMPLES**2


def dataset(size, seed):
    return Curves()
