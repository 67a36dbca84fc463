"""The market decides which hosts work for which job, and at what price."""
