"""A user's own network, in a file of the current folder, under strategies of PyTorch: they train it as its plain loop
does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scalebench.testing import StrategyContract

# As a user would write it: nothing of scalebench, weights from torch's own generator, one tied, one frozen, and state
# that is no tensor.
MODEL = """
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
        self.head = nn.Linear(width * 40, 2)

    def get_extra_state(self):
        return {"written by": "the user"}

    def forward(self, x):  # (n, 3, 200)
        x = torch.tanh(self.again(torch.tanh(self.mix(self.body(x * self.scale)))))
        return self.head(x.view(len(x), -1))


def build(width=6):
    return Net(width)
"""


class OwnContract(StrategyContract):
    overrides = ("model=custom", "model.torch=mynet:build", "+model.options.width=8")

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def in_the_users_folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("own")
        (folder / "mynet.py").write_text(MODEL)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            yield


@pytest.mark.slow
@pytest.mark.real
class TestDdpGloo(OwnContract):
    strategy = "ddp_gloo"


@pytest.mark.slow
@pytest.mark.real
class TestHorovodGloo(OwnContract):
    strategy = "horovod_gloo"


@pytest.mark.slow
@pytest.mark.real
class TestLightningDdpGloo(OwnContract):
    strategy = "lightning_ddp_gloo"


@pytest.mark.slow
@pytest.mark.real
class TestLightningHorovod(OwnContract):
    strategy = "lightning_horovod"


@pytest.mark.slow
@pytest.mark.real
class TestIndependentTorch(OwnContract):
    strategy = "independent_torch"
