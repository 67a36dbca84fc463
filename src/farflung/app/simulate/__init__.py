"""Simulations that span crafts: nothing here waits or is random, all follows from a seed."""
