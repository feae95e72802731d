"""The login side of runs that are jobs: submitted, followed to their results. Layer 3."""

from __future__ import annotations

from scalebench.runner.jobs.follow import Cluster as Cluster
from scalebench.runner.jobs.job import JobRequest as JobRequest
from scalebench.runner.jobs.job import Queue as Queue
from scalebench.runner.jobs.recover import find_running as find_running
