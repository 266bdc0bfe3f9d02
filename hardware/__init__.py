"""Accelerators, links and nodes as data: one TOML file each, every number with its source."""
