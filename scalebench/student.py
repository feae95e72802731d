"""Student's t. Layer 0."""

from __future__ import annotations

import functools

USUAL = 0.95
# Of the usual confidence, for 1 to 30 degrees of freedom: what scipy.special.stdtrit gives. To import that takes longer
# than to make the table of a hundred runs.
TABLE = (
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146,
    2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205, 2.228138851986274,
    2.200985160091639, 2.1788128296672284, 2.1603686564627913, 2.144786687917804, 2.131449545559776,
    2.1199052992212546, 2.1098155778333156, 2.1009220402410382, 2.0930240544083087, 2.085963447265864,
    2.0796138447276795, 2.0738730679040254, 2.0686576104190486, 2.0638985616280245, 2.0595385527532972,
    2.0555294386428735, 2.0518305164802846, 2.0484071417952454, 2.045229642132703, 2.0422724563012378,
)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def student_t(freedom: float, confidence: float) -> float:
    """Two-sided quantile of Student's t: |t| stays below it with this probability. Degrees of freedom may be broken."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence lies between 0 and 1, not at {confidence}")
    if confidence == USUAL and freedom in range(1, len(TABLE) + 1):
        return TABLE[int(freedom) - 1]
    from scipy.special import stdtrit  # not scipy.stats, which takes 0.6 s to import

    return float(stdtrit(freedom, (1 + confidence) / 2))
