"""A training program of the user's as a strategy: its arguments, its process, and the hooks that see its steps."""
