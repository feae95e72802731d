"""What a row tells of a model that is cut into stages. Layer 1."""

from __future__ import annotations

from typing import Any

from scalebench.results import Result

COLUMNS = "stages micro_batches stage_balance bubble_share bubble_share_expected state_bytes".split()


def cells(result: Result, step_s: float | None) -> dict[str, Any]:
    """The columns of that name. `step_s`: seconds of an update, as the row has them."""
    return dict.fromkeys(COLUMNS)
