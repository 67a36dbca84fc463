"""Reads and writes a ledger through one validator or several."""
