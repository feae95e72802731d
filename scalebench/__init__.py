"""scalebench: how does my training scale under each parallel strategy, and where does the lost efficiency go?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["__version__", "attribution", "bandwidth", "collectives", "load", "load_rounds", "pooled"]

if TYPE_CHECKING:
    from scalebench.analysis.attribution import attribution
    from scalebench.analysis.collectives import load_bandwidth as bandwidth
    from scalebench.analysis.collectives import load_collectives as collectives
    from scalebench.analysis.load import load, load_rounds
    from scalebench.analysis.repeats import pooled


def __getattr__(name: str) -> Any:
    """Import the public functions on first use, so that the program's help need not wait for pandas."""
    if name == "load":
        from scalebench.analysis.load import load

        return load
    if name == "pooled":
        from scalebench.analysis.repeats import pooled

        return pooled
    if name == "load_rounds":
        from scalebench.analysis.load import load_rounds

        return load_rounds
    if name == "attribution":
        from scalebench.analysis.attribution import attribution

        return attribution
    if name == "collectives":
        from scalebench.analysis.collectives import load_collectives as collectives

        return collectives
    if name == "bandwidth":
        from scalebench.analysis.collectives import load_bandwidth as bandwidth

        return bandwidth
    raise AttributeError(f"module 'scalebench' has no attribute '{name}'")
