"""Contracts that strategies, models and data sets pass, built-in ones and those of plugins, as pytest classes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["DatasetContract", "FaultContract", "ModelContract", "StrategyContract"]

if TYPE_CHECKING:
    from scalebench.testing.dataset_contract import DatasetContract
    from scalebench.testing.fault_contract import FaultContract
    from scalebench.testing.model_contract import ModelContract
    from scalebench.testing.strategy_contract import StrategyContract


def __getattr__(name: str) -> Any:
    """Import a contract on first use: worker processes of a test import this package without pytest and Hydra."""
    if name in __all__:
        module = f"scalebench.testing.{name.removesuffix('Contract').lower()}_contract"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'scalebench.testing' has no attribute '{name}'")
