"""What samples are like before they are there: their shapes and their targets. Layer 1."""

from __future__ import annotations

from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Samples:
    """Of a data set as it is by itself, which a network that takes any samples gets."""

    input_shape: Shape  # of one sample, channels last
    target_shape: Shape  # (): the number of a class
    classes: int | None = None  # None: targets are quantities
