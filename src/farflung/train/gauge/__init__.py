"""Computes how much memory a module's step takes, by tracing it without numbers."""
