"""Shared by parent, worker and reports: spec, result, files of a run, errors, plugins, units, machine, statistics."""
