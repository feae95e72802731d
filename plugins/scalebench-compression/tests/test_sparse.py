"""What travels of a vector, and what waits."""

from __future__ import annotations

import pytest
import torch
from scalebench_compression import sparse
from torch import Tensor


def exchange(vectors: list[Tensor], count: int) -> Tensor:
    """The mean over ranks of what each of them sends; what it sent becomes 0 in its vector."""
    messages = []
    for vector in vectors:
        places = sparse.select_largest(vector, count)
        messages.append(sparse.pack(vector, places))
        vector[places] = 0
    return sparse.average_messages(messages, count, len(vectors), out=torch.empty_like(vectors[0]))


def test_the_share_is_rounded_up_and_never_nothing() -> None:
    counts = {(1, 0.01): 1, (100, 0.01): 1, (101, 0.01): 2, (7, 1.0): 7, (3, 1e-9): 1}
    assert {case: sparse.sent_count(*case) for case in counts} == counts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_message_there_and_back(dtype: torch.dtype, count: int) -> None:
    vector = torch.tensor([1, -5, 0, 4, 3], dtype=dtype)
    message = sparse.pack(vector, sparse.select_largest(vector, count))
    assert (message.dtype, len(message)) == (torch.uint8, count * (4 + dtype.itemsize))
    places, entries = sparse.unpack(message, count, dtype)
    assert dict(zip(places.tolist(), entries.tolist(), strict=True)) == dict([(1, -5), (3, 4), (4, 3)][:count])


def test_what_does_not_travel_waits() -> None:
    """Nothing is lost and nothing is sent twice."""
    gradient, residual, arrived = torch.tensor([8.0, 4.0, 2.0, 1.0]), torch.zeros(4), torch.zeros(4)
    for _ in range(5):
        residual += gradient
        arrived += exchange([residual], 1)
    torch.testing.assert_close(arrived + residual, 5 * gradient)
    assert (residual > 0).any()


def test_numbers_that_are_none_travel() -> None:
    """A training that has gone wrong shows it, as without compression."""
    assert exchange([torch.tensor([1.0, float("nan"), 2.0])], 1).isnan().tolist() == [False, True, False]


def test_the_residual_follows_its_parameters_into_other_buckets() -> None:
    """As DistributedDataParallel makes them anew after the first update: in another order, and cut elsewhere."""
    a, b, c = (torch.zeros(size) for size in (2, 3, 1))
    residual = sparse.Residual()
    residual.of(0, [a, b], torch.zeros(5)).copy_(torch.tensor([1.0, 2, 3, 4, 5]))
    residual.of(1, [c], torch.zeros(1)).fill_(6.0)
    assert residual.of(0, [c, b], torch.zeros(4)).tolist() == [6, 3, 4, 5]
    assert residual.of(1, [a], torch.zeros(2)).tolist() == [1, 2]
    residual.of(1, [a], torch.zeros(2)).add_(1)
    assert residual.of(1, [a], torch.zeros(2)).tolist() == [2, 3]
