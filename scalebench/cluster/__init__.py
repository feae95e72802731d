"""The login side of runs that are jobs: submitted, followed to their results. Layer 3."""

from __future__ import annotations

from scalebench.cluster.finding import find_running as find_running
from scalebench.cluster.following import Cluster as Cluster
from scalebench.cluster.queue import JobRequest as JobRequest
from scalebench.cluster.queue import Queue as Queue
