"""Runs as jobs of SLURM, from the login node: submitted, followed to their results, found again after a restart."""
