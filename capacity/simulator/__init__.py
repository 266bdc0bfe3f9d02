"""A serving engine's loop, request by request: what a workload waits for, and for how long."""
