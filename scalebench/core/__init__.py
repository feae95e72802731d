"""What parent, worker and reports share: spec, result, run folder, errors, plugins, units, machine facts, statistics."""
