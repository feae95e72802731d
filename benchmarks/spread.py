"""Paired figures -> one line: the median ratio and how far the middle half of the pairs spreads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def ratios(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> str:
    """`0.991 (0.984 .. 0.998, 40 pairs)`: quartiles of ours / theirs, pair by pair."""
    pairs = np.asarray(ours) / np.asarray(theirs)
    low, middle, high = np.quantile(pairs, [0.25, 0.5, 0.75])
    return f"{middle:.3f} ({low:.3f} .. {high:.3f}, {len(pairs)} pairs)"
