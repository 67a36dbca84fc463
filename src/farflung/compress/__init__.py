"""Encodes tensors as bytes, decodes them, and merges contributions. NumPy arrays in, bytes out."""
