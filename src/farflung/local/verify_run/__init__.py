"""Verifies a finished run from its files."""
