"""The contract with other workloads: tokens (a target for each position, embedding tables, gradients of rows not looked
up), a recurrence over positions, pictures (bytes, labels, accuracy, kernels in channels-last order), the same
decoded from files while they train, and a user's network from a file in the current folder."""

from typing import ClassVar

import pytest

from scalebench.testing import StrategyContract
from tests.builders.configs import write_pictures
from tests.conftest import ROOT
from tests.strategies.contracts.contract_classes import ONLY_ACTIVATIONS, OnPictures, contract, contract_classes, slow

BUCKET_VIEW = "strategy.options.parameters_as_bucket_view=true"
EACH_LAYER = "strategy.options.unit_mb=0"


class OnTokens(StrategyContract):
    overrides = (
        "model=gpt_small", "model.options.layers=1", "model.options.width=32", "model.options.heads=2",
        "model.options.sequence_length=12", "dataset.classes=64", "dataset.validation_share=0.25",
        "measure.hang_s=240",  # several graphs are traced and optimized, which takes its time on a busy machine
        "train.learning_rate=0.1",
        "train.optimizer=momentum",  # AdamW divides small gradients by themselves, which turns rounding into steps
    )  # fmt: skip


class OnRecurrence(StrategyContract):
    overrides = (
        "model=lstm_small", "model.options.width=32", "model.options.sequence_length=12", "model.outputs=64",
        "model.params=null", "dataset.classes=64", "dataset.validation_share=0.25",
        "measure.hang_s=240",  # TensorFlow unrolls the positions, and optimizes several such graphs
    )  # fmt: skip


class OnFiles(StrategyContract):
    overrides = (
        "model=cifar10_cnn", "dataset=imagenet_jpeg", "dataset.image_size=32", "dataset.classes=10",
        "dataset.workers=1",
        "measure.hang_s=240",  # as for tokens
        "train.optimizer=momentum",  # Adam divides small gradients by themselves, which turns rounding into steps
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def picture_folder(tmp_path_factory):
    """A folder of pictures, which the data set finds through the environment."""
    # As many samples as the workload of the contract has.
    folder = write_pictures(tmp_path_factory.mktemp("pictures"), 221, classes=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALEBENCH_IMAGENET", str(folder))
        yield


# As a user would write it: no scalebench, weights from torch's own generator, one tied, one frozen, state that is no
# tensor.
TORCH_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        self.body = nn.Sequential(nn.Conv1d(3, width, 5, stride=5), nn.ReLU(), nn.GroupNorm(2, width))
        self.mix = nn.Linear(40, 40)
        self.again = nn.Linear(40, 40)
        self.again.weight = self.mix.weight
        self.head = nn.Sequential(nn.Linear(width * 40, 16), nn.ReLU(inplace=True), nn.Linear(16, 2))

    def get_extra_state(self):
        return {"written by": "the user"}

    def forward(self, x):  # (n, 3, 200)
        x = torch.tanh(self.again(torch.tanh(self.mix(self.body(x * self.scale)))))
        return self.head(x.view(len(x), -1))


def build(width=6):
    return Net(width)
"""

# Dropout that is switched off, an embedding table, a layer that is built when the network is first called.
KERAS_MODEL = """
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


class OfUserNetwork(StrategyContract):
    network: ClassVar[str]

    @pytest.fixture(autouse=True)
    def user_folder(self, tmp_path, monkeypatch):
        (tmp_path / "mynet.py").write_text(self.network)
        monkeypatch.chdir(tmp_path)  # before the ranks of the class, which ask_all starts
        monkeypatch.setenv("PYTHONPATH", str(ROOT))


class OfTorchModule(OfUserNetwork):
    network = TORCH_MODEL
    overrides = ("model=custom", "model.torch=mynet:build", "+model.options.width=8")


class OfKerasModel(OfUserNetwork):
    network = KERAS_MODEL
    overrides = ("model=custom", "model.keras=mynet:build", "model.options.width=8", "train.dropout=false")


FIT = "strategy.options.loop=fit"
STAGES = ("tensor_parallel", "model_parallel_tensorflow", "pipeline_1f1b")
CONTRACTS = {
    OnTokens: [
        contract("bare_tensorflow", gpus=1, baseline="bare_torch", slow=True),
        contract("fsdp_gloo", EACH_LAYER),  # layers free their weights although nobody overwrites their outputs
        *slow(*STAGES, **ONLY_ACTIVATIONS),
        *slow("ddp_gloo", "zero1", "lightning_ddp_gloo", "horovod_gloo", "horovod_tensorflow_gloo", "mirrored"),
        *slow("central_storage_cpu", "kuza55_ps_cpu", "multiworker_ring", "parameter_server"),
    ],
    OnRecurrence: [
        contract("fsdp_gloo", EACH_LAYER, slow=True),
        *slow("tensor_parallel", **ONLY_ACTIVATIONS),
        *slow("mirrored"),
    ],
    OnPictures: [
        contract("fsdp_gloo", EACH_LAYER, slow=True),
        contract("zero1", BUCKET_VIEW, slow=True),
        *slow("ddp_gloo", "mirrored"),
    ],
    OnFiles: [
        contract("ddp_gloo"),
        contract("mirrored", FIT, name="fit", slow=True),
        *slow("lightning_ddp_gloo", "horovod_gloo", "mirrored"),
    ],
    OfTorchModule: [
        *slow("ddp_gloo", "lightning_ddp_gloo", "horovod_gloo", "lightning_horovod"),
        *slow("independent_torch", "fsdp_gloo", "zero1"),
        contract("deepspeed_zero3", "strategy.options.persistent_elements=0", slow=True),
        contract("tensor_parallel", slow=True, **ONLY_ACTIVATIONS),
        contract("fsdp_tp", gpus=4, slow=True, bytes_sent=2),  # at least: half of what is split
    ],
    OfKerasModel: [
        contract("bare_tensorflow", FIT, gpus=1, baseline="bare_tensorflow", slow=True),
        contract("mirrored", FIT, gpus=3, slow=True),
        contract("mirrored", "train.accumulate=2", name="accumulate", slow=True),
        contract("avolkov1_ps_gpu", "strategy.options.loss=tower", gpus=3, slow=True),
        *slow("mirrored", "multiworker_ring", "central_storage_cpu", "multi_gpu_model"),
        *slow("parameter_server", "independent_tensorflow", "horovod_tensorflow_gloo"),
    ],
}
for _base, _contracts in CONTRACTS.items():
    globals().update(contract_classes(_contracts, _base, _base.__name__))
# pytest would collect them
del _base, OnTokens, OnRecurrence, OnPictures, OnFiles, OfUserNetwork, OfTorchModule, OfKerasModel
