"""The contract, for a user's own Keras network under TensorFlow's strategies: dropout that is switched off, a table
that is looked things up in, a layer made when the network is first called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scalebench.testing import StrategyContract
from tests.conftest import ROOT

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.slow, pytest.mark.real]

MODEL = """
import keras
from keras import layers, ops


class Curves(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.convolution = layers.Conv1D(width, 5, strides=4, activation="relu")
        self.table = layers.Embedding(4, 2)
        self.drop = layers.Dropout(0.4)
        self.outputs_of = layers.Dense(2)

    def call(self, x, training=False):
        signs = ops.cast(ops.sign(x[:, 20:25, 0]), "int32") + 1
        looked_up = ops.reshape(self.table(signs), (-1, 10))
        means = ops.mean(self.convolution(x), axis=1)
        return self.outputs_of(self.drop(ops.concatenate([means, looked_up], 1), training=training))


def build(width=4):
    return Curves(width)
"""


class OwnKeras(StrategyContract):
    """A file in the current folder, as users have it."""

    overrides = ("model=custom", "model.keras=mynet:build", "model.options.width=8", "train.dropout=false")

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("own")
        (folder / "mynet.py").write_text(MODEL)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("PYTHONPATH", str(ROOT))
            yield


class TestBareTensorFlowFit(OwnKeras):
    strategy = "bare_tensorflow"
    gpus = 1
    baseline = "bare_tensorflow"
    overrides = (*OwnKeras.overrides, "strategy.options.loop=fit")


class TestMirrored(OwnKeras):
    strategy = "mirrored"


class TestMirrored3Fit(OwnKeras):
    strategy = "mirrored"
    gpus = 3
    overrides = (*OwnKeras.overrides, "strategy.options.loop=fit")


class TestMirroredInParts(OwnKeras):
    strategy = "mirrored"
    overrides = (*OwnKeras.overrides, "train.accumulate=2")


class TestMultiWorker(OwnKeras):
    strategy = "multiworker_ring"


class TestCentralStorage(OwnKeras):
    strategy = "central_storage_cpu"


class TestMultiGpuModel(OwnKeras):
    strategy = "multi_gpu_model"


class TestAvolkov1(OwnKeras):
    strategy = "avolkov1_ps_gpu"
    gpus = 3
    overrides = (*OwnKeras.overrides, "strategy.options.loss=tower")


class TestParameterServer(OwnKeras):
    strategy = "parameter_server"


class TestIndependent(OwnKeras):
    strategy = "independent_tensorflow"


class TestHorovod(OwnKeras):
    strategy = "horovod_tensorflow_gloo"
