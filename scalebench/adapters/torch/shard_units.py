"""Which layers of a network are sharded, gathered and freed together."""

from __future__ import annotations

from torch import nn

from scalebench.adapters.torch.network import NetworkModule


def units(model: NetworkModule, least_bytes: float) -> list[list[nn.Module]]:
    """Layers with weights in the order of the forward pass, in groups of at least so many bytes of weights; what is
    left at the end goes to the last group. One group of all where layers share a weight."""
    layers = [getattr(model, step.module) for step in model.plan]
    layers = [layer for layer in layers if next(layer.parameters(), None) is not None]
    if sum(len(list(layer.parameters())) for layer in layers) > len(list(model.parameters())):
        return [layers]
    found: list[list[nn.Module]] = []
    open_bytes: float | None = None  # of the last group; None: it is full
    for layer in layers:
        if open_bytes is None:
            found.append([])
            open_bytes = 0.0
        found[-1].append(layer)
        open_bytes += sum(one.numel() * one.element_size() for one in layer.parameters())
        if open_bytes >= least_bytes:
            open_bytes = None
    if open_bytes is not None and len(found) > 1:
        rest = found.pop()
        found[-1] += rest
    return found
