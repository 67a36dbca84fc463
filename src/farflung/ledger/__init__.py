"""Defines the ledger's law: the rules that every validator must compute alike. Integers only."""
