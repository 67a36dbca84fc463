"""Compiled twins of NumPy functions in farflung.compress: importing this package's modules imports numba."""
