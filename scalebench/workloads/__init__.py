"""Framework-free workloads: datasets, seeded batches, initial weights, shapes."""
