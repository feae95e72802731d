"""Tensor parallelism passes the contract, with one, two and three processes."""

from __future__ import annotations

import pytest

from scalebench.testing import StrategyContract


@pytest.mark.real
class TestTensorParallel(StrategyContract):
    strategy = "tensor_parallel"
    bytes_sent = 0.0  # activations, however many parameters there are


@pytest.mark.slow
@pytest.mark.real
class TestTensorParallel1(StrategyContract):
    strategy = "tensor_parallel"
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestTensorParallel3(StrategyContract):
    strategy = "tensor_parallel"
    gpus = 3
    bytes_sent = 0.0
