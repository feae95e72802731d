"""Peak FLOP/s of cards: names as drivers report them, precisions that a card lacks, and names that are not listed."""

import re

import pytest

from scalebench.core.machine.peak_flops import PEAK_TFLOPS, find_peak_flops

pytestmark = pytest.mark.gpu


# Tera FLOP/s of float32, tf32, bfloat16, float16
PEAKS = {
    "NVIDIA A100-SXM4-40GB": (19.5, 156, 312, 312),
    "A100-SXM4-40GB": (19.5, 156, 312, 312),  # drivers before 470
    "NVIDIA A100-SXM4-80GB": (19.5, 156, 312, 312),
    "NVIDIA A100 80GB PCIe": (19.5, 156, 312, 312),
    "NVIDIA A100-PCIE-40GB": (19.5, 156, 312, 312),
    "NVIDIA H100 80GB HBM3": (67, 494.5, 989, 989),
    "NVIDIA H100 PCIe": (51, 378, 756, 756),
    "NVIDIA H200 NVL": (60, 417.5, 835, 835),
    "NVIDIA H200": (67, 494.5, 989, 989),
    "NVIDIA GH200 480GB": (67, 494.5, 989, 989),
    "NVIDIA B200": (80, 1125, 2250, 2250),
    "NVIDIA L4": (30.3, 60, 121, 121),
    "NVIDIA L40S": (91.6, 183, 362, 362),
    "NVIDIA A10": (31.2, 62.5, 125, 125),
    "NVIDIA RTX A6000": (38.7, 77.4, 154.8, 154.8),
    "NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2),
    "NVIDIA GeForce RTX 3090": (35.6, 35.6, 71.2, 71.2),
    "NVIDIA GeForce RTX 2080 Ti": (13.4, None, None, 53.8),
    "GeForce RTX 2080 Ti": (13.4, None, None, 53.8),
    "Quadro RTX 6000": (16.3, None, None, 130.5),
    "NVIDIA RTX 6000 Ada Generation": (91.06, 182.12, 364.24, 364.24),
    "Tesla T4": (8.1, None, None, 65),
    "Tesla V100-SXM2-16GB": (15.7, None, None, 125),
    "Tesla V100-PCIE-32GB": (14, None, None, 112),
    "Tesla P100-SXM2-16GB": (10.6, None, None, 21.2),
    "GeForce GTX 1080 Ti": (11.34, None, None, None),
    "Tesla M60": (4.825, None, None, None),
    "Tesla K80": (4.37, None, None, None),
}
UNLISTED = [
    None, "", "NVIDIA", "NVIDIA H100 MIG 1g.10gb", "NVIDIA A100-SXM-64GB", "NVIDIA GeForce RTX 2080 Ti Laptop GPU",
    "NVIDIA H100 NVL", "NVIDIA H800", "NVIDIA A10G", "NVIDIA A30", "TITAN V", "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3080 Laptop GPU", "Tesla V100-FHHL-16GB", "MI300X",
]  # fmt: skip


def test_dense_peaks_by_the_name_of_the_driver():
    for name, peaks in PEAKS.items():
        for precision, tera in zip(("float32", "tf32", "bfloat16", "float16"), peaks, strict=True):
            assert find_peak_flops(name, precision) == (None if tera is None else pytest.approx(tera * 1e12)), name
    assert [name for name in UNLISTED if find_peak_flops(name, "float32") is not None] == []
    for precision in (None, "", "float64", "tf32+float64"):
        assert find_peak_flops("NVIDIA A100-SXM4-40GB", precision) is None
    assert find_peak_flops("NVIDIA A100-SXM4-40GB", "bfloat16+float32") == 312e12, "of several the fastest counts"
    # No pattern shadows another: each alternative without options is the complete name of one entry alone.
    for pattern in PEAK_TFLOPS:
        if re.escape(pattern).replace("\\ ", " ") == pattern:
            assert [each for each in PEAK_TFLOPS if re.fullmatch(each, pattern)] == [pattern]
