"""scalebench: how does my training scale under each parallel strategy, and where does the lost efficiency go?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "attribution", "bandwidth", "collectives", "load", "pooled"]

if TYPE_CHECKING:
    from scalebench.attributing import attribution
    from scalebench.crossover import load as collectives
    from scalebench.frame import load
    from scalebench.pooling import pooled
    from scalebench.transfers import load as bandwidth


def __getattr__(name: str) -> Any:
    """`scalebench.load` and its like on first use: the program's help must not wait for them."""
    if name == "load":
        from scalebench.frame import load

        return load
    if name == "pooled":
        from scalebench.pooling import pooled

        return pooled
    if name == "attribution":
        from scalebench.attributing import attribution

        return attribution
    if name == "collectives":
        from scalebench.crossover import load as collectives

        return collectives
    if name == "bandwidth":
        from scalebench.transfers import load as bandwidth

        return bandwidth
    raise AttributeError(f"module 'scalebench' has no attribute '{name}'")
