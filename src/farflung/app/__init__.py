"""Contains the user-facing parts: command line, Python API, explorer, charts.

Only this package may import all others.
"""
