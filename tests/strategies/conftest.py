"""Fixtures for the strategies of every framework: synthetic samples, and sources of them."""

import pytest

from scalebench.workloads.source import Source
from tests.strategies.builders import make_features, make_images

SAMPLES = 101  # prime, so that no batch divides it


@pytest.fixture(scope="session")
def samples():
    return make_features(SAMPLES)


@pytest.fixture
def source(samples):
    """Return source(replica=0, replicas=1, **settings) -> a Source of these samples in batches of 20."""

    def make(replica=0, replicas=1, **others):
        settings = {"global_batch": 20, "seed": 3, **others}
        return Source(*samples, replica=replica, replicas=replicas, **settings)

    return make


@pytest.fixture
def pictures():
    """Return pictures(batch=20) -> a Source of 65 images in 10 classes that differ in brightness."""
    return lambda batch=20: Source(*make_images(65), global_batch=batch, seed=3, replica=0, replicas=1)
