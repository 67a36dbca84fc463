"""Holds compiled twins of NumPy functions in farflung.compress: importing its modules imports numba."""
