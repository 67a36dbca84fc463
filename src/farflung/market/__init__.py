"""Who works for whom, at what price."""
