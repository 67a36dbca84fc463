"""Stores content-addressed objects, encrypted before they leave their owner."""
