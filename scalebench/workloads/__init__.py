"""What is trained, without any framework: datasets, seeded batches, networks as data, weights, learning rates."""
