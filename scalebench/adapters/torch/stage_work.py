"""How long forward and backward of a part of a model take by themselves."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor, nn

REPEATS = 5
MOST_S = 10.0  # after which there are no more repeats


def median_s(action: Callable[[], None], synchronize: Callable[[], None], repeats: int = REPEATS) -> float:
    """Seconds of an action, once it has been warmed up."""
    found: list[float] = []
    action()
    while len(found) < repeats and sum(found) < MOST_S:
        synchronize()
        start = time.perf_counter()
        action()
        synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


class Work:
    """Forward and backward of the micro-batches of one update through one stage, in the order in which the schedule
    has them: so many forward passes go ahead, and then they take turns."""

    def __init__(
        self,
        module: nn.Module,
        inputs: list[Tensor],
        ahead: int,
        loss: Callable[[int, Tensor], Tensor] | None = None,
    ) -> None:
        """`loss`: what is differentiated of a micro-batch's outputs; None: they are, with ones for gradients."""
        self._module, self._inputs, self._ahead, self._loss = module, inputs, ahead, loss

    def __call__(self) -> None:
        self._module.zero_grad()
        begun: deque[Tensor] = deque()
        for number, inputs in enumerate(self._inputs):
            inputs.grad = None
            outputs = self._module(inputs)
            begun.append(outputs if self._loss is None else self._loss(number, outputs))
            if len(begun) == self._ahead:
                self._backward(begun.popleft())
        while begun:
            self._backward(begun.popleft())

    def _backward(self, outputs: Tensor) -> None:
        if outputs.requires_grad:  # not those of layers without weights that read samples
            outputs.backward(torch.ones_like(outputs))
