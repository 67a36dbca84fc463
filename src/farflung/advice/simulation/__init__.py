"""Simulates networks from a seed, in whole numbers: nodes present, hired, working, paid and relayed."""
