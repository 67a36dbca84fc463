"""Runs that are started on this computer."""
