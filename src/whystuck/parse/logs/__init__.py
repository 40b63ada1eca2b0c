"""Logs of workers, launchers and kernels: known lines, tracebacks, exits, owners."""
