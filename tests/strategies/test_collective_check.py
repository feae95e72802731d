"""What one rank cannot do, none does."""

import pytest

from scalebench.strategies.base import NotMeasured, create_on_all_ranks, not_measured_if_unsupported


def with_others(failed):
    """Sums over ranks of which so many others failed."""
    return lambda values: [values[0] + failed]


def fails():
    raise MemoryError


def test_what_one_rank_cannot_do_none_does():
    assert create_on_all_ranks(lambda: 3, with_others(0.0), (MemoryError,), "no room") == 3
    for make, others in ((lambda: 3, 1.0), (fails, 0.0), (fails, 2.0)):
        with pytest.raises(NotMeasured, match=r"^no room$"):
            create_on_all_ranks(make, with_others(others), (MemoryError,), "no room")
    with pytest.raises(MemoryError):
        create_on_all_ranks(fails, with_others(0.0), (OSError,), "no room")


def test_operations_that_a_library_does_not_support():
    error = RuntimeError("ProcessGroupX does not support gather\nat somewhere.cc")
    reason = not_measured_if_unsupported(error, "x of PyTorch 2", "gather")
    assert str(reason) == "x of PyTorch 2 has no gather: ProcessGroupX does not support gather"
    assert (
        str(not_measured_if_unsupported(NotImplementedError(), "x", "gather")) == "x has no gather: NotImplementedError"
    )
    with pytest.raises(RuntimeError, match="peer closed"):
        not_measured_if_unsupported(RuntimeError("Connection closed by peer closed"), "x", "gather")
