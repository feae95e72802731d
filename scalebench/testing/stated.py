"""What a strategy's YAML says of it, against its class and what else is known: the part of StrategyContract that looks
at words. Layer 4."""

from __future__ import annotations

from typing import Any, ClassVar

from scalebench import configs, registry
from scalebench.records import from_dict
from scalebench.spec import StrategySpec
from scalebench.strategy import check_options, check_values
from scalebench.testing.group import Group

EXACT = 1e-4  # what float32 leaves of the baseline's losses after two epochs


class StatedContract:
    """Tests that need no process but those of the launch."""

    strategy: ClassVar[str] = ""

    @classmethod
    def stated(cls) -> StrategySpec:
        """The YAML alone, without what a test overrides."""
        from omegaconf import OmegaConf

        files = configs.options("strategy")
        assert cls.strategy in files, f"no strategy/{cls.strategy}.yaml; add it, and an entry point scalebench.configs"
        return from_dict(StrategySpec, OmegaConf.to_container(OmegaConf.load(files[cls.strategy])))

    def test_yaml_says_what_it_is(self) -> None:
        """Its name, as it is registered and as its file is called, and one line of description."""
        stated = self.stated()
        assert stated.name == registry.find(self.strategy).name == self.strategy
        assert stated.description.strip(), "an empty description"
        assert "\n" not in stated.description.strip(), "the description should be one line"

    def test_yaml_says_what_it_needs(self) -> None:
        """Framework and packages, devices, and a baseline that there is, of one device."""
        stated = self.stated()
        assert stated.framework, "framework: none, torch, tensorflow, or another one's name"
        assert all(name.replace(".", "_").isidentifier() for name in stated.requires), "requires: import names"
        assert stated.devices and set(stated.devices) <= {"cpu", "cuda"}, f"devices: {stated.devices}"
        if stated.baseline is not None:
            assert registry.find(stated.baseline).target is not None, f"no strategy '{stated.baseline}' yet"
            assert stated.baseline in configs.options("strategy"), f"no strategy/{stated.baseline}.yaml"

    def test_yaml_says_whether_it_is_exact(self) -> None:
        """A tolerance above that of rounding, or none at all, comes with the reason."""
        stated = self.stated()
        if stated.tolerance is None or stated.tolerance > EXACT:
            assert stated.inexact, f"tolerance: {stated.tolerance}: say in `inexact` why its updates differ"
        if stated.inexact is not None:
            assert "\n" not in stated.inexact.strip(), "`inexact` should be one clause"
        assert stated.tolerance is None or 0 < stated.tolerance < 1, "tolerance is relative, and above 0"

    def test_yaml_and_class_have_the_same_options(self, group: Group) -> None:
        """Names on both sides, types, and the defaults too where no other strategy shares the class."""
        stated, ours = self.stated().options, group.ranks[0].options
        only_yaml, only_class = sorted(stated.keys() - ours.keys()), sorted(ours.keys() - stated.keys())
        assert not (only_yaml or only_class), f"only in the YAML: {only_yaml}; only in the class: {only_class}"
        check_options(self.strategy, stated, ours)
        check_values(self.stated())
        limited = {*self.stated().choices, *self.stated().at_least}
        assert limited <= ours.keys(), f"choices or at_least of no option: {sorted(limited - ours.keys())}"
        if not self._shares_its_class():
            assert stated == ours, "other defaults in the YAML than in the class"

    def _shares_its_class(self) -> bool:
        entries: Any = registry.table().values()
        target = registry.find(self.strategy).target
        return [entry.target for entry in entries].count(target) > 1
