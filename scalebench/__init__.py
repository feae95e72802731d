"""scalebench: how does my training scale under each parallel strategy, and where does the lost efficiency go?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
_PLACES = {  # of the public functions and classes, which are imported on first use: the program's help waits for none
    "InputError": "core.errors:InputError",
    "Run": "cli.api:Run",
    "Sweep": "cli.api:Sweep",
    "attribution": "analysis.attribution:attribution",
    "bandwidth": "analysis.load:load_bandwidth",
    "callbacks": "strategies.script.callbacks:",
    "collectives": "analysis.load:load_collectives",
    "load": "analysis.load:load",
    "load_rounds": "analysis.load:load_rounds",
    "pooled": "analysis.load:pooled",
    "run": "cli.api:run",
    "step": "strategies.script:step",
    "sweep": "cli.api:sweep",
}
__all__ = [
    "InputError",
    "Run",
    "Sweep",
    "__version__",
    "attribution",
    "bandwidth",
    "callbacks",
    "collectives",
    "load",
    "load_rounds",
    "pooled",
    "run",
    "step",
    "sweep",
]

if TYPE_CHECKING:
    from scalebench.analysis.attribution import attribution
    from scalebench.analysis.load import load, load_rounds, pooled
    from scalebench.analysis.load import load_bandwidth as bandwidth
    from scalebench.analysis.load import load_collectives as collectives
    from scalebench.cli.api import Run, Sweep, run, sweep
    from scalebench.core.errors import InputError
    from scalebench.strategies.script import callbacks, step


def __getattr__(name: str) -> Any:
    """Import a public function, class or module on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module 'scalebench' has no attribute '{name}'")
    import importlib

    module_name, _, attribute = _PLACES[name].partition(":")
    module = importlib.import_module(f"scalebench.{module_name}")
    return getattr(module, attribute) if attribute else module


def __dir__() -> list[str]:
    return sorted(__all__)
