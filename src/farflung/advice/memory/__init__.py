"""Computes how much memory training takes on each card, in each machine's RAM and on its disk (P2, T6)."""
