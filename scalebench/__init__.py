"""scalebench: how does my training scale under each parallel strategy, and where does the lost efficiency go?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from scalebench.frame import load


def __getattr__(name: str) -> Any:
    """`scalebench.load` on first use: the program's help must not wait for it."""
    if name == "load":
        from scalebench.frame import load

        return load
    raise AttributeError(f"module 'scalebench' has no attribute '{name}'")
