"""Sweeps: many runs, planned, executed one after the other or as jobs of a scheduler, and summarized."""
