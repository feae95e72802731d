"""`scalebench strategies`: what is registered, from where, and whether it can run here."""

from __future__ import annotations

from omegaconf import OmegaConf
from rich import box
from rich.console import Console
from rich.table import Table

from scalebench import configs, machine, obstacles, registry
from scalebench.records import from_dict
from scalebench.spec import InputError, StrategySpec


def main(arguments: list[str]) -> int:
    if arguments:
        raise InputError(f"strategies takes no further words, not '{arguments[0]}'")
    device = "cuda" if machine.gpu_count() else "cpu"
    files = configs.options("strategy")
    table = Table("strategy", "what it is", "from", f"here ({device})", box=box.SIMPLE_HEAD)
    for name, entry in sorted(registry.table().items()):
        if name not in files:
            reason = registry.NOT_YET.get(name, f"{entry.origin} brings no strategy/{name}.yaml")
            table.add_row(name, "", entry.origin, f"no: {reason}")
            continue
        tree = OmegaConf.to_container(OmegaConf.load(files[name]))
        table.add_row(name, str(tree.get("description", "")), entry.origin, _here(tree, device))
    console = Console(markup=False)  # brackets, as in scalebench[torch], are meant
    console.width = console.width if console.is_terminal else 400  # a line for each strategy
    console.print(table)
    return 0


def _here(tree: object, device: str) -> str:
    """Whether a strategy, by its YAML, can run on this machine; the reason if not."""
    strategy = from_dict(StrategySpec, tree)
    if registry.find(strategy.name).target is None:
        return f"no: {registry.NOT_YET[strategy.name]}"
    missing = registry.missing_packages(strategy.requires)
    if missing:
        return f"no: {missing[0]} is not installed ({registry.install_hint(missing[0])})"
    if device not in strategy.devices:
        return f"no: needs {' or '.join(strategy.devices)}"
    unready = obstacles.launching(strategy)
    return "yes" if unready is None else f"no: {unready}"
