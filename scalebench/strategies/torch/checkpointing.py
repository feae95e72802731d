"""Activation checkpointing (`train.activation_checkpointing`): a part of the network keeps its input for the backward
pass, which computes the activations within the part a second time.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost": about the square root of the number of layers as
parts needs the least memory, for one more forward pass.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scalebench.strategies.base import Unsupported

_thread = threading.local()


def is_recomputing() -> bool:
    """Return whether this thread computes activations a second time, when moving statistics have to stay as they
    are."""
    return getattr(_thread, "recomputing", False)


@contextmanager
def _recomputation() -> Iterator[None]:
    _thread.recomputing = True
    try:
        yield
    finally:
        _thread.recomputing = False


def run_checkpointed(run: Callable[[Tensor], Tensor], x: Tensor, draws_numbers: bool) -> Tensor:
    """Return run(x), of which only x is kept for the backward pass. `draws_numbers`: `run` has dropout, for which the
    state of the generators is kept."""
    return checkpoint(
        run,
        x,
        use_reentrant=False,
        preserve_rng_state=draws_numbers,
        context_fn=lambda: (nullcontext(), _recomputation()),
    )


def choose_ends(cuts: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return where parts of a forward pass end, but for the last one: about the square root of the number of `cuts`,
    after which a single value is read, such that the parts hold about equally many activations.

    `sizes` has the elements that each operation writes.
    """
    parts, sums = math.isqrt(len(cuts) + 1), list(itertools.accumulate(sizes))
    return sorted({min(cuts, key=lambda cut: abs(sums[cut] - sums[-1] * part / parts)) for part in range(1, parts)})


def checkpoint_user_module(module: nn.Module) -> None:
    """Switch on checkpointing within a user's module, which alone knows its parts. Raises Unsupported where it has no
    such switch, whose name is that of Hugging Face's models."""
    if not hasattr(module, "gradient_checkpointing_enable"):
        raise Unsupported(
            f"train.activation_checkpointing: {type(module).__name__} has no method gradient_checkpointing_enable, by "
            "which a module of yours checkpoints its own parts"
        )
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
