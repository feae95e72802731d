"""TensorFlow and Keras. This package exports what a plugin's strategy builds upon; docs/plugin-api.md lists it."""

import os

# Read when TensorFlow or Keras is imported, so they are set before that.
os.environ["KERAS_BACKEND"] = "tensorflow"  # another choice of the user's is for other programs
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: a rank's log is read by people

from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import TfBatch
from scalebench.strategies.tensorflow.mirrored import Replicated
from scalebench.strategies.tensorflow.observed import observed_backend

__all__ = ["Replicated", "TensorFlowStrategy", "TfBatch", "observed_backend"]
