"""Strategies that synchronize gradients through Horovod, with PyTorch, Lightning and TensorFlow."""
