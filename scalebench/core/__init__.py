"""What parent, worker and reports share: spec, result, files of a run, errors, plugins, units, machine, statistics."""
