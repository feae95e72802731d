"""The curves: the formula, the padding, the ranges, and that a curve depends on seed and index only."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.workloads.datasets import materials
from scalebench.workloads.datasets.materials import CHUNK, generate_curves


@pytest.fixture(scope="module")
def chunk():
    return generate_curves(CHUNK, seed=7)


def test_shapes_types_and_ranges(chunk):
    curves, labels = chunk
    assert curves.shape == (CHUNK, 200, 3) and labels.shape == (CHUNK, 2)
    assert curves.dtype == labels.dtype == np.float32
    assert np.isfinite(curves).all()
    assert labels.min() >= 0 and labels.max() <= 1
    # Uniform: the mean of 4096 draws lies within 5 standard errors of one half.
    assert np.abs(labels.mean(axis=0) - 0.5).max() < 5 * np.sqrt(1 / 12 / CHUNK)
    assert abs(np.corrcoef(labels.T)[0, 1]) < 0.08


def test_points_are_even_and_the_rest_is_padding(chunk):
    curves, _ = chunk
    strain, stress, flag = np.moveaxis(curves, 2, 0)
    points = flag.sum(axis=1).astype(int)
    assert points.min() == 100 and points.max() == 200
    assert np.array_equal(flag, np.arange(200) < points[:, None])
    assert not strain[flag == 0].any() and not stress[flag == 0].any()
    assert not strain[:, 0].any() and not stress[:, 0].any()
    for curve, count in zip(strain[:50], points[:50], strict=True):
        np.testing.assert_allclose(curve[:count], np.linspace(0, curve[count - 1], count), rtol=1e-5)


def test_largest_strain_is_log_uniform(chunk):
    log_max = np.log10(chunk[0][:, :, 0].max(axis=1) * 1e-2)
    assert log_max.min() >= -2.5001 and log_max.max() <= -1.9999
    quarters = np.histogram(log_max, bins=4, range=(-2.5, -2.0))[0]
    assert abs(quarters / CHUNK - 0.25).max() < 0.04


def test_stress_is_the_modified_hyperbolic_model_with_one_per_cent_noise(chunk):
    curves, labels = chunk[0].astype(np.float64), chunk[1].astype(np.float64)
    g0_mpa, a = 20 + 180 * labels[:, :1], 0.6 + 0.6 * labels[:, 1:]
    gamma = curves[:, :, 0] * 1e-2
    tau = g0_mpa * gamma / (1 + (gamma / 1e-3) ** a)
    real = gamma > 0
    noise = curves[:, :, 1][real] * 0.2 / tau[real] - 1
    assert abs(noise.mean()) < 1e-4
    assert abs(noise.std() - 0.01) < 1e-4
    assert abs(noise[:-1] @ noise[1:]) / (noise @ noise) < 0.01  # each point has its own


GOLDEN_LABELS = [0.8506242, 0.6369616]
GOLDEN_POINTS = [0.002076634, 0.01750836, 0.1038317, 0.4443559, 0.2055867, 0.590111]


def test_the_series_of_a_seed_stays_what_it_was():
    """Another series needs another materials.VERSION, or old caches pass for the new data."""
    curves, labels = generate_curves(1, seed=0)
    assert materials.VERSION == 1
    np.testing.assert_allclose(labels[0], GOLDEN_LABELS, rtol=1e-5)
    np.testing.assert_allclose(curves[0, [1, 50, 99], :2].ravel(), GOLDEN_POINTS, rtol=1e-4)


@settings(max_examples=15, deadline=None)
@given(start=st.integers(0, 2 * CHUNK), count=st.integers(0, CHUNK + 50))
def test_a_curve_depends_on_its_index_only(start, count):
    curves, labels = generate_curves(count, 3, start)
    assert len(curves) == len(labels) == count
    for index in {0, count - 1} if count else set():
        one_curve, one_label = generate_curves(1, 3, start + index)
        assert np.array_equal(curves[index], one_curve[0]) and np.array_equal(labels[index], one_label[0])


def test_negative_arguments_are_refused():
    for arguments in ((-1, 0, 0), (1, 0, -1), (1, -1, 0)):
        with pytest.raises(ValueError):
            generate_curves(*arguments)
