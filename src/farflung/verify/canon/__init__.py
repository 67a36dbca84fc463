"""Whole canonical graphs: what core/canon says tile by tile, done with whole tensors by the two sides of a dispute."""
