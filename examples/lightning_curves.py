"""A LightningModule with a loss, an optimizer and a scheduler of its own.

scalebench strategy=bare_torch,ddp,lightning_ddp,fsdp gpus=1,2 model=custom \\
    model.torch=lightning_curves:build dataset=custom dataset.builder=lightning_curves:samples
"""

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional


class Curves(pl.LightningModule):
    """Two quantities behind a curve of 200 points."""

    def __init__(self, width: int, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(
            nn.Conv1d(3, width, kernel_size=7, padding=3),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Flatten(),
            nn.Linear(width * 50, 2),
        )

    def training_step(self, batch, batch_idx):
        curves, quantities = batch
        loss = functional.huber_loss(self.net(curves), quantities, delta=0.1)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.999)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def build(width=16, learning_rate=1e-3):
    return Curves(width, learning_rate)


def samples(size, seed):
    """`size` noisy sines, (n, 200, 3), and the two quantities behind each, (n, 2)."""
    random = np.random.default_rng(seed)
    targets = random.uniform(size=(size, 2))
    angles = np.linspace(0, 20, 200) * (1 + targets[:, :1])
    curves = np.sin(angles + targets[:, 1:]) + 0.1 * random.normal(size=(size, 200))
    return np.stack([curves, np.gradient(curves, axis=1), np.ones_like(curves)], axis=-1), targets
