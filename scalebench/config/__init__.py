"""Config: YAML files and overrides become a checked RunSpec, with every default decided."""
