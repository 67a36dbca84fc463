"""Contains simulations that combine several packages: nothing waits, and all randomness comes from a seed."""
