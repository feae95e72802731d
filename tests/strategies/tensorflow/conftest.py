"""Fixtures for TensorFlow's strategies inside the test process, on up to two virtual CPU devices and random samples."""

import copy
import sys
from functools import cache

import pytest

pytest.importorskip("tensorflow")

from absl import logging as absl_logging

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.spec import RankPlacement
from scalebench.strategies import registry
from scalebench.strategies.tensorflow import devices
from scalebench.workloads import networks
from tests.strategies.tensorflow.builders import build_small_network

import tensorflow as tf  # isort: skip  # after what the adapter sets for it

# Its handler would close the stream that it saw first, which is pytest's, as soon as Hydra sets up logging.
absl_logging.get_absl_handler().python_handler.setStream(sys.__stderr__)

# TensorFlow has to be told before it begins, and once for all tests of the process; hence while they are collected.
CONFIGURED = RankPlacement(0, 0, 0, [3, 1], [], 3)
DEVICES = devices.configure_devices("cpu", CONFIGURED)
MIRRORED = tf.distribute.MirroredStrategy


@pytest.fixture
def settings_kept():
    """TensorFlow's own settings, which are the process's, are as they were after the test."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    tf.config.optimizer.set_experimental_options({"layout_optimizer": True})


_rings = {}


def mirrored(devices, cross_device_ops=None):
    """A MirroredStrategy. Each numbers its collectives from 100, so that two in one process would mix them up."""
    if cross_device_ops is not None:
        return MIRRORED(devices, cross_device_ops)
    if tuple(devices) not in _rings:
        _rings[tuple(devices)] = MIRRORED(devices)
    return _rings[tuple(devices)]


@cache
def _compose_spec(*words):
    return resolve(compose_config(["hardware=cpu", *words]))


def spec_of(*words):
    """A run of these overrides on the CPU, of one process, and with the optimizer that has the smallest graph."""
    if not any(word.startswith("train.optimizer=") for word in words):
        words += ("train.optimizer=sgd",)
    return copy.deepcopy(_compose_spec(*words))


@pytest.fixture
def made(monkeypatch, settings_kept):
    """made(*overrides) -> the strategy of rank 0, not set up; it takes the devices that there are."""
    monkeypatch.setattr(devices, "configure_devices", lambda kind, place: DEVICES[: len(place.devices)])
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", mirrored)

    def make(*words):
        spec = spec_of(*words)
        return registry.load_strategy(spec.config.strategy.name)(spec, 0)

    return make


@pytest.fixture
def small_network(monkeypatch):
    """Have a small network for pictures, whatever the model."""
    monkeypatch.setattr(networks, "build_network", build_small_network)


@pytest.fixture
def strategy(made):
    """strategy(*overrides) -> the strategy of rank 0, set up."""

    def make(*words):
        one = made(*words)
        one.setup()
        return one

    return make
