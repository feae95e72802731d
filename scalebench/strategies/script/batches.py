"""Batches of a user's DataLoader, whatever they are made of: how many samples they hold, and how one is used again."""

from __future__ import annotations

import copy
import sys
import zlib
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 4  # of containers in a batch
CHECKED_VALUES = 1 << 16  # of a tensor, for its checksum
TOKEN_KEY = "input_ids"


def count_samples(batch: Any, depth: int = 0) -> int:
    """Return the samples of a batch: the length of its first tensor or array along the first axis; 0 where it has
    none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(graphs := getattr(batch, "num_graphs", None), int):  # of torch_geometric
        return graphs
    if depth < MAX_DEPTH:
        if _is_mapping(batch) and TOKEN_KEY in batch:
            return count_samples(batch[TOKEN_KEY], depth + 1)
        for part in _parts(batch):
            if isinstance(part, (str, bytes)):
                return len(batch)
            if samples := count_samples(part, depth + 1):
                return samples
    return len(batch) if depth == 0 and isinstance(batch, (list, tuple)) else 0


def count_tokens(batch: Any) -> int | None:
    """Return the tokens of a batch, padding included; None where it has none by their usual name."""
    tokens = batch.get(TOKEN_KEY) if _is_mapping(batch) else None
    return None if tokens is None or not hasattr(tokens, "numel") else int(tokens.numel())


def copy_containers(batch: Any) -> Any:
    """Return the batch with new containers and the same tensors: a program may take keys out of its batches."""
    if _is_mapping(batch):
        fresh = copy.copy(batch)  # of the same class
        for key in list(batch.keys()):
            fresh[key] = copy_containers(batch[key])
        return fresh
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(copy_containers, batch))
    return type(batch)(map(copy_containers, batch)) if type(batch) in (list, tuple) else batch


def versions(batch: Any) -> list[int]:
    """Return the version of each tensor, which grows when it is changed in place."""
    return [tensor._version for tensor in _tensors(batch)]


def checksum(batch: Any) -> int:
    """Return a checksum of the first tensor with more than one value; 0 where there is none."""
    torch = sys.modules["torch"]
    for tensor in _tensors(batch):
        if tensor.numel() > 1:
            values = tensor.detach().reshape(-1)[:CHECKED_VALUES].cpu().contiguous()
            return zlib.crc32(values.view(torch.uint8).numpy().tobytes())
    return 0


def _tensors(batch: Any, depth: int = 0) -> Iterator[Any]:
    if hasattr(batch, "_version") and hasattr(batch, "numel"):
        yield batch
    elif depth < MAX_DEPTH:
        for part in _parts(batch):
            yield from _tensors(part, depth + 1)


def _is_mapping(batch: Any) -> bool:
    return hasattr(batch, "keys") and hasattr(batch, "__getitem__")


def _parts(batch: Any) -> Any:
    if _is_mapping(batch):
        return [batch[key] for key in list(batch.keys())]
    return batch if isinstance(batch, (list, tuple)) else ()
