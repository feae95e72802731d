"""What a strategy, ours or a plugin's, is tested with: `from scalebench.testing import StrategyContract`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["FaultContract", "StrategyContract"]

if TYPE_CHECKING:
    from scalebench.testing.contract import StrategyContract
    from scalebench.testing.fault_contract import FaultContract


def __getattr__(name: str) -> Any:
    """Loaded on first use: the workers of a test import this package too, and need neither pytest nor Hydra."""
    if name == "StrategyContract":
        from scalebench.testing.contract import StrategyContract

        return StrategyContract
    if name == "FaultContract":
        from scalebench.testing.fault_contract import FaultContract

        return FaultContract
    raise AttributeError(f"module 'scalebench.testing' has no attribute '{name}'")
