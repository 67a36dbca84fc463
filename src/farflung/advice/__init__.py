"""Advises how to train a job on offered machines: hosts, layout, duration and price (P1)."""
