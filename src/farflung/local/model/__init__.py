"""Loads, samples and exports the model of a finished run."""
