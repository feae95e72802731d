"""TensorFlow and Keras. The settings below are read when either is imported, so they stand here, before that."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"  # another choice of the user's is for other programs
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: a rank's log is read by people
