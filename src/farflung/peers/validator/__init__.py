"""A validator: it answers requests and keeps one replica of the ledger."""
