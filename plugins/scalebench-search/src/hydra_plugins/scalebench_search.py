"""The sweeper of scalebench-search, in the package `hydra_plugins` as Hydra requires.

Every Hydra program of an environment imports the modules of `hydra_plugins`, so this one imports the search only when
it is used.
"""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper


class SearchSweeper(Sweeper):
    """`hydra/sweeper=search`; its settings are those of scalebench_search/conf/hydra/sweeper/search.yaml."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(self, **context: Any) -> None:
        from scalebench_search.sweeper import TrialRunner

        self._runner = TrialRunner(self._settings, **context)

    def sweep(self, arguments: list[str]) -> Any:
        return self._runner.sweep(arguments)
