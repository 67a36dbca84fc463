"""Checks what is wrong between two computers: peers, relays, routes."""
