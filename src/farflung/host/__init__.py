"""Lends a machine: leases and the limits of the worker process."""
