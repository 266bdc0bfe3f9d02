"""Probes that run on the target device, and the calibration file they write; they come with a later version."""
