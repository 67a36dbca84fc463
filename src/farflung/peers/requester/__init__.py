"""The requester: it hires, coordinates rounds, sees audits through and settles."""
