"""Strategies that exchange gradients through Horovod."""
