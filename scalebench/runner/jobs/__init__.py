"""Runs as jobs of SLURM, from the login node: submitted, followed to their results, found again after a restart."""

from __future__ import annotations

from scalebench.runner.jobs.follow import JobFollower as JobFollower
from scalebench.runner.jobs.follow import find_jobsets as find_jobsets
from scalebench.runner.jobs.follow import find_running_jobs as find_running_jobs
from scalebench.runner.jobs.job import PlannedJob as PlannedJob
from scalebench.runner.jobs.job import QueueState as QueueState
