"""Strategies (ways to train on several devices): the contract, the registry, and one folder per framework."""
