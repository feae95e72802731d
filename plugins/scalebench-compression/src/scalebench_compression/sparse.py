"""Top-k sparsification with error feedback: the largest entries of a vector are sent, the others are kept for later.

Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

INDEX = torch.int32  # a bucket of 2^31 entries would be 8 GiB


def sent_count(entries: int, share: float) -> int:
    """Return the number of entries to send, at least one."""
    return max(1, math.ceil(share * entries))


def select_largest(vector: Tensor, count: int) -> Tensor:
    """Return the indices (INDEX) of the entries of largest magnitude, NaN first, in no particular order."""
    return torch.topk(vector.abs(), count, sorted=False).indices.to(INDEX)


def pack(vector: Tensor, places: Tensor) -> Tensor:
    """Pack the indices and then their entries into one message of bytes."""
    return torch.cat([places.view(torch.uint8), vector[places].view(torch.uint8)])


def unpack(message: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return (indices, entries) as copies, since a part of a message may not be aligned."""
    border = count * INDEX.itemsize
    return message[:border].clone().view(INDEX), message[border:].clone().view(dtype)


def average_messages(messages: Iterable[Tensor], count: int, ranks: int, out: Tensor) -> Tensor:
    """Write the mean of the ranks' messages to `out`, 0 for entries that no rank sent.

    Messages are added rank by rank, so that the sums are bitwise equal on every rank, also on GPUs.
    """
    out.zero_()
    for message in messages:
        places, entries = unpack(message, count, out.dtype)
        out.index_add_(0, places, entries)
    return out.div_(ranks)


class Residual:
    """The parts of each parameter's gradient that are not sent yet.

    They are kept by parameter and not by bucket, since buckets are rebuilt in another order after the first step.
    """

    def __init__(self) -> None:
        self._flat: dict[int, Tensor] = {}  # by bucket
        self._owners: dict[int, tuple[int, ...]] = {}
        self._of: dict[int, Tensor] = {}  # part of a flat one, by parameter

    def of(self, index: int, parameters: Sequence[Tensor], like: Tensor) -> Tensor:
        """Return the residual of a bucket, to be changed in place; initially zeros. `like` is the bucket's buffer, with
        `parameters` one after the other."""
        owners = tuple(map(id, parameters))
        if self._owners.get(index) != owners:
            sizes = [one.numel() for one in parameters]
            parts = [self._of.get(id(one), like.new_zeros(one.numel())) for one in parameters]
            self._flat[index], self._owners[index] = torch.cat(parts), owners
            self._of |= dict(zip(owners, self._flat[index].split(sizes), strict=True))
        return self._flat[index]
