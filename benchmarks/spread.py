"""Formats paired figures in one line: the median ratio, its interval, and the range of the middle half of the pairs."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def format_ratios(values: npt.ArrayLike, references: npt.ArrayLike) -> str:
    """Return `0.991 [0.985, 0.996], half of 40 pairs in 0.984 .. 0.998`: values / references, pair by pair.

    The brackets are the 95 % interval of the median, from order statistics (Conover 1999, "Practical
    Nonparametric Statistics", section 3.2, normal approximation).
    """
    pairs = np.sort(np.asarray(values) / np.asarray(references))
    count = len(pairs)
    reach = 0.98 * math.sqrt(count)
    low, high = max(0, math.floor(count / 2 - reach)), min(count - 1, math.ceil(count / 2 + reach) - 1)
    quarter, middle, three = np.quantile(pairs, [0.25, 0.5, 0.75])
    interval = f"{middle:.3f} [{pairs[low]:.3f}, {pairs[high]:.3f}]"
    return f"{interval}, half of {count} pairs in {quarter:.3f} .. {three:.3f}"
