"""Batches of a user's DataLoader, whatever they are made of: how many samples they hold, their tensors, and whether
ranks draw the same."""

from __future__ import annotations

import copy
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from scalebench.workloads.records import TOKEN_KEY

MAX_DEPTH = 4  # of containers in a batch
CHECKED_VALUES = 1 << 16  # of a tensor, for its checksum


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


def list_counts(batch: Any, depth: int = 0) -> Iterator[int]:
    """Yield what may be the number of samples of a batch: its graphs, and the lengths of its lists and first axes, in
    an order that depends on its structure alone."""
    shape = getattr(batch, "shape", None)
    if isinstance(graphs := getattr(batch, "num_graphs", None), int):
        yield graphs
    if shape is not None:
        yield from shape[:1]
    elif depth < MAX_DEPTH:
        yield from [len(batch)] if isinstance(batch, (list, tuple)) else []
        for part in _parts(batch):
            yield from list_counts(part, depth + 1)


def count_tokens(batch: Any) -> int | None:
    """Return the tokens of a batch, padding included; None where it has none by their usual name."""
    tokens = batch.get(TOKEN_KEY) if _is_mapping(batch) else None
    return None if tokens is None or not hasattr(tokens, "numel") else int(tokens.numel())


def copy_containers(batch: Any) -> Any:
    """Return the batch with new containers and the same tensors: a program may take keys out of its batches."""
    return map_leaves(lambda leaf: leaf, batch)


def map_leaves(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return the batch in new containers of the same classes, with `function` applied to what is not a container."""
    if _is_mapping(batch):
        fresh = copy.copy(batch)  # of the same class
        for key in list(batch.keys()):
            fresh[key] = map_leaves(function, batch[key])
        return fresh
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_leaves(function, part) for part in batch))
    if type(batch) in (list, tuple):
        return type(batch)(map_leaves(function, part) for part in batch)
    return function(batch)


def versions(batch: Any) -> list[int]:
    """Return the version of each tensor, which grows when it is changed in place."""
    return [tensor._version for tensor in list_tensors(batch)]


def checksum(batch: Any) -> int:
    """Return a checksum of the first tensor with more than one value; 0 where there is none."""
    torch = sys.modules["torch"]
    for tensor in list_tensors(batch):
        if tensor.numel() > 1:
            values = tensor.detach().reshape(-1)[:CHECKED_VALUES].cpu().contiguous()
            return zlib.crc32(values.view(torch.uint8).numpy().tobytes())
    return 0


def remark_same(own: float, broadcast: Callable[[float], float], rank: int, advice: str) -> dict[str, str]:
    """Return the flag of ranks whose first batches are those of rank 0, by their checksums; called on all ranks."""
    if broadcast(own) != own or not own or not rank:
        return {}
    return {"same_batches": f"ranks 0 and {rank} {advice}"}


def list_tensors(batch: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors of a batch."""
    if hasattr(batch, "requires_grad") and hasattr(batch, "numel"):
        yield batch
    elif depth < MAX_DEPTH:
        for part in _parts(batch):
            yield from list_tensors(part, depth + 1)


def _is_mapping(batch: Any) -> bool:
    return hasattr(batch, "keys") and hasattr(batch, "__getitem__")


def _parts(batch: Any) -> Any:
    if _is_mapping(batch):
        return [batch[key] for key in list(batch.keys())]
    return batch if isinstance(batch, (list, tuple)) else ()
