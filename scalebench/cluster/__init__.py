"""Clusters: SLURM's commands, the resources, submission and states of its jobs; and the JobSets of Kubernetes."""
