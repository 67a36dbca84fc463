"""Arithmetic whose bits are the same on every machine: a round's last steps, and graphs of whole training steps."""
