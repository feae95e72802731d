"""SLURM: its commands, the resources of a job, its submission, and its state until the end."""
