"""The values that Hydra makes of one key of a sweep, lists and objects among them."""

from __future__ import annotations

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from scalebench import compose


def sweep_choices(values: object) -> list[str]:
    """Each value as the word on the command line that means it."""
    compose.register()
    filled = OmegaConf.create([values])[0]  # what only the machine knows is known now
    override = OverridesParser.create().parse_override(f"key={filled}")
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(filled)]
