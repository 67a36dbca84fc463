"""Traces the canonical graph of a step and caches it."""
