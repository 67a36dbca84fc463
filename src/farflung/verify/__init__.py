"""Verifies that the work was done: commitments, audits, and the independent replay of a finished run."""
