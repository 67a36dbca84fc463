"""Resolves what a person asks for into a job."""
