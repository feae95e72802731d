"""Strategies, that is ways to train on several devices: their contract, their registry, and one folder per framework."""
