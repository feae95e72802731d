"""Horovod with PyTorch, as horovodrun starts it: the materials CNN's layers on generated curves.

scalebench script=examples/train_horovod.py gpus=1,2 script.args.batch-size=75,700
"""

import argparse

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=75)  # of each device
    args = parser.parse_args()

    hvd.init()
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(37_500, 3, 200), torch.rand(37_500, 2))
    sampler = DistributedSampler(data, hvd.size(), hvd.rank())
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    net = nn.Sequential(
        nn.Conv1d(3, 16, 7, padding="same"), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 24, 7, padding="same"), nn.ReLU(), nn.MaxPool1d(2),
        nn.Flatten(), nn.Linear(24 * 50, 125), nn.ReLU(), nn.Linear(125, 2),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=4.7331e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for curves, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(curves.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
