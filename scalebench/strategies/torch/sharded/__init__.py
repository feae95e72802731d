"""Data parallelism in which each process keeps a part of weights, gradients or optimizer state."""
