"""The probes, one module each; the shape of a module is in probe.py. A module put here is found by its file."""
