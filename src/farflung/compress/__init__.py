"""Tensors to bytes and back, and the one merge. NumPy arrays in, bytes out."""
