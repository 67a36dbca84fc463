"""Defines what is requested: the spec that a person writes, and where each value came from."""
