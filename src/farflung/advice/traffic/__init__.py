"""Computes the bytes, synchronisations and seconds of parallel training, each with its formula."""
