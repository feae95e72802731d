"""A search for good settings: the search space, the objective, the trials and their summary.

`hydra_plugins.scalebench_search` is what Hydra calls; optuna is imported when a search begins.
"""
