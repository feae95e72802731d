"""A training with PyTorch Lightning, as its documentation writes it."""

import argparse

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch, batch_index):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    data = TensorDataset(torch.randn(8192, 64), torch.randint(0, 10, (8192,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=1000, devices=args.devices, strategy="ddp", enable_progress_bar=False, logger=False,
        enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Classifier(args.width), loader)


if __name__ == "__main__":
    main()
