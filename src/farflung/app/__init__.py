"""Where parts meet people: the only package that may import all others."""
