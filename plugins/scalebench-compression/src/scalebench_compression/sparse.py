"""Top-k sparsification with error feedback: the largest entries of a vector travel, the others wait.

Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

INDEX = torch.int32  # a bucket of 2^31 entries would be 8 GiB


def kept_of(entries: int, share: float) -> int:
    """How many of so many entries travel: at least one."""
    return max(1, math.ceil(share * entries))


def largest(vector: Tensor, count: int) -> Tensor:
    """Places of the entries of largest size, NaN first, as INDEX; in no particular order."""
    return torch.topk(vector.abs(), count, sorted=False).indices.to(INDEX)


def packed(vector: Tensor, places: Tensor) -> Tensor:
    """One message: the places and then the entries there, as bytes."""
    return torch.cat([places.view(torch.uint8), vector[places].view(torch.uint8)])


def unpacked(message: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(places, entries). Copies: a part of a message may begin where no number can lie."""
    border = count * INDEX.itemsize
    return message[:border].clone().view(INDEX), message[border:].clone().view(dtype)


def averaged(messages: Iterable[Tensor], count: int, ranks: int, out: Tensor) -> Tensor:
    """The mean over the ranks of what their messages say, and 0 where none says anything, in `out`.

    Rank by rank, so that the sums are the same to the last bit on every rank, also on GPUs.
    """
    out.zero_()
    for message in messages:
        places, entries = unpacked(message, count, out.dtype)
        out.index_add_(0, places, entries)
    return out.div_(ranks)


class Residual:
    """What has not been sent yet of each parameter's gradient.

    Kept by parameter and not by bucket: buckets are made anew after the first update, in another order.
    """

    def __init__(self) -> None:
        self._flat: dict[int, Tensor] = {}  # by bucket
        self._owners: dict[int, tuple[int, ...]] = {}
        self._of: dict[int, Tensor] = {}  # part of a flat one, by parameter

    def of(self, index: int, parameters: Sequence[Tensor], like: Tensor) -> Tensor:
        """That of a bucket, to be changed in place; zeros at first. `parameters` lie in `like` one after the other."""
        owners = tuple(map(id, parameters))
        if self._owners.get(index) != owners:
            sizes = [one.numel() for one in parameters]
            parts = [self._of.get(id(one), like.new_zeros(one.numel())) for one in parameters]
            self._flat[index], self._owners[index] = torch.cat(parts), owners
            self._of |= dict(zip(owners, self._flat[index].split(sizes), strict=True))
        return self._flat[index]
