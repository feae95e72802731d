"""Strain-stress curves -> the two parameters of the soil model behind them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class MaterialsCnn(nn.Module):
    """Two convolutions with max-pooling, two dense layers; 153,441 parameters for an input of (200, 3)."""

    TARGETS = ("G0", "a")

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        positions, channels = input_shape
        self.conv1 = nn.Conv1d(channels, 16, kernel_size=7, padding=3)
        self.conv2 = nn.Conv1d(16, 24, kernel_size=7, padding=3)
        self.dense1 = nn.Linear(positions // 2 // 2 * 24, 125)
        self.dense2 = nn.Linear(125, len(self.TARGETS))

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, positions, channels) -> (samples, targets)."""
        x = inputs.transpose(1, 2)  # torch convolves over (samples, channels, positions)
        x = functional.max_pool1d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool1d(functional.relu(self.conv2(x)), 2)
        x = x.transpose(1, 2).flatten(1)  # positions before channels, the order in which Keras flattens
        x = functional.relu(self.dense1(x))
        return self.dense2(x)
