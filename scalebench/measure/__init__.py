"""Measuring inside a rank: the session with its phases, the timed loop, the probes; and the monitor beside it."""
