"""A machine that does not exist."""

import functools

import pytest

from tests.builders.configs import fake_machine


@pytest.fixture
def machine_with(monkeypatch):
    """Return a function that sets the numbers of GPUs and cores."""
    return functools.partial(fake_machine, monkeypatch)
