"""How windows slide over the spatial axes of a sample: padding and positions. Layer 1."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]  # (before, after) along each spatial axis


class TooSmall(Exception):
    """A window is wider than an axis with its padding."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__(f"a window of {width} over {size}")
        self.width, self.size = width, size


def slide(spatial: Shape, window: int | Sequence[int], strides: int, padding: str | int) -> tuple[Shape, Pads, Shape]:
    """(window, zeros before and after, positions) along each of one or two axes. Raises TooSmall; ValueError for a
    window of other axes. For `window` and `padding` see Network."""
    windows = (window,) * len(spatial) if isinstance(window, int) else tuple(window)
    if len(spatial) not in (1, 2) or len(windows) != len(spatial):
        raise ValueError(f"window {windows} over spatial axes {spatial}")
    pads, positions = [], []
    for size, width in zip(spatial, windows, strict=True):
        before, after = _pads(size, width, strides, padding)
        if size + before + after < width:
            raise TooSmall(width, size)
        pads.append((before, after))
        positions.append((size + before + after - width) // strides + 1)
    return windows, tuple(pads), tuple(positions)


def _pads(size: int, width: int, strides: int, padding: str | int) -> tuple[int, int]:
    if padding == "same":
        total = max((-(-size // strides) - 1) * strides + width - size, 0)
        return total // 2, total - total // 2
    if padding == "valid":
        return 0, 0
    if isinstance(padding, str):
        raise ValueError(f"padding {padding}: same, valid or a number")
    return padding, padding
