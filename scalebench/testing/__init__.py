"""What a plugin is tested with: `from scalebench.testing import StrategyContract`, and the like for models, data sets
and faults."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["DatasetContract", "FaultContract", "ModelContract", "StrategyContract"]

if TYPE_CHECKING:
    from scalebench.testing.dataset_contract import DatasetContract
    from scalebench.testing.fault_contract import FaultContract
    from scalebench.testing.model_contract import ModelContract
    from scalebench.testing.strategy_contract import StrategyContract

_MODULES = {
    "DatasetContract": "dataset_contract",
    "FaultContract": "fault_contract",
    "ModelContract": "model_contract",
    "StrategyContract": "strategy_contract",
}


def __getattr__(name: str) -> Any:
    """Loaded on first use: the workers of a test import this package too, and need neither pytest nor Hydra."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"scalebench.testing.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'scalebench.testing' has no attribute '{name}'")
