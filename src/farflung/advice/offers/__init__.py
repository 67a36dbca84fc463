"""Reads files of offers and chooses hosts for a job."""
