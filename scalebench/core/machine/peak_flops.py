"""Peak FLOP/s of GPUs by the name that NVML reports and by precision: the denominator of model FLOPs utilization.

peak_tflops.csv has the figures with their sources. All are dense, without the factor of 2 that vendors state for sparse
matrices, and at the vendor's boost clock, which some exceed. Products of 16-bit numbers accumulate in float32, as in
training: GeForce cards run these at half the rate that is advertised, but for the oldest. Precisions that a card has no
fast unit for, or only emulates, are left out: bfloat16 before Ampere, float16 on GeForce cards before Turing. A card
has no entry where no public source was found, or where two of them disagree, such as H100 NVL, A10G, A30 and TITAN V.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from pathlib import Path

TERA = 1e12
BRANDS = re.compile(r"\b(?:NVIDIA|Tesla|GeForce) ")  # older and newer drivers differ in these
Peaks = Mapping[str, float]  # TFLOP/s by precision
FAST_TENSOR_CORES = 2.5  # times the float32 units; cards for games and P100, which has none, reach 2.0


@functools.cache
def read_peaks() -> dict[str, Peaks]:
    """Return the table: the peaks of a card by the pattern of its complete name, without BRANDS."""
    lines = Path(__file__).with_name("peak_tflops.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row.pop("name"): {precision: float(peak) for precision, peak in row.items() if peak} for row in rows}


def find_peak_flops(gpu_name: str | None, precision: str | None) -> float | None:
    """Return the peak FLOP/s of one GPU, or None for cards and precisions that are not in the table.

    `precision` is what ran, as records name it. Of several, such as `bfloat16+float32`, the fastest counts, so that a
    utilization is rather too low than too high.
    """
    peaks = _find_peaks(gpu_name)
    precisions = (precision or "").split("+")
    if not all(each in peaks for each in precisions):
        return None
    return max(peaks[each] for each in precisions) * TERA


def has_fast_tensor_cores(gpu_name: str | None) -> bool:
    """Return whether the tensor cores of a card of the table compute far more per second than its float32 units."""
    peaks = _find_peaks(gpu_name)
    return bool(peaks) and max(peaks.values()) > FAST_TENSOR_CORES * peaks["float32"]


def _find_peaks(gpu_name: str | None) -> Peaks:
    name = BRANDS.sub("", gpu_name or "").strip()
    return next((peaks for pattern, peaks in read_peaks().items() if re.fullmatch(pattern, name)), {})
