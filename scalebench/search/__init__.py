"""A search for good settings: what is tried, what is sought, what has come of it. Layer 4.

`scalebench.hydra_sweeper` is what Hydra calls; optuna proposes the values, and is imported when a search begins.
"""
