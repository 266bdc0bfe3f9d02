"""Probes that run on the target device, and the calibration file they write.

A module of suite/ is one probe (probe.py says what shape it has); run.py runs them, each in a process of its own;
report.py and compare.py read what they wrote. capacity never imports this: they meet in the calibration file.
"""
