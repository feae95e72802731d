"""PyTorch: plain, DistributedDataParallel, Lightning, and replicas that do not talk."""
