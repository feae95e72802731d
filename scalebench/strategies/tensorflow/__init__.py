"""Strategies of TensorFlow and Keras, and base classes for those of plugins (see docs/reference/plugin-api.md)."""

import os

# TensorFlow and Keras read these when they are imported, so they are set first.
os.environ["KERAS_BACKEND"] = "tensorflow"  # a user's other setting is meant for other programs
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only, to keep rank logs readable

from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import TfBatch
from scalebench.strategies.tensorflow.mirrored import Replicated
from scalebench.strategies.tensorflow.profiling import observe_backend

__all__ = ["Replicated", "TensorFlowStrategy", "TfBatch", "observe_backend"]
