"""Describes what cards can do and cost, and whether a machine with them fits a job (requirements P3, J9, N4)."""
