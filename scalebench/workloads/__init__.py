"""Workloads: what is trained, framework-free: datasets, seeded batches, networks as data, weights, learning rates."""
