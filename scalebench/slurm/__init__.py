"""SLURM: what a run asks of it, how it is submitted, and what became of it. Layer 2."""
