"""Peak FLOP/s of GPUs by the name that NVML reports and by precision: the denominator of model FLOPs utilization.

All figures are dense, without the factor of 2 that vendors state for sparse matrices, and at the vendor's boost clock.
Cards whose clock goes higher can therefore exceed them. Products of 16-bit numbers accumulate in float32, as in
training: GeForce cards run these at half the rate that is advertised, but for the oldest. Precisions that a card has no
fast unit for, or only emulates, are left out: bfloat16 before Ampere, float16 on GeForce cards before Turing. A card
has no entry where no public source was found, or where two of them disagree, such as H100 NVL, A10G, A30 and TITAN V.
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


def _geforce(float32: float) -> Peaks:
    """Make the peaks of a GeForce card since Ampere, whose tensor cores run at a fixed ratio to float32.

    Sources: NVIDIA Ada GPU Architecture whitepaper v2.1, RTX 4090: 82.6 and 165.2; NVIDIA Ampere GA102 GPU Architecture
    whitepaper, RTX 3090: 35.6 and 71. https://hmc-tech.com/gpu/nvidia-6x-geforce-rtx-5090-vs-nvidia-geforce-rtx-4080.
    """
    return _tensor_cores(float32, float32, 2 * float32)


def _professional(float32: float) -> Peaks:
    """Make the peaks of a professional card with a GA10x or AD10x chip, whose ratio is twice that of GeForce cards.

    Source: https://hmc-tech.com/gpu/nvidia-a40-vs-nvidia-grid-a100b (A40: 37.4, 74.8, 149.7).
    """
    return _tensor_cores(float32, 2 * float32, 4 * float32)


def _float16(float32: float, float16: float) -> Peaks:
    """Make the peaks of Volta and Turing cards, and of P100, which computes pairs of float16 numbers at once."""
    return {"float32": float32, "float16": float16}


# Pattern of the complete name, without BRANDS -> peaks. Sources that several entries share:
# [1] https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/README.md, TFLOPS comparison table
# [2] https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/utilities/throughput.py, which
#     names NVIDIA's datasheets; its 16-bit figures of GeForce and RTX cards are not those of the tensor cores
# [3] https://www.bit-tech.net/features/tech/graphics/nvidias-turing-architecture-explained/1/: cores x 2 x boost clock
PEAK_TFLOPS: dict[str, Peaks] = {
    # Blackwell: [1], per GPU; GB200 is clocked higher. GeForce: 21,760 and 10,752 cores at 2.407 and 2.617 GHz,
    # https://www.tweaktown.com/news/102469/nvidia-geforce-rtx-50-series-specs-pricing-and-performance-plan-that-upgrade-today.
    r"B200": _tensor_cores(80, 1125, 2250),
    r"GB200": _tensor_cores(80, 1250, 2500),
    r"RTX 5090": _geforce(104.8),
    r"RTX 5080": _geforce(56.3),
    # Hopper: [1]. H20: https://zangshuxian.com/new/674733024499207168. H200 NVL: [2], which rounds
    # the sparse figures, 835 and 1671, to 840 and 1700.
    r"H100 80GB HBM3|H200|GH200 (?:480GB|120GB|144G HBM3e)": _tensor_cores(67, 494.5, 989),
    r"H100 PCIe": _tensor_cores(51, 378, 756),
    r"H200 NVL": _tensor_cores(60, 417.5, 835),
    r"H20": _tensor_cores(44, 74, 148),
    # Ada: L40S and L40 as in https://www.mullet.se/product.html?product_id=355414; L4 and GeForce: [2]. RTX 6000:
    # https://cputronic.com/gpu/nvidia-rtx-6000-ada-generation. RTX 4070 Ti:
    # https://fpsbench.com/compare/gpu/amd-radeon-540-vs-nvidia-geforce-rtx-4070-ti. RTX 4070: 5888 cores at 2.475 GHz,
    # https://www.thefpsreview.com/gpu-family/nvidia-geforce-rtx-4070-gpu-family-specifications.
    r"L40S": _tensor_cores(91.6, 183, 362),
    r"L40": _tensor_cores(90.5, 90.5, 181),
    r"L4": _tensor_cores(30.3, 60, 121),
    r"RTX 6000 Ada Generation": _professional(91.06),
    r"RTX 4090": _geforce(82.6),
    r"RTX 4080 SUPER": _geforce(52.2),
    r"RTX 4080": _geforce(48.7),
    r"RTX 4070 Ti": _geforce(40.1),
    r"RTX 4070": _geforce(29.1),
    # Ampere: A100: [1]. A800 differs in NVLink only: https://hmc-tech.com/gpu/nvidia-a800-vs-nvidia-t40. A10, A6000 and
    # GeForce: [2]. A5000: https://calwoo.github.io/notes/concepts/deep-learning-engineering/nvidia-gpu-hardware. A4000:
    # a vendor's table with 19.2 and, sparse, 153.4.
    r"A[18]00-(?:SXM4|PCIE)-[48]0GB|A[18]00 80GB PCIe": _tensor_cores(19.5, 156, 312),
    r"A10": _tensor_cores(31.2, 62.5, 125),
    r"A40": _professional(37.4),
    r"RTX A6000": _professional(38.7),
    r"RTX A5000": _professional(27.8),
    r"RTX A4000": _professional(19.2),
    r"RTX 3090 Ti": _geforce(40),
    r"RTX 3090": _geforce(35.6),
    r"RTX 3080 Ti": _geforce(34.1),
    r"RTX 3080": _geforce(29.8),
    r"RTX 3070": _geforce(20.3),
    # Turing: T4 and float32 of RTX 2080 SUPER: [2]. RTX 6000 and the ratio of RTX 2080 Ti: NVIDIA Turing GPU
    # Architecture whitepaper (WP-09183). RTX 8000: https://maychudoanhnghiep.vn/leadtek-nvidia-quadro-rtx8000-turing-
    # gpu4608-cuda-cores48gb-gddr64xdp.html. TITAN RTX: https://www.tomshardware.com/news/nvidia-titan-rtx-specs-
    # pricing,38184.html. GeForce: [3], reference clocks, since the Founders Editions have the same names.
    r"T4": _float16(8.1, 65),
    r"(?:Quadro RTX (?:6000|8000)|TITAN RTX)": _float16(16.3, 130.5),
    r"RTX 2080 Ti": _float16(13.4, 53.8),
    r"RTX 2080 SUPER": _float16(11.2, 44.6),
    r"RTX 2080": _float16(10.1, 40.3),
    r"RTX 2070": _float16(7.5, 29.9),
    # Volta: [2].
    r"V100-SXM2-(?:16|32)GB": _float16(15.7, 125),
    r"V100-PCIE-(?:16|32)GB": _float16(14, 112),
    r"V100S-PCIE-32GB": _float16(16.4, 130),
    # Pascal: P100-SXM2 and P40: https://sysrqmts.com/gpus/compare/nvidia-tesla-p100-sxm2-vs-nvidia-tesla-p40.
    # P100-PCIE: https://cputronic.com/gpu/nvidia-tesla-p100-pcie-16-gb, 3584 cores at 1.329 GHz. GeForce: [3].
    r"P100-SXM2-16GB": _float16(10.6, 21.2),
    r"P100-PCIE-16GB": _float16(9.53, 19.05),
    r"P40": {"float32": 11.76},
    r"GTX 1080 Ti": {"float32": 11.34},
    r"GTX 1080": {"float32": 8.87},
    r"GTX 1070": {"float32": 6.46},
    # Maxwell and Kepler. Two GPUs share a board, whose 9.65 and 8.74 TFLOP/s are halved:
    # https://fpsbench.com/compare/gpu/nvidia-tesla-m60-vs-nvidia-tesla-t4, https://www.computerbase.de/2014-11.
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
