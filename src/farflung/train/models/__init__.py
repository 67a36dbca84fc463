"""Holds the models that farflung builds by itself, each one file."""
