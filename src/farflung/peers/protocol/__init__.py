"""The messages between peers, their checks, and calls with their failures."""
