"""Backends of devices: a file each, by the names that torch gives them (registry)."""
