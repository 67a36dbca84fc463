"""Content-addressed objects, encrypted before they leave their owner."""
