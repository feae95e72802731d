"""Compared with keras.applications: the same arrays under the same names, the same FLOPs."""

import json
import subprocess
import sys

import pytest

from scalebench.workloads import networks

ORACLES = {
    "inception_v3": "InceptionV3",
    "resnet50": "ResNet50",
    "resnet50_v2": "ResNet50V2",
    "resnet101": "ResNet101",
    "resnet152": "ResNet152",
    "vgg16": "VGG16",
}

# In an interpreter of its own, since TensorFlow is imported for it.
COUNT = """
import json, math, sys
import keras
result = {}
for ours, theirs in json.loads(sys.argv[1]).items():
    keras.backend.clear_session()
    model = getattr(keras.applications, theirs)(weights=None, classifier_activation=None)
    arrays = {f"{layer.name}/{w.name}": list(w.shape) for layer in model.layers for w in layer.weights}
    costly = [layer for layer in model.layers if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense))]
    macs = sum(math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1]) for layer in costly)
    trained = sum(math.prod(w.shape) for w in model.trainable_weights)
    result[ours] = {"shape": model.input_shape[1:], "arrays": arrays, "flops": 2 * macs, "trained": trained}
print(json.dumps(result))
"""


@pytest.mark.slow
def test_the_same_arrays_and_flops() -> None:
    command = [sys.executable, "-c", COUNT, json.dumps(ORACLES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    for name, theirs in json.loads(done.stdout).items():
        net = networks.build_by_name(name, theirs["shape"], 1000)
        assert {array.name: list(array.shape) for array in net.arrays} == theirs["arrays"], name
        assert (net.forward_flops, net.parameters) == (theirs["flops"], theirs["trained"]), name
