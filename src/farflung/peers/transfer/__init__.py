"""Moves objects between peers: downloads, fan-out, object serving."""
