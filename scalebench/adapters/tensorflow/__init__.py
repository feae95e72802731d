"""TensorFlow and Keras. This package exports what a plugin's strategy builds upon; docs/plugin-api.md lists it."""

import os

# Read when TensorFlow or Keras is imported, so they are set before that.
os.environ["KERAS_BACKEND"] = "tensorflow"  # another choice of the user's is for other programs
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: a rank's log is read by people

from scalebench.adapters.tensorflow.base import TensorFlowStrategy
from scalebench.adapters.tensorflow.evidence import observed_backend
from scalebench.adapters.tensorflow.feeding import TfBatch
from scalebench.adapters.tensorflow.mirrored import Replicated

__all__ = ["Replicated", "TensorFlowStrategy", "TfBatch", "observed_backend"]
