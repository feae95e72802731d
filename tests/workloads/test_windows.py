"""Windows over one or two axes; what same, valid and numbers mean is in test_network.py."""

import pytest

from scalebench.workloads.network import WindowTooLarge, place_windows


def test_one_width_is_for_all_axes() -> None:
    assert place_windows((8, 9), 3, 2, "valid") == ((3, 3), ((0, 0), (0, 0)), (3, 4))
    assert place_windows((8,), [4], 1, 1) == ((4,), ((1, 1),), (7,))


def test_a_window_wider_than_an_axis() -> None:
    with pytest.raises(WindowTooLarge) as caught:
        place_windows((8, 2), (3, 5), 1, 1)
    assert (caught.value.width, caught.value.size) == (5, 2)


@pytest.mark.parametrize(("spatial", "window"), [((8, 8), (3,)), ((), 3), ((8, 8, 8), 3)])
def test_windows_of_other_axes(spatial: tuple[int, ...], window: int | tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="over spatial axes"):
        place_windows(spatial, window, 1, "same")
