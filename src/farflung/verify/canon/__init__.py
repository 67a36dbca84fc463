"""Executes canonical graphs on whole tensors, for both sides of a dispute; core/canon defines them tile by tile."""
