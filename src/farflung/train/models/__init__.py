"""Models that farflung builds by itself, each one file."""
