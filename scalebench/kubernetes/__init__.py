"""Runs as a JobSet of Kubernetes: its manifest, and kubectl."""
