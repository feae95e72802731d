"""The command line: the Hydra entry point, and one module for each command."""
