"""The Python API: runs, callbacks, loggers and the table that a notebook shows."""
