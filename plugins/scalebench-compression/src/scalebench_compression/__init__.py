"""Gradient compression for scalebench: DistributedDataParallel with communication hooks that send fewer bytes."""
