"""For pytest, which finds it by an entry point: contracts work in any test file, without a conftest.

Every pytest of an environment that has scalebench loads this, so it imports nothing of it.
"""

from __future__ import annotations

import sys

import pytest

CONTRACT_MODULES = ("strategy_contract", "launch", "fault_contract", "model_contract", "dataset_contract")
MARKERS = {
    "contract": "a test of a scalebench contract: starts worker processes (deselect with -m 'not contract')",
    "faults": "a test of scalebench's FaultContract: some of its runs hang until they are ended",
}

_modules = [f"scalebench.testing.{name}" for name in CONTRACT_MODULES]
pytest.register_assert_rewrite(*(name for name in _modules if name not in sys.modules))  # else it would warn


def pytest_configure(config: pytest.Config) -> None:
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what comes from a contract, by the module that has the test."""
    for item in items:
        module = getattr(getattr(item, "function", None), "__module__", "")
        if module.startswith("scalebench.testing."):
            item.add_marker("faults" if module.endswith(".fault_contract") else "contract")
