"""A run's folder: its log, journal, inputs, keys and exports."""
