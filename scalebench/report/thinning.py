"""Long series with fewer points, on which a short dip or peak can still be seen. Layer 3."""

from __future__ import annotations

from collections.abc import Sequence

Points = list[tuple[float, float]]


def thin(points: Sequence[tuple[float, float]], most: int) -> Points:
    """At most `most` (four or more) of these points, in their order: the first, the last, and the lowest and the
    highest of each of as many stretches, equal in points, as there is room for."""
    if len(points) <= most:
        return list(points)
    inner, stretches = points[1:-1], (most - 2) // 2
    kept = [points[0]]
    for number in range(stretches):
        begin, end = (len(inner) * edge // stretches for edge in (number, number + 1))
        values = [value for _, value in inner[begin:end]]
        kept += [inner[begin + i] for i in sorted({values.index(min(values)), values.index(max(values))})]
    return [*kept, points[-1]]
