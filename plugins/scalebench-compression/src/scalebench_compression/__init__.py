"""Gradient compression for scalebench: DistributedDataParallel with a hook that sends the largest gradients only."""
