"""Fixtures for TensorFlow's strategies inside the test process, on up to two virtual CPU devices and random samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("tensorflow")

from absl import logging as absl_logging

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.spec import RankPlacement, RunSpec
from scalebench.strategies import registry
from scalebench.strategies.tensorflow import devices

import tensorflow as tf  # isort: skip  # after what the adapter sets for it

# Its handler would close the stream that it saw first, which is pytest's, as soon as Hydra sets up logging.
absl_logging.get_absl_handler().python_handler.setStream(sys.__stderr__)

# TensorFlow has to be told before it begins, and once for all tests of the process; hence while they are collected.
DEVICES = devices.configure_devices("cpu", RankPlacement(0, 0, 0, [0, 1], [], 2))
MIRRORED: Any = tf.distribute.MirroredStrategy


@pytest.fixture
def settings_kept() -> Iterator[None]:
    """TensorFlow's own settings, which are the process's, are as they were after the test."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    tf.config.optimizer.set_experimental_options({"layout_optimizer": True})


_rings: dict[tuple[str, ...], tf.distribute.Strategy] = {}


def mirrored(devices: Sequence[str], cross_device_ops: Any = None) -> tf.distribute.Strategy:
    """A MirroredStrategy. Each numbers its collectives from 100, so that two in one process would mix them up."""
    if cross_device_ops is not None:
        return MIRRORED(devices, cross_device_ops)
    if tuple(devices) not in _rings:
        _rings[tuple(devices)] = MIRRORED(devices)
    return _rings[tuple(devices)]


def spec_of(*words: str) -> RunSpec:
    """A run of these overrides on the CPU, of one process."""
    return resolve(compose_config(["hardware=cpu", *words]))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, settings_kept: None) -> Any:
    """made(*overrides) -> the strategy of rank 0, not set up; it takes the devices that there are."""
    monkeypatch.setattr(devices, "configure_devices", lambda kind, place: DEVICES[: len(place.devices)])
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", mirrored)

    def make(*words: str) -> Any:
        spec = spec_of(*words)
        return registry.load_strategy(spec.config.strategy.name)(spec, 0)

    return make


@pytest.fixture
def strategy(made: Any) -> Any:
    """strategy(*overrides) -> the strategy of rank 0, set up."""

    def make(*words: str) -> Any:
        one = made(*words)
        one.setup()
        return one

    return make
