"""Peak FLOP/s of GPUs by the name that NVML reports and by precision: the denominator of model FLOPs utilization.

All figures are dense, without the factor of 2 that vendors state for sparse matrices, and at the vendor's boost clock.
Cards whose clock goes higher can therefore exceed them. Products of 16-bit numbers accumulate in float32, as in
training: GeForce cards run these at half the rate that is advertised, but for the oldest. Precisions that a card has no
fast unit for, or only emulates, are left out: bfloat16 before Ampere, float16 on GeForce cards before Turing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TERA = 1e12
BRANDS = re.compile(r"\b(?:NVIDIA|Tesla|GeForce) ")  # older and newer drivers differ in these
Peaks = Mapping[str, float]  # TFLOP/s by precision
FAST_TENSOR_CORES = 2.5  # times the float32 units; cards for games and P100, which has none, reach 2.0


def _tensor_cores(float32: float, tf32: float, half: float) -> Peaks:
    """Make the peaks of a card since Ampere; `half` holds for both 16-bit types."""
    return {"float32": float32, "tf32": tf32, "bfloat16": half, "float16": half}


def _float16(float32: float, float16: float) -> Peaks:
    """Make the peaks of Volta and Turing cards, and of P100, which computes pairs of float16 numbers at once."""
    return {"float32": float32, "float16": float16}


# Pattern of the complete name, without BRANDS -> peaks.
PEAK_TFLOPS: dict[str, Peaks] = {
    # Blackwell: HGX B200 and GB200 datasheets (per GPU); GB200 is clocked higher.
    r"B200": _tensor_cores(80, 1125, 2250),
    r"GB200": _tensor_cores(80, 1250, 2500),
    # NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix.
    r"RTX 5090": _tensor_cores(104.8, 104.8, 209.5),
    r"RTX 5080": _tensor_cores(56.3, 56.3, 112.6),
    # Hopper: H100, H200, GH200 and H20 datasheets; those name sparse figures, twice as high.
    r"H100 80GB HBM3|H200|H800|GH200 (?:480GB|120GB|144G HBM3e)": _tensor_cores(67, 494.5, 989),
    r"H[18]00 PCIe": _tensor_cores(51, 378, 756),
    r"H[12]00 NVL": _tensor_cores(60, 417.5, 835),
    r"H20": _tensor_cores(44, 74, 148),
    # Ada: L40, L40S and L4 datasheets; NVIDIA Ada GPU Architecture whitepaper v2.1, appendix.
    r"L40S": _tensor_cores(91.6, 183, 362),
    r"L40": _tensor_cores(90.5, 90.5, 181),
    r"L4": _tensor_cores(30.3, 60, 121),
    r"RTX 6000 Ada Generation": _tensor_cores(91.1, 182.1, 364.2),
    r"RTX 4090": _tensor_cores(82.6, 82.6, 165.2),
    r"RTX 4080 SUPER": _tensor_cores(52.2, 52.2, 104.4),
    r"RTX 4080": _tensor_cores(48.7, 48.7, 97.5),
    r"RTX 4070 Ti": _tensor_cores(40.1, 40.1, 80.2),
    r"RTX 4070": _tensor_cores(29.1, 29.1, 58.3),
    # Ampere: A100 datasheet (nvidia-1758950-r4); A800 differs in NVLink only.
    r"A[18]00-(?:SXM4|PCIE)-[48]0GB|A[18]00 80GB PCIe": _tensor_cores(19.5, 156, 312),
    # Datasheets of A30, A10, A40, RTX A6000, A5000 and A4000; A10G: the datasheet of Amazon Web Services (2022).
    r"A30": _tensor_cores(10.3, 82, 165),
    r"A10": _tensor_cores(31.2, 62.5, 125),
    r"A10G": _tensor_cores(35, 35, 70),
    r"A40": _tensor_cores(37.4, 74.8, 149.7),
    r"RTX A6000": _tensor_cores(38.7, 77.4, 154.8),
    r"RTX A5000": _tensor_cores(27.8, 55.6, 111.1),
    r"RTX A4000": _tensor_cores(19.2, 38.3, 76.7),
    # NVIDIA Ampere GA102 GPU Architecture whitepaper v2.1, appendix.
    r"RTX 3090 Ti": _tensor_cores(40, 40, 80),
    r"RTX 3090": _tensor_cores(35.6, 35.6, 71),
    r"RTX 3080 Ti": _tensor_cores(34.1, 34.1, 68.2),
    r"RTX 3080": _tensor_cores(29.8, 29.8, 59.5),
    r"RTX 3070": _tensor_cores(20.3, 20.3, 40.6),
    # Turing: T4 datasheet; NVIDIA Turing GPU Architecture whitepaper (WP-09183), reference clocks rather than those of
    # the Founders Editions, whose names are the same.
    r"T4": _float16(8.1, 65),
    r"(?:Quadro RTX (?:6000|8000)|TITAN RTX)": _float16(16.3, 130.5),
    r"RTX 2080 Ti": _float16(13.4, 53.8),
    r"RTX 2080 SUPER": _float16(11.2, 44.6),
    r"RTX 2080": _float16(10.1, 40.3),
    r"RTX 2070": _float16(7.5, 29.9),
    # Volta: V100 datasheet (us-1165301-r5), V100S datasheet; the product page of TITAN V.
    r"V100-SXM[23]-(?:16|32)GB": _float16(15.7, 125),
    r"V100-PCIE-(?:16|32)GB": _float16(14, 112),
    r"V100S-PCIE-32GB": _float16(16.4, 130),
    r"TITAN V": _float16(14.9, 110),
    # Pascal: P100, P40 and P4 datasheets; GeForce by cores x 2 x boost clock: 3584 x 1.582 GHz, 2560 x 1.733 GHz,
    # 1920 x 1.683 GHz, and 3840 x 1.582 GHz.
    r"P100-SXM2-16GB": _float16(10.6, 21.2),
    r"P100-PCIE-1[26]GB": _float16(9.3, 18.7),
    r"P40": {"float32": 12},
    r"P4": {"float32": 5.5},
    r"GTX 1080 Ti": {"float32": 11.34},
    r"GTX 1080": {"float32": 8.87},
    r"GTX 1070": {"float32": 6.46},
    r"TITAN Xp": {"float32": 12.15},
    # Maxwell and Kepler. Two GPUs share a board, which is what the datasheets state: 9.65 and 8.74 TFLOP/s.
    r"M60": {"float32": 4.825},
    r"K80": {"float32": 4.37},
}


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
    return next((peaks for pattern, peaks in PEAK_TFLOPS.items() if re.fullmatch(pattern, name)), {})
